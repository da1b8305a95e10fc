package pooltest

import (
	"testing"

	"polder/pool"
)

// Conformance runs the whole suite with the mechanism m over every driver, and
// checks that random operations give the same results over each as the default
// mechanism does.
func Conformance(t *testing.T, m pool.Manager) {
	for _, s := range []Setup{Inproc, TCP} {
		s.Manager = m
		t.Run("over "+s.Name, func(t *testing.T) { Run(t, s) })
	}
	t.Run("neither driver nor mechanism shows in the results", func(t *testing.T) {
		for seed := range uint64(3) {
			want := Script(t, Inproc, seed)
			for _, s := range []Setup{Inproc, TCP} {
				s.Manager = m
				if got := Script(t, s, seed); got != want {
					t.Errorf("script %d: digest %s over %s, want %s", seed, got, s.Name, want)
				}
			}
		}
	})
}
