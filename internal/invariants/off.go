//go:build !invariants && !race

package invariants

// Enabled is true in builds with -race or with the tag "invariants".
const Enabled = false
