//go:build !amd64 || race

package soft

// unlock lets a stripe go of which the state was v before it was locked, and
// counts a write.
func (p *stripe) unlock(v uint64) { p.Store(v + stripeWrite) }
