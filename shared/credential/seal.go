package credential

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nkeys"

	"mesh/shared/refusal"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Sealed is a secret that only one node can open: "<sender's public curve key>.<box>". The sender's
// key is made for this one secret and thrown away.
type Sealed string

// secret is what lies in the box. It names whom it is for, so that a sealed value cannot be moved to
// another module or key unseen (facts/practice.md §13).
type secret struct {
	Node   subject.Node   `json:"node"`
	Module subject.Module `json:"module"`
	Key    string         `json:"key"`
	Value  string         `json:"value"`
}

// Seal seals value to the node whose public curve key is given.
func Seal(rand io.Reader, curve string, node subject.Node, module subject.Module, key, value string) (Sealed, error) {
	if err := CheckCurveKey(curve); err != nil {
		return "", err
	}
	b, err := json.Marshal(secret{node, module, key, value})
	if err != nil {
		return "", fmt.Errorf("seal %s of %s: %w", key, module, err)
	}
	sender, err := nkeys.CreateCurveKeysWithRand(rand)
	if err != nil {
		return "", fmt.Errorf("seal %s of %s: %w", key, module, err)
	}
	defer sender.Wipe()
	public, err := sender.PublicKey()
	if err != nil {
		return "", fmt.Errorf("seal %s of %s: %w", key, module, err)
	}
	box, err := sender.SealWithRand(b, curve, rand)
	if err != nil {
		return "", fmt.Errorf("seal %s of %s: %w", key, module, err)
	}
	return Sealed(public + "." + base64.RawURLEncoding.EncodeToString(box)), nil
}

// Open opens s with the node's curve seed and checks that it was meant for this module and key.
func (s Sealed) Open(curve Seed, node subject.Node, module subject.Module, key string) (string, error) {
	what := fmt.Sprintf("the sealed secret %s of %s", key, module)
	const do = "set it again: mesh-coordinator assign <node> <module> --secret <key>=<value>"
	public, text, ok := strings.Cut(string(s), ".")
	box, err := base64.RawURLEncoding.DecodeString(text)
	if !ok || err != nil || CheckCurveKey(public) != nil {
		return "", refusal.New(what, "it is no sealed value", do)
	}
	pair, err := nkeys.FromCurveSeed([]byte(curve))
	if err != nil {
		return "", fmt.Errorf("the node's curve key: %w", err)
	}
	b, err := pair.Open(box, public)
	if err != nil {
		return "", refusal.New(what, "it was sealed to another key than this node's", do)
	}
	var in secret
	if err := strict.Decode(b, &in); err != nil {
		return "", refusal.New(what, "what is inside is not understood: "+err.Error(), do)
	}
	if in.Node != node || in.Module != module || in.Key != key {
		return "", refusal.New(what, fmt.Sprintf("it was sealed as %s of %s on %s", in.Key, in.Module, in.Node), do)
	}
	return in.Value, nil
}
