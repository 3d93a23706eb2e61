package manifest

// Tool is a verb that others ask over the bus.
type Tool struct {
	// One line for people: what it does.
	Description string `json:"description,omitempty" mesh:"required"`
	// A JSON Schema of its argument, an object. Left out, it takes no argument.
	Schema Schema `json:"schema,omitzero"`
	// What asking it can do, and so who may ask: `read` changes nothing (viewers may), `reversible` and
	// `disruptive` take an operator.
	Level Level `json:"level,omitempty" default:"disruptive"`
}

// Level is what asking a verb can do.
type Level string

// The levels.
const (
	LevelRead       Level = "read"
	LevelReversible Level = "reversible"
	LevelDisruptive Level = "disruptive"
)

// Words lists the levels.
func (Level) Words() []string {
	return []string{string(LevelRead), string(LevelReversible), string(LevelDisruptive)}
}

// Instances says what the instances of a module on several machines are to each other.
type Instances string

// The kinds of instances.
const (
	Distinct        Instances = "distinct"
	Interchangeable Instances = "interchangeable"
)

// Words lists the kinds.
func (Instances) Words() []string { return []string{string(Distinct), string(Interchangeable)} }
