//go:build !amd64 || race

package order

import "sync/atomic"

// Store stores a word. Whoever sees it sees the stores before it.
func Store(p *atomic.Uint64, v uint64) { p.Store(v) }
