package simfaults

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"time"

	"polder/far/named"
)

// inspect checks, about every second, what only the simulator can see: no copy that the manifest lists was given
// back, each copy that counts has what it should, and a server that opened the heap now would find all that was
// acknowledged or shown, whichever copies it could reach.
func (c *cluster) inspect() {
	c.w.After(c.during(500*time.Millisecond, 1500*time.Millisecond), c.inspect)
	if c.harness("node-frees-young-copies") {
		listed := map[*chunk]bool{}
		for _, name := range c.listed() {
			c.copiesOf(name, func(_ *node, _ int, ch *chunk) { listed[ch] = true })
		}
		for _, n := range c.nodes {
			for id, ch := range n.chunks {
				if !listed[ch] {
					n.drop(id)
				}
			}
		}
	}
	for _, name := range c.listed() {
		c.chunksOf(name, func(n *node, id int) {
			if n.given[id] {
				c.wrong("chunk %d of %s was given back, and the manifest has it as a copy of %s", id, n.name, name)
			}
		})
	}
	values := c.values()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		c.inspectSegment(name, values[name])
	}
	if m := c.manifest(); m != nil {
		for which := range c.cfg.copies {
			c.inspectLog(m, which)
		}
	}
}

// value says where a value is in a segment.
type value struct {
	key     uint32
	version uint64
	off, n  int
}

// values returns the values that must not be lost now, by the names of their segments: those that the manifest's root
// lists, and those that the heap's owner has evacuated.
func (c *cluster) values() map[string][]value {
	all := map[string][]value{}
	if m := c.manifest(); m != nil {
		names, d := namesIn(m.Root)
		for i, name := range names {
			names[i] = movedTo(m, numberOf(name), name)
		}
		if len(m.Root) > 0 {
			for range d.U32() {
				v := value{key: d.U32(), version: d.U64()}
				name := names[d.U32()]
				v.off, v.n = int(d.U32()), int(d.U32())
				all[name] = append(all[name], v)
			}
		}
	}
	for _, h := range c.servers {
		s := h.now
		if s == nil || s.o == nil || !s.owns() {
			continue
		}
		for key := range uint32(c.cfg.keys) {
			if it := s.items[key]; it != nil && it.local == nil && it.at != nil && !it.at.dead {
				name := it.at.seg.Name()
				all[name] = append(all[name], value{key, it.version, it.off, it.n})
			}
		}
	}
	return all
}

// has reports whether ch has all values.
func (ch *chunk) has(values []value) bool {
	for _, v := range values {
		if v.off+v.n > len(ch.data) {
			return false
		}
		if version, ok := versionIn(ch.data[v.off:v.off+v.n], v.key); !ok || version != v.version {
			return false
		}
	}
	return true
}

func (c *cluster) inspectSegment(name string, values []value) {
	there, good := 0, 0
	damaged := c.damaged[numberOf(name)] // the damage may have been copied
	c.copiesOf(name, func(n *node, id int, ch *chunk) {
		there++
		switch {
		case ch.has(values):
			good++
		case !ch.bad && !damaged:
			c.wrong("chunk %d of %s counts as a copy of %s, and has not all that was written to that", id, n.name, name)
		}
	})
	if good == 0 {
		c.wrong("none of %d copies of %s has all that was written to it", there, name)
	}
}

// inspectLog opens the heap as the next owner would if it could reach one copy of each segment of the log, the one
// that which selects.
func (c *cluster) inspectLog(m *named.Manifest, which int) {
	found := make([]uint64, c.cfg.keys)
	_, d := namesIn(m.Root)
	if len(m.Root) > 0 {
		for range d.U32() {
			key := d.U32()
			found[key] = d.U64()
			d.Bytes(12)
		}
	}
	next := uint64(0)
	for _, t := range m.Tail {
		var there [][]byte
		c.copiesOf(movedTo(m, t.Number, t.Name), func(_ *node, _ int, ch *chunk) {
			if !ch.bad {
				there = append(there, ch.data)
			}
		})
		if len(there) == 0 { // nothing was written to it; or the check below misses what was
			continue
		}
		if best, end := 0, uint64(0); c.damaged[t.Number] { // the damage may have been copied
			for i, b := range there {
				if e := records(b, t.Number, next, func([]byte) {}); e > end {
					best, end = i, e
				}
			}
			there = there[best : best+1]
		}
		next = records(there[which%len(there)], t.Number, next, func(rec []byte) {
			key := binary.LittleEndian.Uint32(rec)
			if version, ok := versionIn(rec, key); ok {
				found[key] = max(found[key], version)
			}
		})
	}
	for key, floor := range c.floor {
		if found[key] < floor {
			c.wrong("who opened the heap now would find version %d of key %d in copies %d, and version %d was acknowledged or shown", found[key], key, which, floor)
			return
		}
	}
}

