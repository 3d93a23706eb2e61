package report

import (
	"slices"
	"strings"
)

// The bounds of what a report says of a machine's exposure; what is beyond them is counted.
const (
	MaxExposed   = 200
	maxExposedIn = 16
)

// Exposure is what of the machine can be reached from outside: what is declared, and what the kernel
// would let in, evaluated from every rule set and every redirection on it (NET-14).
type Exposure struct {
	// Links are the uplinks and the tunnel.
	Links []ExposedLink `json:"links,omitempty"`
	// Filtered says that mesh's own filter is in force.
	Filtered bool `json:"filtered"`
	// More counts ports left out.
	More int `json:"more,omitempty"`
	// Why says why nothing could be told.
	Why string `json:"why,omitempty"`
}

// ExposedLink is a link that traffic from outside arrives over.
type ExposedLink struct {
	Name string `json:"name"`
	// Tunnel says that it leads to the other machines.
	Tunnel bool `json:"tunnel,omitempty"`
	// Addresses are the machine's on it, without those of the link alone.
	Addresses []string `json:"addresses,omitempty"`
	// Ports are sorted: what differs first.
	Ports []ExposedPort `json:"ports,omitempty"`
}

// What the kernel does with a packet to a port, in ExposedPort.Kernel.
const (
	PortOpen    = "open"
	PortRefused = "refused"
	PortDepends = "depends"
)

// ExposedPort is one port, or a range of them, as it is reached over one link.
type ExposedPort struct {
	// Port is as in a manifest: "22/tcp".
	Port string `json:"port"`
	// Family is ip, ip6, or empty where both are alike.
	Family string `json:"family,omitempty"`
	// Declared are the openings that speak of it, in the manifest's words.
	Declared []string `json:"declared,omitempty"`
	// Kernel is open, refused or depends.
	Kernel string `json:"kernel"`
	// From is set where that holds for some senders only.
	From string `json:"from,omitempty"`
	// By is the rule or chain that decides, and whose it is.
	By string `json:"by,omitempty"`
	// To is where it is redirected to, such as a container.
	To string `json:"to,omitempty"`
	// Programs are those that listen on it.
	Programs []string `json:"programs,omitempty"`
	// Difference says what is not as declared; empty: nothing.
	Difference string `json:"difference,omitempty"`
}

// Columns heads Rows.
const Columns = "PORT | DECLARED | KERNEL | BY | LISTENS"

// Rows are the ports of a link for a table.
func (l ExposedLink) Rows() (rows [][]string) {
	or := func(text string) string {
		if text == "" {
			return "-"
		}
		return text
	}
	for _, p := range l.Ports {
		kernel := p.Kernel
		if p.From != "" {
			kernel += " to " + p.From
		}
		there := strings.Join(p.Programs, ", ")
		if p.To != "" {
			there = strings.TrimSuffix("to "+p.To+", "+there, ", ")
		}
		rows = append(rows, []string{strings.TrimSpace(p.Port + " " + p.Family), or(strings.Join(p.Declared, "; ")), kernel, p.By, or(there)})
	}
	return rows
}

// Differences are the ports that are not as declared, each in a sentence.
func (e *Exposure) Differences() []string {
	if e == nil {
		return nil
	}
	var all []string
	for _, l := range e.Links {
		for _, p := range l.Ports {
			if p.Difference != "" {
				all = append(all, p.Port+" over "+l.Name+": "+p.Difference)
			}
		}
	}
	return all
}

// Few bounds sentences for people, as Report.Exposed: those left out are counted in the last.
func Few(all []string) []string { return few(slices.Clone(all), maxFact) }

// Shorten cuts texts for people, and lists.
func (e *Exposure) Shorten() {
	if e == nil {
		return
	}
	e.Why = Cut(e.Why, maxText)
	if n := len(e.Links) - maxExposedIn; n > 0 {
		e.Links, e.More = e.Links[:maxExposedIn], e.More+n
	}
	left := MaxExposed
	for i := range e.Links {
		l := &e.Links[i]
		l.Name = Cut(l.Name, maxName)
		l.Addresses = cutAll(l.Addresses, maxName)
		if n := len(l.Ports) - left; n > 0 {
			l.Ports, e.More = l.Ports[:left], e.More+n
		}
		left -= len(l.Ports)
		for j := range l.Ports {
			p := &l.Ports[j]
			p.Port, p.Family, p.Kernel = Cut(p.Port, maxName), Cut(p.Family, maxName), Cut(p.Kernel, maxName)
			p.From, p.By, p.To, p.Difference = Cut(p.From, maxFact), Cut(p.By, maxFact), Cut(p.To, maxFact), Cut(p.Difference, maxFact)
			p.Declared, p.Programs = cutAll(p.Declared, maxFact), cutAll(p.Programs, maxFact)
		}
	}
}

// cutAll bounds a list and each text in it.
func cutAll(all []string, n int) []string {
	all = all[:min(len(all), maxExposedIn)]
	for i := range all {
		all[i] = Cut(all[i], n)
	}
	return all
}
