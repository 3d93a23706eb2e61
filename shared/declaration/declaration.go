// Package declaration is all that one node should be: composed whole by the coordinator, numbered,
// signed, and refused whole by an agent that does not understand every field of it (design §6, APP-1).
// On the bus and in a file it is a Signed: one line that names the format, the signer and the
// signature, then the JSON that was signed, byte for byte.
package declaration

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/rule"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

const (
	// Format is the version of the declaration's JSON. It grows when an older agent could not understand it.
	Format = 1
	// MaxSize is the largest signed declaration in bytes; the bus takes twice that in one message.
	MaxSize = 2 << 20

	purpose = "mesh-declaration/1"
)

// Declaration is the decoded form.
type Declaration struct {
	Head
	Content
}

// Head says whose declaration this is and which.
type Head struct {
	Format int          `json:"format"`
	Mesh   string       `json:"mesh"`
	Node   subject.Node `json:"node"`
	// Seq only grows; it orders declarations, never a clock does (NOD-14).
	Seq uint64 `json:"seq"`
}

// Content is what the node should be. Two contents with equal JSON are the same declaration and get no
// new seq.
type Content struct {
	// Bus is where the bus is, from now on (BUS-13).
	Bus credential.Bus `json:"bus"`
	// Drift is what happens to what was changed by hand: "repair" or "report" (APP-6).
	Drift Drift `json:"drift"`
	// Filter is the packet filter; nil leaves the machine's as it is (NET-3).
	Filter *Filter `json:"filter,omitempty"`
	// Modules are sorted by name.
	Modules []Module `json:"modules"`
	// Takes are people's words about things of this machine that mesh did not put there, sorted by module, one a
	// module (APP-10, APP-18). An agent that does not know the field refuses a declaration that has it.
	Takes []Take `json:"takes,omitempty"`
	// Keeps are what was changed by hand and stays for a while, sorted by thing (APP-19); likewise.
	Keeps []Keep `json:"keeps,omitempty"`
	// Remove is what goes although it would stay (APP-11); nil for nothing. An agent that does not know the field
	// refuses a declaration that has it, and says to be upgraded.
	Remove *Remove `json:"remove,omitempty"`
}

// Drift is a node's policy for what was changed by hand.
type Drift string

// The policies.
const (
	Repair     Drift = "repair"
	ReportOnly Drift = "report"
)

// Filter is what may come in from outside (NET-1); the uplinks are found by the node itself (NET-5).
type Filter struct {
	// Allow is sorted; its first owner is usually "admin", the way in for people (NET-7).
	Allow []rule.Allow `json:"allow"`
	// Tunnel is the overlay link to the other machines, treated as outside (NET-2); empty: none.
	Tunnel string `json:"tunnel,omitempty"`
	// Inside are the links a person declared inside, sorted (NET-15): what arrives over them meets no rule. An
	// agent that does not know the field refuses a declaration that has it, and says to be upgraded.
	Inside []string `json:"inside,omitempty"`
	// Converge hands the machine's packet filter to mesh; nil gives it back to what was there (NET-9).
	Converge *Converge `json:"converge,omitempty"`
}

// Module is one instance: a module with its build and settings, as it shall run here.
type Module struct {
	Name subject.Module `json:"name"`
	// Build is the id of the build or registration.
	Build string `json:"build"`
	// Artifact is the bundle, when there is one.
	Artifact *Artifact `json:"artifact,omitempty"`
	// Images are its container images, sorted by name and architecture.
	Images []Image `json:"images,omitempty"`
	// Manifest is the resolved manifest in its JSON form, kept as text: the coordinator splices what the
	// records hold, the agent decodes it strictly.
	Manifest json.RawMessage `json:"manifest"`
	// Settings fill ${setting:…}.
	Settings map[string]string `json:"settings,omitempty"`
	// Secrets fill ${secret:…}; only this node can open them.
	Secrets map[string]credential.Sealed `json:"secrets,omitempty"`
	// Membership is what the instance is on the bus (shared/membership), as JSON text; empty when it has nothing
	// to do there.
	Membership json.RawMessage `json:"membership,omitempty"`
}

// Artifact is content by digest, in the stream ARTIFACTS.
type Artifact struct {
	// Digest is the SHA-256 of the bytes, lower-case hex.
	Digest string `json:"digest"`
	// Size in bytes.
	Size int64 `json:"size"`
	// Chunks is how many messages hold it, counted from 0.
	Chunks int `json:"chunks"`
}

// MaxArtifact is the largest artifact in bytes.
const MaxArtifact = 8 << 30

// Check refuses an artifact that could not exist.
func (a Artifact) Check() error {
	if b, err := hex.DecodeString(a.Digest); err != nil || len(b) != sha256.Size || strings.ToLower(a.Digest) != a.Digest {
		return fmt.Errorf("digest %q is no SHA-256 in lower-case hex", a.Digest)
	}
	if a.Size <= 0 || a.Size > MaxArtifact || a.Chunks <= 0 || int64(a.Chunks) > a.Size {
		return fmt.Errorf("size %d in %d chunks cannot be", a.Size, a.Chunks)
	}
	return nil
}

