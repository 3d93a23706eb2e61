package yamlfile

import (
	"reflect"
	"slices"

	"mesh/shared/manifest"
)

// later is what design.md §9 plans and this version does not apply. Such a key is refused, for what
// mesh would pass over in silence is worse than what it says no to; but it is no typing error.
var later = map[reflect.Type][]string{
	reflect.TypeFor[manifest.Manifest](): {"requires", "listens", "names-on-purpose", "provides"},
	reflect.TypeFor[manifest.Seats]():    {"defines"},
	reflect.TypeFor[manifest.Build]():    {"image", "on"},
	reflect.TypeFor[manifest.Bundle]():   {"toolchain", "command"},
	reflect.TypeFor[manifest.Process]():  {"within", "limits"},
	reflect.TypeFor[manifest.Timer]():    {"after"},
	reflect.TypeFor[manifest.File]():     {"source"},
}

func isLater(t reflect.Type, key string) bool { return slices.Contains(later[t], key) }
