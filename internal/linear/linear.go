// Package linear is for tests that check histories of operations with porcupine.
package linear

import (
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
)

// By is the Partition of a model whose operations each concern the state of one key: the histories of different keys
// are checked separately, which takes far less time. Key returns which key an operation concerns, given its input,
// which is an In.
func By[In any, K comparable](key func(In) K) func([]porcupine.Operation) [][]porcupine.Operation {
	return func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[K][]porcupine.Operation{}
		for _, op := range history {
			k := key(op.Input.(In))
			parts[k] = append(parts[k], op)
		}
		return slices.Collect(maps.Values(parts))
	}
}
