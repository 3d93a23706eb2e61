package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/refusal"
	"mesh/shared/subject"
)

const (
	controlAge = 7 * 24 * time.Hour
	eventsAge  = 7 * 24 * time.Hour
	// The server reserves these on disk at once, and refuses a stream it could not hold: they must fit a
	// small machine.
	controlBytes = 64 << 20
	// controlEach is how many unread reports of one node are kept: a loud one does not push out a quiet one.
	controlEach = 64
	eventsBytes = 128 << 20
	// declarationBytes is kept free for what has no bound of its own.
	declarationBytes = 64 << 20
	ackWait          = 30 * time.Second
	maxDeliver       = 5
	maxAckPending    = 8192
)

// Streams are the streams of the mesh, on replicas servers (1 or 3). The one derivation, used to
// assert them and to check them (BUS-4). room, when given, is how many bytes they may hold together:
// ARTIFACTS gets what the others do not need, since who fills the bus with artifacts would otherwise keep
// declarations and reports from being taken.
func Streams(replicas int, room ...int64) []jetstream.StreamConfig {
	last := func(name subject.Stream, description string, subjects ...string) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: string(name), Description: description, Subjects: subjects, Replicas: replicas,
			Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
			MaxMsgsPerSubject: 1, AllowDirect: true, DenyDelete: true, Discard: jetstream.DiscardOld,
		}
	}
	artifacts := last(subject.Artifacts, "content by digest, in chunks", "mesh.artifact.*.*")
	// The first writer of a chunk wins: nobody exchanges content under a digest that is in use. The
	// coordinator deletes what nothing needs.
	artifacts.Discard, artifacts.DiscardNewPerSubject, artifacts.DenyDelete = jetstream.DiscardNew, true, false
	for _, bytes := range room {
		artifacts.MaxBytes = max(bytes-controlBytes-eventsBytes-max(declarationBytes, bytes/8), 1)
	}
	return []jetstream.StreamConfig{
		last(subject.Declarations, "the signed declaration of each node", subject.Declaration(subject.Each)),
		last(subject.Assignments, "the membership of each instance", subject.Membership(subject.Each, "*")),
		artifacts,
		{
			Name: string(subject.Control), Description: "what only the coordinator reads", Subjects: []string{subject.Report(subject.Each)},
			Replicas: replicas, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
			MaxAge: controlAge, MaxBytes: controlBytes, MaxMsgsPerSubject: controlEach, DenyDelete: true, Duplicates: 2 * time.Minute,
		},
		{
			Name: string(subject.Events), Description: "what seats and modules say, for seven days",
			Subjects: []string{"mesh.seat.*.event.>", "mesh.module.*.event.>"},
			Replicas: replicas, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
			MaxAge: eventsAge, MaxBytes: eventsBytes, DenyDelete: true, Duplicates: 2 * time.Minute,
		},
	}
}

// Reports is the coordinator's durable consumer on CONTROL. An acknowledgement stands for all messages before
// it: reports are recorded in batches, in their order.
func Reports() (subject.Stream, jetstream.ConsumerConfig) {
	return subject.Control, jetstream.ConsumerConfig{
		Durable: "coordinator", Description: "reports, in the order they came",
		FilterSubject: subject.Report(subject.Each), AckPolicy: jetstream.AckAllPolicy,
		AckWait: ackWait, MaxDeliver: maxDeliver, MaxAckPending: maxAckPending,
	}
}

// Assert makes every stream as derived: it makes what is missing, updates what differs, keeps every
// message, and never touches a stream that is not its own.
func Assert(ctx context.Context, js jetstream.JetStream, streams []jetstream.StreamConfig) error {
	for _, want := range streams {
		_, err := js.CreateOrUpdateStream(ctx, want)
		if err != nil && noRoom(err) {
			// One that is there works on as it is: a bus must start again on a disk that has become fuller.
			if _, e := js.Stream(ctx, want.Name); e == nil {
				continue
			}
			err = fmt.Errorf("%w: %w", err, refusal.Newf("the stream "+want.Name, "free some space on the disk of the bus, and start again",
				"the disk has no room for the %d MiB it may need", max(want.MaxBytes, 0)>>20))
		}
		if err != nil {
			return fmt.Errorf("assert stream %s: %w", want.Name, err)
		}
	}
	return nil
}

