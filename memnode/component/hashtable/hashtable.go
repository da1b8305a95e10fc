// Package hashtable is a hash table as an active component of a memory node: get,
// put and delete by key, each in one round trip, where one-sided access would
// read an index first and then the entry.
//
// Entries lie in a log of segments, and an open-addressing index of 64-bit words
// has a tag and a place for each; nothing of it is the garbage collector's, and all of
// it is in the Env's memory.
// When no segment is free, the one with the least live bytes is copied to one
// that is kept for that. So the memory of deleted and overwritten entries is
// used again, and the cost of a put is bounded by that of copying a segment.
//
// See package active for what goes in and comes out.
package hashtable

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"

	"polder/internal/offload"
	"polder/memnode/component"
)

const (
	segmentSize = 256 << 10
	grain       = 8 // entries begin at multiples of it
	header      = 8 // u32 length of the key, u32 length of the value

	minIndex = 512
	tagBits  = 16
)

// slot is an entry of the index: a tag, never 0, above the entry's place in
// grains. 0 is none.
type slot uint64

func (s slot) tag() uint64   { return uint64(s) >> (64 - tagBits) }
func (s slot) place() uint64 { return uint64(s) << tagBits >> tagBits }

// table is the component's object.
type table struct {
	env   *component.Env
	seed  maphash.Seed
	index []slot // of a power of two, at most three quarters full
	words []byte // index's memory
	count int

	segments []segment
	open     int // the segment that is being filled
	spare    int // an empty one, for compaction
}

type segment struct {
	mem  []byte // nil: none
	used int    // bytes, from the beginning on
	live int    // of these
}

// Component is the hash table. Every loop over an index is bounded by its length,
// and a put copies at most a segment and, when the index grows, the index.
var Component = component.Component{New: New, Bounded: true, SharedReads: true, Portable: true}

// New constructs a table. It is a component.Constructor.
func New(env *component.Env, _ *component.Call, params []byte) (component.Object, error) {
	if len(params) != 0 {
		return nil, fmt.Errorf("a hash table takes no parameters, got %d bytes", len(params))
	}
	t := &table{env: env, seed: maphash.MakeSeed()}
	if err := t.clear(); err != nil {
		return nil, err
	}
	return t, nil
}

// clear makes t empty, with the memory of a new table.
func (t *table) clear() error {
	for len(t.segments) < 2 {
		if err := t.grow(); err != nil {
			return err // the constructor's: nothing is left of t
		}
	}
	for i := range t.segments {
		s := &t.segments[i]
		if i > 1 {
			t.env.Free(s.mem)
		}
		s.used, s.live = 0, 0
	}
	t.segments = t.segments[:2]
	t.open, t.spare, t.count = 0, 1, 0
	words, err := t.env.Alloc(minIndex * 8)
	switch {
	case err == nil:
		t.setIndex(words)
	case t.words == nil:
		return err // the constructor's
	default:
		clear(t.words) // what is full can be cleared, too: it stays as large as it is
	}
	return nil
}

// setIndex gives the index other memory.
func (t *table) setIndex(words []byte) {
	if t.words != nil {
		t.env.Free(t.words)
	}
	t.words, t.index = words, slots(words)
}

// grow adds an empty segment.
func (t *table) grow() error {
	mem, err := t.env.Alloc(segmentSize)
	if err != nil {
		return err
	}
	t.segments = append(t.segments, segment{mem: mem})
	return nil
}

// entry returns the entry at a place: all of it, its key and its value.
func (t *table) entry(place uint64) (all, key, value []byte) {
	off := place * grain
	b := t.segments[off/segmentSize].mem[off%segmentSize:]
	k, v := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	return b[:size(int(k), int(v))], b[header : header+k], b[header+k : header+k+v]
}

// size is how many bytes an entry occupies.
func size(key, value int) int { return (header + key + value + grain - 1) &^ (grain - 1) }

func (t *table) hash(key []byte) (tag, start uint64) {
	h := maphash.Bytes(t.seed, key)
	return h>>(64-tagBits) | 1, h & uint64(len(t.index)-1)
}

// find returns where in the index key is, or where it would be put.
func (t *table) find(key []byte) (i uint64, found bool) {
	tag, i := t.hash(key)
	mask := uint64(len(t.index) - 1)
	for looked := 0; t.index[i] != 0; i = (i + 1) & mask {
		if looked++; looked > len(t.index) {
			panic("BUG: the index of a hash table has no end")
		}
		if t.index[i].tag() == tag {
			if _, k, _ := t.entry(t.index[i].place()); bytes.Equal(k, key) {
				return i, true
			}
		}
	}
	return i, false
}

// Read implements component.Object.
func (t *table) Read(_ *component.Call, key, out []byte) ([]byte, error) {
	i, found := t.find(key)
	if !found {
		return nil, component.ErrNotFound
	}
	_, _, value := t.entry(t.index[i].place())
	if len(value) > cap(out)-len(out) {
		return nil, component.ErrTooLarge
	}
	return append(out, value...), nil
}

