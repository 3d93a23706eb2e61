package engine

import (
	"time"

	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// FactsAnswer is what the machine is.
type FactsAnswer struct {
	Node    subject.Node    `json:"node"`
	At      time.Time       `json:"at"`
	Profile *report.Profile `json:"profile"`
}

// ReportAnswer says that a report is on its way; it comes as every report does.
type ReportAnswer struct {
	// Number is the report's.
	Number uint64 `json:"number"`
	// Waits says that the bus did not have it yet when this was answered.
	Waits bool `json:"waits,omitempty"`
}

// ApplyAnswer is how a pass over the machine went.
type ApplyAnswer struct {
	// Running says that the pass takes longer than an answer may wait, and goes on.
	Running bool             `json:"running,omitempty"`
	Seq     uint64           `json:"seq"`
	Outcome report.Outcome   `json:"outcome,omitempty"`
	Steps   int              `json:"steps"`
	TookMS  int64            `json:"took_ms"`
	Refused *refusal.Refusal `json:"refused,omitempty"`
	// Differed is what was other than declared.
	Differed []report.Drift `json:"differed,omitempty"`
}

// RestartAsk restarts a module's services.
type RestartAsk struct {
	Module subject.Module `json:"module"`
	// Process is one service of the module, by its name in the manifest; empty: all that run.
	Process string `json:"process,omitempty"`
	Why     string `json:"why"`
}

// RestartAnswer is what was restarted.
type RestartAnswer struct {
	Units []UnitRestart `json:"units"`
}

// UnitRestart is one systemd unit.
type UnitRestart struct {
	Unit string `json:"unit"`
	// State is systemd's after it: "active", "activating", "failed", …
	State string `json:"state"`
	// Why says what went wrong; empty: nothing.
	Why string `json:"why,omitempty"`
}

// LogsAsk begins to read a module's lines in the journal.
type LogsAsk struct {
	Module subject.Module `json:"module"`
	// SinceMS is UTC milliseconds; 0: the last Lines lines.
	SinceMS int64 `json:"since_ms,omitempty"`
	// Lines is how many past lines come first, at most MostLines; 0 with SinceMS or After: all since.
	Lines int `json:"lines,omitempty"`
	// After goes on behind the line with this cursor, which another agent process may have given out.
	After string `json:"after,omitempty"`
	// Follow reads on for ever; otherwise the answer after the last line is Done.
	Follow bool `json:"follow,omitempty"`
}

// LogsNextAsk reads on. To ask for a batch acknowledges the one before; the same may be asked twice.
type LogsNextAsk struct {
	Read  string `json:"read"`
	Batch uint64 `json:"batch"`
	// WaitMS is how long to wait for a line, at most MaxLogsWait.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// LogsAnswer is a batch of lines.
type LogsAnswer struct {
	// Read names what was begun, for LogsNextAsk.
	Read string `json:"read"`
	// Next is the batch to ask for.
	Next  uint64    `json:"next"`
	Lines []LogLine `json:"lines"`
	// Cursor is the last line's, for LogsAsk.After.
	Cursor string `json:"cursor,omitempty"`
	// Done says that there are no more.
	Done bool `json:"done,omitempty"`
	// Why says what ended it before its time; empty: nothing.
	Why string `json:"why,omitempty"`
}

// LogLine is one line of the journal.
type LogLine struct {
	AtMS int64  `json:"at_ms"`
	Unit string `json:"unit"`
	// Priority is syslog's, 0 (emergency) to 7 (debug).
	Priority int    `json:"priority"`
	Text     string `json:"text"`
	// Cut says that the line was longer than MostText and is cut.
	Cut bool `json:"cut,omitempty"`
}

// The bounds of logs.
const (
	// MostLines bounds LogsAsk.Lines.
	MostLines = 10_000
	// MaxLogsWait bounds LogsNextAsk.WaitMS.
	MaxLogsWait = 5 * time.Second
	// LogsIdle is how long a reader may be silent before its read ends on the machine.
	LogsIdle = 10 * time.Second
	// BatchLines and BatchBytes bound one answer.
	BatchLines, BatchBytes = 500, 256 << 10
	// MostText bounds one line in bytes.
	MostText = 16 << 10
)

// DiagnoseAsk begins an archive when Archive is empty, or asks for its next piece.
type DiagnoseAsk struct {
	Archive string `json:"archive,omitempty"`
	// Offset is of the first byte wanted.
	Offset int64 `json:"offset,omitempty"`
}

// DiagnoseAnswer is a piece of a .tar.gz.
type DiagnoseAnswer struct {
	Archive string `json:"archive"`
	Size    int64  `json:"size"`
	Data    []byte `json:"data"`
}

// DataAsk asks what data of a module are on the machine.
type DataAsk struct {
	Module subject.Module `json:"module"`
}

// DataAnswer names them; nothing else of the module outlives its end but users and groups.
type DataAnswer struct {
	Things []DataThing `json:"things"`
}

// DataThing is a folder or volume that a module declares as data.
type DataThing struct {
	// Thing is its id: "dir:/srv/notes", "volume:mesh-notes-data". Path is where the data are.
	Thing string `json:"thing"`
	Path  string `json:"path"`
	// Bytes are those that it takes on the disk.
	Bytes int64 `json:"bytes"`
	Files int   `json:"files"`
	// More says that it was not measured to the end: there is more.
	More bool `json:"more,omitempty"`
	// Stays says why it is not deleted with the module, such as that it was there before mesh; empty: it can be.
	Stays string `json:"stays,omitempty"`
}
