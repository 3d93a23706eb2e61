package broker

import (
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// Numbers are what the server counts.
type Numbers struct {
	Connections, Subscriptions              int
	InMessages, OutMessages                 int64
	InBytes, OutBytes                       int64
	SlowConsumers                           int64
	Streams, Consumers                      int
	StoreMessages, StoreBytes, StoreReserve uint64
	APIErrors                               uint64
}

// Numbers reads them now.
func (b *Broker) Numbers() (Numbers, error) {
	v, err := b.srv.Varz(nil)
	if err != nil {
		return Numbers{}, fmt.Errorf("read the bus's numbers: %w", err)
	}
	n := Numbers{Connections: v.Connections, Subscriptions: int(v.Subscriptions), InMessages: v.InMsgs, OutMessages: v.OutMsgs, InBytes: v.InBytes, OutBytes: v.OutBytes, SlowConsumers: v.SlowConsumers}
	js, err := b.srv.Jsz(&server.JSzOptions{})
	if err != nil {
		return n, fmt.Errorf("read the bus's numbers: %w", err)
	}
	n.Streams, n.Consumers, n.StoreMessages, n.StoreBytes, n.StoreReserve, n.APIErrors = js.Streams, js.Consumers, js.Messages, js.Store, uint64(max(0, js.Config.MaxStore)), js.API.Errors
	return n, nil
}
