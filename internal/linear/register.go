package linear

import (
	"strings"

	"github.com/anishathalye/porcupine"
)

// RegisterInput is an operation on a register that changes by compare-and-swap.
type RegisterInput struct {
	Swap    bool   // else it reads
	Version uint64 // the version to replace
	Value   string // the new value; no two swaps have the same
	// Settles has the values of changes whose result is unknown and that cannot happen after this read, each followed
	// by a blank.
	Settles string
}

// RegisterOutput is its result.
type RegisterOutput struct {
	Version uint64
	Value   string // that was read
	Changed bool   // nothing was swapped, because the register has another version
	Unknown bool   // the swap may have happened, or may happen later
}

type registerState struct {
	version uint64
	value   string
	settled string // as RegisterInput.Settles
}

// Register is the model of a register that was never set: version 0, and no value. Each change
// makes the version larger by 1.
var Register = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{registerState{}} },
	Step: func(s, in, out any) []any {
		now, op, got := s.(registerState), in.(RegisterInput), out.(RegisterOutput)
		switch after := (registerState{now.version + 1, op.Value, now.settled}); {
		case !op.Swap && got.Version == now.version && got.Value == now.value:
			now.settled += op.Settles
			return []any{now}
		case !op.Swap:
			return nil
		case got.Unknown && op.Version == now.version && !strings.Contains(now.settled, op.Value+" "):
			return []any{now, after}
		case got.Unknown, got.Changed && op.Version != now.version:
			return []any{now}
		case !got.Unknown && !got.Changed && op.Version == now.version && got.Version == after.version:
			return []any{after}
		}
		return nil
	},
}).ToModel()