// Check refuses what this agent could not apply whole. It does not read the manifests; their package does.
func (d *Declaration) Check() error {
	if d.Format != Format {
		return &strict.Error{Path: "format", Why: fmt.Sprintf("is %d, this agent reads %d", d.Format, Format), Kind: strict.ErrUnknownField}
	}
	if d.Mesh == "" || d.Node == "" || d.Seq == 0 {
		return &strict.Error{Why: "mesh, node and seq must be given"}
	}
	if err := d.Bus.Check(); err != nil {
		return &strict.Error{Path: "bus", Why: err.Error()}
	}
	if d.Drift != Repair && d.Drift != ReportOnly {
		return &strict.Error{Path: "drift", Why: fmt.Sprintf("is %q, expected repair or report", d.Drift)}
	}
	if d.Filter != nil {
		if err := d.Filter.Converge.check(); err != nil {
			return err
		}
	}
	if err := checkKeeps(d.Keeps); err != nil {
		return err
	}
	for i, m := range d.Modules {
		at := func(field string) string { return fmt.Sprintf("modules[%d].%s", i, field) }
		switch {
		case m.Name == "":
			return &strict.Error{Path: at("name"), Why: "must be given"}
		case i > 0 && d.Modules[i-1].Name >= m.Name:
			return &strict.Error{Path: at("name"), Why: "modules are sorted by name, each once"}
		case m.Build == "":
			return &strict.Error{Path: at("build"), Why: "must be given"}
		case len(m.Manifest) == 0:
			return &strict.Error{Path: at("manifest"), Why: "must be given"}
		}
		if err := checkImages(m.Images); err != nil {
			return &strict.Error{Path: at("images"), Why: err.Error()}
		}
		if m.Artifact != nil {
			if err := m.Artifact.Check(); err != nil {
				return &strict.Error{Path: at("artifact"), Why: err.Error()}
			}
		}
	}
	return cmp.Or(checkTakes(d.Takes), d.Remove.check(d.Modules))
}

// AppendContent appends c's JSON to dst: deterministic, with the manifests' text spliced as it stands.
// It is written out by hand because composing ten thousand nodes spends its time here.
func AppendContent(dst []byte, c *Content) ([]byte, error) {
	var err error
	dst = append(dst, `{"bus":`...)
	if dst, err = appendJSON(dst, c.Bus); err != nil {
		return nil, err
	}
	dst = append(dst, `,"drift":`...)
	dst = appendString(dst, string(c.Drift))
	if c.Filter != nil {
		dst = append(dst, `,"filter":`...)
		if dst, err = appendJSON(dst, c.Filter); err != nil {
			return nil, err
		}
	}
	dst = append(dst, `,"modules":[`...)
	for i := range c.Modules {
		if i > 0 {
			dst = append(dst, ',')
		}
		if len(c.Modules[i].Manifest) == 0 {
			return nil, fmt.Errorf("encode declaration: module %s has no manifest", c.Modules[i].Name)
		}
		dst = appendModule(dst, &c.Modules[i])
	}
	dst = append(dst, ']')
	if len(c.Takes) > 0 {
		dst = append(dst, `,"takes":`...)
		if dst, err = appendJSON(dst, c.Takes); err != nil {
			return nil, err
		}
	}
	if len(c.Keeps) > 0 {
		dst = append(dst, `,"keeps":`...)
		if dst, err = appendJSON(dst, c.Keeps); err != nil {
			return nil, err
		}
	}
	if c.Remove != nil {
		dst = append(dst, `,"remove":`...)
		if dst, err = appendJSON(dst, c.Remove); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// AppendModule appends m's JSON to dst, as it stands in a declaration.
func AppendModule(dst []byte, m *Module) []byte { return appendModule(dst, m) }

func appendModule(dst []byte, m *Module) []byte {
	dst = append(dst, `{"name":`...)
	dst = appendString(dst, string(m.Name))
	dst = append(dst, `,"build":`...)
	dst = appendString(dst, m.Build)
	if m.Artifact != nil {
		dst = append(dst, `,"artifact":`...)
		dst = appendArtifact(dst, m.Artifact)
	}
	dst = appendImages(dst, m.Images)
	dst = append(dst, `,"manifest":`...)
	dst = append(dst, m.Manifest...)
	dst = appendMap(dst, `,"settings":{`, m.Settings)
	dst = appendMap(dst, `,"secrets":{`, m.Secrets)
	if len(m.Membership) > 0 {
		dst = append(dst, `,"membership":`...)
		dst = append(dst, m.Membership...)
	}
	return append(dst, '}')
}

func appendArtifact(dst []byte, a *Artifact) []byte {
	dst = append(dst, `{"digest":`...)
	dst = appendString(dst, a.Digest)
	dst = append(dst, `,"size":`...)
	dst = strconv.AppendInt(dst, a.Size, 10)
	dst = append(dst, `,"chunks":`...)
	dst = strconv.AppendInt(dst, int64(a.Chunks), 10)
	return append(dst, '}')
}

func appendMap[V ~string](dst []byte, open string, m map[string]V) []byte {
	if len(m) == 0 {
		return dst
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	dst = append(dst, open...)
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, k)
		dst = append(dst, ':')
		dst = appendString(dst, string(m[k]))
	}
	return append(dst, '}')
}

// appendString appends s as a JSON string; plain ASCII, the usual case, without a detour.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
			b, err := json.Marshal(s)
			if err != nil { // a string always marshals
				panic("encoding/json refused a string: " + err.Error())
			}
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

func appendJSON(dst []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode declaration: %w", err)
	}
	return append(dst, b...), nil
}

