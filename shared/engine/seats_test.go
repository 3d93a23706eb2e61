package engine_test

import (
	"slices"
	"testing"

	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/subject"
)

// The lists that are written twice agree, and every verb has what help, grants and discovery need.
func TestTheTables(t *testing.T) {
	schemas, err := engine.Schemas()
	if err != nil {
		t.Fatal(err)
	}
	var seats []subject.Seat
	for _, p := range engine.Protocols() {
		seats = append(seats, p.Seat)
		seen := map[subject.Verb]bool{}
		for _, v := range p.Verbs {
			if seen[v.Name] {
				t.Errorf("%s of %s stands there twice", v.Name, p.Seat)
			}
			seen[v.Name] = true
			if err := subject.Check("verb", string(v.Name)); err != nil || v.Description == "" || v.Example == "" || v.Ask == nil || v.Answer == nil {
				t.Errorf("%s of %s lacks something: %+v, %v", v.Name, p.Seat, v, err)
			}
			if _, err := controller.ParseRole(string(v.Least)); err != nil {
				t.Errorf("%s of %s: %v", v.Name, p.Seat, err)
			}
			if v.Level == controller.Disruptive && v.Least == controller.Viewer {
				t.Errorf("%s of %s is disruptive and a viewer may ask it", v.Name, p.Seat)
			}
			if s := schemas[p.Seat][v.Name]; len(s.Ask) == 0 || len(s.Answer) == 0 {
				t.Errorf("%s of %s has no schema; run go test ./coordinator/verbs -run Schemas -update", v.Name, p.Seat)
			}
			if got, ok := engine.Find(p.Seat, v.Name); !ok || got.Description != v.Description {
				t.Errorf("%s of %s is not found", v.Name, p.Seat)
			}
		}
	}
	if !slices.Equal(seats, engine.Seats()) {
		t.Errorf("Seats says %v, Protocols %v: a seat that is not in both is granted nobody", engine.Seats(), seats)
	}
}
