//go:build !amd64 || race

package soft

import "sync/atomic"

// unlock lets a stripe go of which the state was v before it was locked, and
// counts a write.
func (p *stripe) unlock(v uint64) { p.Store(v + stripeWrite) }

// putHint stores a word that nobody relies on.
func putHint(p *atomic.Uint64, v uint64) { p.Store(v) }