// Signed is a declaration with its signature, as it travels and is kept.
type Signed []byte

// Sign signs the declaration's JSON.
func Sign(s *credential.Signer, body []byte) (Signed, error) { return seal(s, body) }

// SignContent signs the declaration that h and the JSON of a content make.
func SignContent(s *credential.Signer, h Head, content []byte) (Signed, error) {
	head, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode declaration: %w", err)
	}
	return seal(s, head[:len(head)-1], []byte{','}, content[1:])
}

// signatureSize is how many letters a signature has.
var signatureSize = base64.RawURLEncoding.EncodedLen(ed25519.SignatureSize)

// seal signs a text that comes in parts, and copies it once: ten thousand are made in one push.
func seal(s *credential.Signer, parts ...[]byte) (Signed, error) {
	line := purpose + " " + string(s.Verifier()) + " "
	at := len(line) + signatureSize + 1
	size := at
	for _, p := range parts {
		size += len(p)
	}
	if size > MaxSize {
		return nil, refusal.Newf("a declaration of this size", "assign fewer modules to the node, or carry large content in a bundle",
			"it has %d bytes, the bound is %d", size, MaxSize)
	}
	out := make([]byte, at, size)
	copy(out, line)
	out[at-1] = '\n'
	for _, p := range parts {
		out = append(out, p...)
	}
	if n := copy(out[len(line):at-1], s.Sign(purpose, out[at:])); n != signatureSize {
		return nil, fmt.Errorf("sign a declaration: the signature has %d letters, not %d", n, signatureSize)
	}
	return out, nil
}

// ErrSignature is met by errors.Is when a declaration is not signed by the pinned key.
var ErrSignature = errors.New("not signed by this mesh's coordinator")

// Open verifies and decodes s for the node that pinned v. A refusal changes nothing anywhere.
func (s Signed) Open(v credential.Verifier, mesh string, node subject.Node) (*Declaration, error) {
	return s.open(v, mesh, node, func(body []byte, d *Declaration) error { return strict.Decode(body, d) })
}

func (s Signed) open(v credential.Verifier, mesh string, node subject.Node, decode func([]byte, *Declaration) error) (*Declaration, error) {
	const push = "push again from the coordinator; if it stays, look at who else writes to the bus"
	if len(s) > MaxSize {
		return nil, refusal.Newf("a declaration", push, "it has %d bytes, the bound is %d", len(s), MaxSize)
	}
	line, body, ok := bytes.Cut(s, []byte{'\n'})
	fields := strings.Split(string(line), " ")
	if !ok || len(fields) != 3 || fields[0] != purpose {
		return nil, fmt.Errorf("%w: %w", refusal.New("a declaration", "it is not a signed declaration of a format this agent reads ("+purpose+")", push), ErrSignature)
	}
	// The line has one spelling only: Digest tells one declaration from another.
	if fields[1] != string(v) || !v.Verify(purpose, body, fields[2]) {
		return nil, fmt.Errorf("%w: %w", refusal.New("a declaration", "its signature is not by the key this machine pinned when it was enrolled", push), ErrSignature)
	}
	var d Declaration
	if err := decode(body, &d); err != nil {
		return nil, refused(err)
	}
	if err := d.Check(); err != nil {
		return nil, refused(err)
	}
	if d.Mesh != mesh || d.Node != node {
		return nil, refusal.Newf("a declaration", push, "it is for %s of mesh %s, and this is %s of mesh %s", d.Node, d.Mesh, node, mesh)
	}
	return &d, nil
}

func refused(err error) error {
	do := "push again from the coordinator"
	if errors.Is(err, strict.ErrUnknownField) {
		do = "upgrade the agent on this machine: the coordinator is newer"
	}
	return fmt.Errorf("%w: %w", refusal.New("a declaration", err.Error(), do), err)
}

// Digest names s in logs and stores.
func (s Signed) Digest() string {
	sum := sha256.Sum256(s)
	return hex.EncodeToString(sum[:])
}