// records calls f with the records of a segment of the log, from the one with the number next on, and returns the
// number that would follow. If next is 0, it begins with the first record, whatever its number. Package named says
// how records are written.
func records(b []byte, segment, next uint64, f func(rec []byte)) uint64 {
	if len(b) < 16 || binary.LittleEndian.Uint64(b[8:]) != segment {
		return next
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for off := 16; off+16 <= len(b); {
		end := off + 16 + int(binary.LittleEndian.Uint32(b[off+4:]))
		seed := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, segment), uint64(off))
		if end > len(b) || crc32.Update(crc32.Checksum(seed, table), table, b[off+4:end]) != binary.LittleEndian.Uint32(b[off:]) {
			return next
		}
		switch number := binary.LittleEndian.Uint64(b[off+8:]); {
		case number > next && next != 0 || number == 0:
			return next
		case number == next || next == 0:
			next = number + 1
			f(b[off+16 : end])
		}
		off = end
	}
	return next
}

// numberOf is the number of the segment of that name.
func numberOf(name string) (number uint64) {
	_, _ = fmt.Sscanf(name, "segment %d at ", &number) // 0 if name is no segment's
	return number
}

// movedTo returns the present name of a segment: if its copies have moved, the name that the manifest has for the
// number.
func movedTo(m *named.Manifest, number uint64, name string) string {
	if moved := m.Moved[number]; moved != "" {
		return moved
	}
	return name
}

// copiesOf calls f with the node, id and chunk of each copy of a segment that exists, damaged or not.
func (c *cluster) copiesOf(name string, f func(n *node, id int, ch *chunk)) {
	c.chunksOf(name, func(n *node, id int) {
		if ch := n.chunks[id]; ch != nil {
			f(n, id, ch)
		}
	})
}

// chunksOf calls f with the node and id of each copy of a segment, except copies that were lost with their node's
// memory. The chunk may have been given back.
func (c *cluster) chunksOf(name string, f func(n *node, id int)) {
	_, at, _ := strings.Cut(name, " at ")
	for one := range strings.SplitSeq(at, " and ") {
		on, which, _ := strings.Cut(one, "/")
		var life, id int
		if _, err := fmt.Sscanf(which, "chunk %d.%d", &life, &id); err != nil {
			c.wrong("%q names no segment", name)
		}
		if i := slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == on && n.life == life }); i >= 0 {
			f(c.nodes[i], id)
		}
	}
}

// goodCopies calls f with each copy of a segment that has all that it should.
func (c *cluster) goodCopies(name string, f func(n *node, id int, ch *chunk)) {
	var values []value
	end, number := uint64(0), numberOf(name)
	ends := func(ch *chunk) uint64 { return records(ch.data, number, 0, func([]byte) {}) }
	if c.damaged[number] {
		for other, some := range c.values() {
			if numberOf(other) == number {
				values = append(values, some...)
			}
		}
		if c.ofLog(number) {
			c.copiesOf(name, func(_ *node, _ int, ch *chunk) { end = max(end, ends(ch)) })
		}
	}
	c.copiesOf(name, func(n *node, id int, ch *chunk) {
		if !ch.bad && ch.has(values) && (end == 0 || ends(ch) == end) {
			f(n, id, ch)
		}
	})
}

// ofLog reports whether the segment of that number is of the log.
func (c *cluster) ofLog(number uint64) bool {
	m := c.manifest()
	return m != nil && slices.ContainsFunc(m.Tail, func(t named.Tail) bool { return t.Number == number })
}
