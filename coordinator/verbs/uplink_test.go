package verbs

import (
	"crypto/rand"
	"strings"
	"testing"

	"mesh/coordinator/compose"
	"mesh/coordinator/hear"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/subject"
)

// TestNoUplinkIsSaid: a node that reported no uplink is sent no packet filter, and the push and node show say so
// (NET-3).
func TestNoUplinkIsSaid(t *testing.T) {
	const says = "no uplink yet, so it is sent no filter and keeps the one it has"
	s, admin := enrolled(t, "db1")
	signer, err := credential.NewSigner(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Composer = compose.New(s.cfg.Records, compose.Options{Signer: signer, Clock: s.cfg.Clock})
	s.cfg.Hear = &hear.Hearer{}
	items, err := s.items(t.Context(), []subject.Node{"db1"})
	if err != nil || len(items) != 1 || !strings.Contains(items[0].Note, says) || strings.Contains(string(items[0].Signed), `"filter"`) {
		t.Errorf("the push: %+v, %v", items, err)
	}
	shown, err := asks(t, s, admin, controller.NodeShow, `{"node":"db1"}`)
	if err != nil {
		t.Fatal(err)
	}
	if notes := shown.(controller.NodeAnswer).Notes; !strings.Contains(strings.Join(notes, "\n"), says) {
		t.Errorf("node show notes %q", notes)
	}
}
