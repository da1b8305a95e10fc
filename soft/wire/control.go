package wire

import (
	"errors"
	"fmt"
	"sync/atomic"

	"polder/internal/arena"
)

// SegmentSize is the unit of granting and revoking.
const SegmentSize = 2 << 20

// MaxSegments bounds one client's address space (512 GiB).
const MaxSegments = 1 << 18

const (
	controlMagic  = 0x31305446534c4f50 // "POLSFT01"
	controlHeader = 4096
	entrySize     = 16
)

// Control is the table that a client and its coordinator share: for each
// segment a generation word, which both raise, and a rank, which the client
// publishes and the coordinator only uses to choose.
//
//	offset 0      magic, 8 bytes
//	offset 8      number of segments, 8 bytes
//	offset 4096   per segment: generation, 8 bytes; rank, 8 bytes
//
// All words are little-endian (host order; the table never leaves the host)
// and accessed atomically. Neither side trusts what the other one wrote: a
// client that lies about its ranks or generations loses its own segments in
// the wrong order and nothing else.
//
// # Generations
//
// An even generation is a segment that the client may use, an odd one a
// segment that it may not. Grant and Revoke add one, Recycle adds two; each
// is a compare-and-exchange, so that of two racing changes one wins.
type Control struct {
	m    *arena.Mapping
	gens []entry
}

type entry struct {
	gen  atomic.Uint64
	rank atomic.Uint64
}

// RankFree and higher ranks say that a segment holds nothing at all.
const RankFree = uint64(1) << 63

// ControlSize is the size in bytes of the table for n segments.
func ControlSize(n int) int {
	size := controlHeader + n*entrySize
	return (size + arena.PageSize - 1) / arena.PageSize * arena.PageSize
}

var errControl = errors.New("not a control table")

// InitControl makes a table for n segments, all revoked, in a fresh mapping.
func InitControl(m *arena.Mapping, n int) (*Control, error) {
	if n <= 0 || n > MaxSegments || len(m.Bytes()) < ControlSize(n) {
		return nil, fmt.Errorf("cannot make a control table for %d segments in %d bytes: %w", n, len(m.Bytes()), errControl)
	}
	words := asWords(m.Bytes())
	words[1].Store(uint64(n))
	c := &Control{m: m, gens: asEntries(m.Bytes()[controlHeader:], n)}
	for i := range c.gens {
		c.gens[i].gen.Store(1)
		c.gens[i].rank.Store(RankFree)
	}
	words[0].Store(controlMagic)
	return c, nil
}

// OpenControl reads a table that somebody else made. The mapping must be one
// that nobody can truncate.
func OpenControl(m *arena.Mapping) (*Control, error) {
	b := m.Bytes()
	if len(b) < controlHeader {
		return nil, fmt.Errorf("cannot open a control table of %d bytes: %w", len(b), errControl)
	}
	words := asWords(b)
	if got := words[0].Load(); got != controlMagic {
		return nil, fmt.Errorf("cannot open a control table with magic %#x: %w", got, errControl)
	}
	n := words[1].Load()
	if n == 0 || n > MaxSegments || len(b) < ControlSize(int(n)) {
		return nil, fmt.Errorf("cannot open a control table of %d segments in %d bytes: %w", n, len(b), errControl)
	}
	return &Control{m: m, gens: asEntries(b[controlHeader:], int(n))}, nil
}

// Segments is the number of segments in the table.
func (c *Control) Segments() int { return len(c.gens) }

// Generation loads segment i's generation.
func (c *Control) Generation(i uint32) uint64 { return c.gens[i].gen.Load() }

// Granted reports whether the client may use segment i.
func (c *Control) Granted(i uint32) bool { return c.gens[i].gen.Load()&1 == 0 }

// Revoke makes segment i unusable and reports whether it was usable. From
// the moment it returns, no read of the segment can be proved, so the caller
// may punch the pages away.
func (c *Control) Revoke(i uint32) bool { return c.change(i, 0, 1) }

// Grant makes segment i usable and reports whether it was not.
func (c *Control) Grant(i uint32) bool { return c.change(i, 1, 1) }

// Recycle gives segment i, which must be usable, a new life for the same
// client. It fails if the segment has been revoked.
func (c *Control) Recycle(i uint32) bool { return c.change(i, 0, 2) }

func (c *Control) change(i uint32, parity, add uint64) bool {
	g := &c.gens[i].gen
	for {
		v := g.Load()
		if v&1 != parity {
			return false
		}
		if g.CompareAndSwap(v, v+add) {
			return true
		}
	}
}

// Rank loads segment i's rank: the higher, the dearer, except from RankFree
// upwards, which means that it is empty.
func (c *Control) Rank(i uint32) uint64 { return c.gens[i].rank.Load() }

// SetRank publishes segment i's rank.
func (c *Control) SetRank(i uint32, rank uint64) { c.gens[i].rank.Store(rank) }

// Close unmaps the table.
func (c *Control) Close() error { return c.m.Close() }
