package grant

import (
	"strings"
	"sync"

	"mesh/shared/engine"
	"mesh/shared/subject"
)

// node derives what every node may, its artifacts aside, for the one called n.
func node(n subject.Node) Rights {
	r := Rights{
		Publish: []string{
			subject.DirectGet(subject.Declarations, subject.Declaration(n)),
			answers,
			subject.Heartbeat(n),
			subject.Report(n),
		},
		Subscribe: append(subject.Discovery(string(subject.NodeEngine), string(n)),
			subject.Inbox(Principal{Kind: Node, Name: string(n)}.Label())+".>",
			subject.Declaration(n),
		),
	}
	for _, s := range engine.Seats() {
		r.Subscribe = append(r.Subscribe, subject.NodeTool(s, "*", n)) // of its own machine
	}
	return r
}

// form is the rights of node with the name left out: ten thousand nodes are composed at once, and one text a
// node costs a third of what one a subject does.
type form struct{ publish, subscribe [][]string }

// gap stands for the name in a form; no name is such.
const gap = "\x00"

var nodeForm = sync.OnceValue(func() form {
	var f form
	r := node(gap)
	for _, s := range r.Publish {
		f.publish = append(f.publish, strings.Split(s, gap))
	}
	for _, s := range r.Subscribe {
		f.subscribe = append(f.subscribe, strings.Split(s, gap))
	}
	return f
})

// fill is the rights of the node called name, with room for so many more to publish.
func (f form) fill(name string, more int) Rights {
	size := 0
	for _, list := range [][][]string{f.publish, f.subscribe} {
		for _, parts := range list {
			for i, p := range parts {
				if size += len(p); i > 0 {
					size += len(name)
				}
			}
		}
	}
	var b strings.Builder
	b.Grow(size)
	r := Rights{Publish: make([]string, 0, len(f.publish)+more), Subscribe: make([]string, 0, len(f.subscribe))}
	add := func(to []string, list [][]string) []string {
		for _, parts := range list {
			from := b.Len()
			for i, p := range parts {
				if i > 0 {
					b.WriteString(name)
				}
				b.WriteString(p)
			}
			to = append(to, b.String()[from:])
		}
		return to
	}
	r.Publish, r.Subscribe = add(r.Publish, f.publish), add(r.Subscribe, f.subscribe)
	return r
}
