package records

import (
	"slices"
	"sync"

	"mesh/shared/subject"
)

// Touched says what changed since a reader looked last.
type Touched struct {
	// All: too much changed to be listed; load everything again.
	All bool
	// Nodes whose own records, assignments or facts changed, each once.
	Nodes []subject.Node
	// Modules that have another current build, each once.
	Modules []subject.Module
	// Users: who is on the bus's user list changed.
	Users bool
}

// touch is one entry of the feed; its zero fields say nothing.
type touch struct {
	all, users bool
	node       subject.Node
	module     subject.Module
}

// feedLength is how many touches are remembered; a reader further behind loads everything again.
const feedLength = 1 << 16

// feed remembers what was touched in this process. Nobody else writes the file while it is open here,
// and a reader starts by loading everything, so memory is enough.
type feed struct {
	mu   sync.Mutex // guards the fields below
	base uint64     // number of the first entry
	list []touch
}

func (f *feed) add(ts []touch) {
	if len(ts) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, ts...)
	if over := len(f.list) - feedLength; over > feedLength/4 {
		f.list = slices.Clone(f.list[over:])
		f.base += uint64(over)
	}
}

// Touched returns what was touched after the mark that an earlier call returned, and the new mark. Mark
// first, load then: what changes in between is told again.
func (s *Store) Touched(mark uint64) (Touched, uint64) {
	f := &s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	end := f.base + uint64(len(f.list))
	if mark < f.base || mark > end {
		return Touched{All: true, Users: true}, end
	}
	var t Touched
	for _, x := range f.list[mark-f.base:] {
		t.All = t.All || x.all
		t.Users = t.Users || x.users || x.all
		if x.node != "" {
			t.Nodes = append(t.Nodes, x.node)
		}
		if x.module != "" {
			t.Modules = append(t.Modules, x.module)
		}
	}
	slices.Sort(t.Nodes)
	slices.Sort(t.Modules)
	t.Nodes, t.Modules = slices.Compact(t.Nodes), slices.Compact(t.Modules)
	return t, end
}

// Mark is the present end of the feed.
func (s *Store) Mark() uint64 {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	return s.feed.base + uint64(len(s.feed.list))
}
