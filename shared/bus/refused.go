package bus

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"mesh/shared/refusal"
	"mesh/shared/subject"
)

var (
	deniedPublish   = late(`Permissions Violation for Publish to "([^"]+)"`)
	deniedSubscribe = late(`Permissions Violation for Subscription to "([^"]+)"(?: using queue "([^"]+)")?( \(sid)?`)
)

// late makes a rule when it is asked for first: a command that asks nothing of the bus starts the faster.
func late(rule string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(rule) })
}

// asyncError turns the bus's late word about a refusal into the error of whoever waits for it. What
// nobody waits for is logged, once for each text and connection.
func (c *Conn) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	heard := false
	if m := deniedPublish().FindStringSubmatch(err.Error()); m != nil {
		heard = c.cancelWaiters(m[1], fmt.Errorf("%w a publish to %s", ErrRefused, m[1])) > 0
	} else if m := deniedSubscribe().FindStringSubmatch(err.Error()); m != nil {
		heard = c.refusedSubscription(m[1], m[2], m[3] != "")
	}
	if errors.Is(err, nats.ErrPermissionViolation) {
		c.heard = err
	}
	if errors.Is(err, nats.ErrAuthorization) && !c.up {
		c.note(err)
	}
	for f := range c.follows {
		if f.behind {
			f.behind = false
			f.kick()
		}
	}
	if _, said := c.said[err.Error()]; !heard && !said && len(c.said) < saidMax {
		c.said[err.Error()] = struct{}{}
		c.log.Warn("bus", "subject", subjectOf(sub), "err", err)
	}
}

// refusedSubscription notes the refusal and says whether somebody waits for it. After a reload that
// narrowed the rights the client still takes the subscription for valid, so this word is its end; that
// word names no queue. It holds mu.
func (c *Conn) refusedSubscription(sub, queue string, reload bool) (heard bool) {
	for f := range c.follows {
		if f.sub == sub && (reload || f.queue == queue) {
			heard, f.denied = true, true
			f.kick()
		}
	}
	if inbox := subject.Inbox(c.principal) + "."; strings.HasPrefix(sub, inbox) {
		c.deaf = fmt.Errorf("%w: %w", ErrRefused, refusal.New("answers for this credential", "the bus lets its key hear no "+inbox+">: the credential names another principal than its key belongs to", "ask for a new credential"))
		c.deafAt = c.clk.Now()
		heard = c.cancelWaiters("", c.deaf) > 0 || heard
	}
	return heard
}

func subjectOf(s *nats.Subscription) string {
	if s == nil {
		return ""
	}
	return s.Subject
}