// Write implements component.Object.
func (t *table) Write(_ *component.Call, key, value []byte) error {
	switch {
	case len(key) > offload.MaxKey:
		return fmt.Errorf("a key of %d bytes, want at most %d", len(key), offload.MaxKey)
	case len(value) > offload.MaxValue:
		return fmt.Errorf("a value of %d bytes, want at most %d", len(value), offload.MaxValue)
	}
	if err := t.growIndex(); err != nil {
		return err
	}
	place, err := t.append(key, value)
	if err != nil {
		return err
	}
	tag, _ := t.hash(key)
	i, found := t.find(key) // only now: making room moves entries
	if found {
		t.drop(t.index[i].place())
	} else {
		t.count++
	}
	t.index[i] = slot(tag<<(64-tagBits) | place)
	return nil
}

// drop counts the entry at a place as dead.
func (t *table) drop(place uint64) {
	all, _, _ := t.entry(place)
	t.segments[place*grain/segmentSize].live -= len(all)
}

// append puts an entry into the log.
func (t *table) append(key, value []byte) (place uint64, err error) {
	n := size(len(key), len(value))
	if err := t.makeRoom(n); err != nil {
		return 0, err
	}
	s := &t.segments[t.open]
	b := s.mem[s.used:]
	binary.LittleEndian.PutUint32(b, uint32(len(key)))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(value)))
	copy(b[header:], key)
	copy(b[header+len(key):], value)
	place = uint64(t.open*segmentSize+s.used) / grain
	s.used += n
	s.live += n
	return place, nil
}

// makeRoom sees that the open segment has room for n bytes.
func (t *table) makeRoom(n int) error {
	if t.segments[t.open].used+n <= segmentSize {
		return nil
	}
	// An empty segment is as good as a new one, and compacting costs less
	// the more is dead: as long as half of all is live, memory is taken.
	least := -1
	for i := range t.segments {
		if i != t.spare && (least < 0 || t.segments[i].live < t.segments[least].live) {
			least = i
		}
	}
	if t.segments[least].live > segmentSize/2 {
		if err := t.grow(); err == nil {
			t.open = len(t.segments) - 1
			return nil
		}
	}
	if t.segments[least].live+n > segmentSize {
		return component.ErrNoMemory
	}
	t.compact(least)
	return nil
}

// compact copies the live entries of segment i to the spare one, which becomes
// the open one, as i becomes the spare.
func (t *table) compact(i int) {
	from, to := &t.segments[i], &t.segments[t.spare]
	to.used, to.live = 0, 0
	for off := 0; off < from.used; {
		place := uint64(i*segmentSize+off) / grain
		all, key, _ := t.entry(place)
		off += len(all)
		at, found := t.find(key)
		if !found || t.index[at].place() != place {
			continue // dead
		}
		copy(to.mem[to.used:], all)
		tag := t.index[at].tag()
		t.index[at] = slot(tag<<(64-tagBits) | uint64(t.spare*segmentSize+to.used)/grain)
		to.used += len(all)
		to.live += len(all)
	}
	from.used, from.live = 0, 0
	t.open, t.spare = t.spare, i
}

// growIndex sees that there is a free word for one more entry.
func (t *table) growIndex() error {
	if (t.count+1)*4 <= len(t.index)*3 {
		return nil
	}
	words, err := t.env.Alloc(2 * len(t.words))
	if err != nil {
		return err
	}
	index := slots(words)
	mask := uint64(len(index) - 1)
	for _, s := range t.index {
		if s == 0 {
			continue
		}
		_, key, _ := t.entry(s.place())
		i := maphash.Bytes(t.seed, key) & mask
		for index[i] != 0 {
			i = (i + 1) & mask
		}
		index[i] = s
	}
	t.setIndex(words)
	return nil
}

// Delete implements component.Object.
func (t *table) Delete(_ *component.Call, key []byte) error {
	i, found := t.find(key)
	if !found {
		return component.ErrNotFound
	}
	t.drop(t.index[i].place())
	t.count--
	// What follows moves up, unless it would come before where it belongs.
	mask := uint64(len(t.index) - 1)
	last := i
	for j := (i + 1) & mask; t.index[j] != 0 && j != last; j = (j + 1) & mask {
		_, k, _ := t.entry(t.index[j].place())
		if _, start := t.hash(k); (j-start)&mask >= (j-i)&mask {
			t.index[i] = t.index[j]
			i = j
		}
	}
	t.index[i] = 0
	return nil
}

// Compute implements component.Object.
func (t *table) Compute(_ *component.Call, op uint16, in, out []byte) ([]byte, error) {
	if len(in) != 0 {
		return nil, fmt.Errorf("operation %d takes nothing, got %d bytes", op, len(in))
	}
	switch op {
	case offload.TableLen:
		if cap(out)-len(out) < 8 {
			return nil, component.ErrTooLarge
		}
		return binary.LittleEndian.AppendUint64(out, uint64(t.count)), nil
	case offload.TableClear:
		return out, t.clear()
	}
	return nil, fmt.Errorf("a hash table has no operation %d", op)
}
