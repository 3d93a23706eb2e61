package records

import (
	"errors"
	"fmt"

	"mesh/shared/refusal"
)

// SQLite's result codes (sqlite.org/rescode.html).
const (
	codeReadOnly = 8
	codeIO       = 10
	codeCorrupt  = 11
	codeFull     = 13
	codeNoStore  = 26
)

// Told is err for a person when the store itself is in trouble, and err as it is otherwise. Whatever was
// under way changed nothing.
func Told(err error) error {
	var code interface{ Code() int }
	if !errors.As(err, &code) {
		return err
	}
	const what = "to keep or read the coordinator's records"
	var told error
	switch code.Code() & 0xff {
	case codeFull:
		told = refusal.New(what, "the disk they are on is full; nothing was changed", "make room on the coordinator's machine: df -h /var/lib/mesh-coordinator; then ask again")
	case codeReadOnly:
		told = refusal.New(what, "the disk they are on cannot be written; nothing was changed", "see why on the coordinator's machine: mount, journalctl -k; then ask again")
	case codeIO:
		told = refusal.New(what, "the disk they are on fails: "+err.Error(), "see why on the coordinator's machine: journalctl -k; then ask again")
	case codeCorrupt, codeNoStore:
		told = refusal.New(what, "their file is damaged: "+err.Error(), "stop the coordinator and put the last copy of records.db back; the machines keep what they were last told meanwhile")
	default:
		return err
	}
	return fmt.Errorf("%w: %w", told, err)
}
