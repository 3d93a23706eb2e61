package subject_test

import (
	"encoding/json"
	"strings"
	"testing"

	"mesh/shared/subject"
)

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		name string
		ok   bool
		says string
	}{
		{"db1", true, ""},
		{"a", true, ""},
		{"web-01", true, ""},
		{strings.Repeat("a", 40), true, ""},
		{strings.Repeat("a", 41), false, "41 characters"},
		{"", false, "empty"},
		{"web.example", false, "dot"},
		{"Web", false, "a-z"},
		{"-a", false, "a-z"},
		{"a-", false, "a-z"},
		{"a*", false, "a-z"},
		{"a b", false, "a-z"},
		{"é", false, "a-z"},
		{">", false, "a-z"},
	} {
		_, err := subject.ParseNode(tt.name)
		if (err == nil) != tt.ok {
			t.Errorf("ParseNode(%q) = %v, want ok %v", tt.name, err, tt.ok)
		}
		if err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("ParseNode(%q) says %q, want it to mention %q", tt.name, err, tt.says)
		}
	}
}

func TestADecodedNameIsChecked(t *testing.T) {
	var v struct{ Node subject.Node }
	if err := json.Unmarshal([]byte(`{"Node":"a.b"}`), &v); err == nil {
		t.Error("a node name with a dot was decoded")
	}
}

func TestConsumerNamesStandInAckSubjects(t *testing.T) {
	for _, bad := range []string{"", "a.b", "a b", "*", "a>", "é"} {
		if _, err := subject.ParseConsumer(bad); err == nil {
			t.Errorf("ParseConsumer(%q) was taken", bad)
		}
	}
	c, err := subject.ParseConsumer("coordinator")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Acks(subject.Control); len(got) != 2 || got[0] != "$JS.ACK.CONTROL.coordinator.>" {
		t.Errorf("Acks = %v", got)
	}
}

func FuzzParseNode(f *testing.F) {
	f.Add("db1")
	f.Add("a.b")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := subject.ParseNode(s)
		if err == nil && strings.ContainsAny(subject.Declaration(n), "*> \t\r\n") {
			t.Errorf("%q makes a subject with a wildcard or space", s)
		}
	})
}