func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == noStorage
}

// Publish keeps data in the stream that takes sub and returns once the stream acknowledged it. id, when
// not empty, makes a repetition within two minutes harmless; it must be unguessable, since ids are one
// namespace a stream (facts/bus.md §2).
func (c *Conn) Publish(ctx context.Context, sub string, data []byte, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.bound, fmt.Errorf("no acknowledgement within %v", c.bound))
	defer cancel()
	m := nats.NewMsg(sub)
	m.Data = data
	if id != "" {
		m.Header.Set(nats.MsgIdHdr, id)
	}
	answer, err := c.Ask(ctx, m)
	if err != nil {
		return err
	}
	var ack struct {
		Stream string    `json:"stream"`
		Error  *apiError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return fmt.Errorf("publish %s: the answer is no acknowledgement: %w", sub, err)
	}
	if ack.Error != nil {
		return fmt.Errorf("publish %s: %w", sub, ack.Error)
	}
	if ack.Stream == "" {
		return fmt.Errorf("publish %s: the answer is no acknowledgement", sub)
	}
	return nil
}

type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	return fmt.Sprintf("the stream refused: %s (%d)", e.Description, e.ErrCode)
}

// The server's codes. storeFailed has its reason in the description only.
const (
	noStorage   = 10047
	storeFailed = 10077
	noResources = 10023
	oneASubject = "maximum messages per subject exceeded"
	mostBytes   = "maximum bytes exceeded"
)

// AlreadyThere reports whether a publish was refused because the subject holds its message: for content
// by digest that is as good as done.
func AlreadyThere(err error) bool {
	var e *apiError
	return errors.As(err, &e) && e.ErrCode == storeFailed && strings.Contains(e.Description, oneASubject)
}

// Full reports whether a publish was refused because its stream, or the disk of the bus, holds no more.
func Full(err error) bool {
	var e *apiError
	return errors.As(err, &e) && (e.ErrCode == noStorage || e.ErrCode == noResources || e.ErrCode == storeFailed && strings.Contains(e.Description, mostBytes))
}

// ErrNone is met by errors.Is when a stream holds no message of a subject.
var ErrNone = errors.New("no message there")

// Last reads the last message of sub from stream by direct get, with no consumer.
func (c *Conn) Last(ctx context.Context, stream subject.Stream, sub string) ([]byte, error) {
	answer, err := c.Ask(ctx, nats.NewMsg(subject.DirectGet(stream, sub)))
	if err != nil {
		return nil, err
	}
	switch status := answer.Header.Get("Status"); {
	case status == "404":
		return nil, fmt.Errorf("%s in %s: %w", sub, stream, ErrNone)
	case status != "":
		return nil, fmt.Errorf("%s in %s: %s %s", sub, stream, status, answer.Header.Get("Description"))
	// One that an answer was stored as carries two of each (facts/bus.md §2).
	case answer.Header.Get("Nats-Subject") != sub || len(answer.Header.Values("Nats-Subject")) != 1 || answer.Header.Get("Nats-Stream") != string(stream):
		return nil, fmt.Errorf("%s in %s: the answer is of %q", sub, stream, answer.Header.Get("Nats-Subject"))
	}
	return answer.Data, nil
}

// Stray reports whether m is an answer and not something said on its subject. Whoever may ask anything can
// aim the answer at any subject of its account, its neighbour's too (facts/bus.md §2): a stream's answer
// carries Nats-Stream, an acknowledgement and a verb's are JSON objects. A follower of text that is signed
// and no JSON drops them, so that nobody makes it say that it refused something.
func Stray(m *nats.Msg) bool {
	return m.Header.Get("Nats-Stream") != "" || bytes.HasPrefix(m.Data, []byte("{"))
}
