package pool

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"polder/pool/manager"
	"polder/verbs"
)

// An extent is the part of a chunk that one grant opens. It is memory of one node.
type extent struct {
	chunk     *Chunk
	node      *node
	id        uint32 // the node's number of its first chunk
	chunks    int    // how many of the node's chunks it has, one after the other
	session   uint64 // number of the kept session that it belongs to, or 0
	off, size int64  // in chunk, in bytes

	binding atomic.Pointer[binding]
	// strays counts, by path, the pieces that fly although their callers have given up. Later pieces must come after
	// them.
	strays [manager.MaxPaths]atomic.Int32
}

// A binding is the right to an extent over one connection.
type binding struct {
	group *group // its queue pairs are those that the keys are for, by path
	addr  uint64
	keys  [manager.MaxPaths]verbs.RKey
	// memory is the extent itself, if it lies in this process's memory. Unless writable is set, it is only read
	// there.
	memory   []byte
	writable bool
}

// at is the index of the extent that has byte off of c, or of the last extent if none has.
func (c *Chunk) at(off int64) int {
	if len(c.extents) == 1 { // fast path
		return 0
	}
	i, found := slices.BinarySearchFunc(c.extents, off, func(x *extent, off int64) int { return cmp.Compare(x.off, off) })
	if !found {
		i--
	}
	return i
}

func (x *extent) region() string { return fmt.Sprintf("chunk %d", x.id) }

// lose marks the chunk that x is of as lost.
func (x *extent) lose() {
	x.node.counters.lost.Add(int64(x.chunks))
	x.chunk.lose()
}

// chunksOf is how many of the nodes' chunks the extents have.
func chunksOf(extents []*extent) (n int) {
	for _, x := range extents {
		n += x.chunks
	}
	return n
}

// path is the path of g that a piece takes. If strays fly on one path, the piece takes that path, behind them. If
// strays fly on several paths, path gives up the link; the next link has no strays.
func (x *extent) path(g *group, bulk bool) int {
	path, behind := g.path(x.id, bulk), -1
	for i := range g.qps {
		if x.strays[i].Load() == 0 {
			continue
		}
		if behind >= 0 {
			x.node.linkBroke(g.link)
			return path
		}
		behind = i
	}
	if behind >= 0 {
		return behind
	}
	return path
}

// hasStrays reports whether there are pieces that fly although their callers have given up.
func (x *extent) hasStrays() bool {
	for i := range x.strays {
		if x.strays[i].Load() != 0 {
			return true
		}
	}
	return false
}
