package scan

import (
	"encoding/binary"
	"fmt"

	"polder/far/index"
	"polder/far/record"
	"polder/memnode/component"
)

// Limits of a FindRequest.
const (
	// MaxFinds is the most entries that are looked for at once.
	MaxFinds = 128
	// MaxPlaces is the most segments that a request says the places of.
	MaxPlaces = 1024
	// MaxLeaf is the most bytes that the record of a leaf has.
	MaxLeaf = 32 << 10
	// MaxSegment is the highest number of a segment whose place can be said.
	MaxSegment = 1<<18 - 1
)

// A FindRequest asks for entries of a map, by leaves of its index.
type FindRequest struct {
	Owner  uint16
	Units  uint32 // of record.Unit bytes in a segment
	Places []Place
	Finds  []Find
}

// A Place says where a segment is. Far addresses call the segment by its Number.
type Place struct {
	Number uint32
	Chunk  uint32 // the node's number of its first chunk
	Seed   uint32
}

// A Find asks for an entry by the hash of its key, and says where the leaf is that knows the entry.
type Find struct {
	Chunk uint32 // the node's number of the first chunk of the leaf's segment
	Seed  uint32 // of that segment
	Off   uint32 // of the leaf in that segment, in units
	N     uint32 // the most bytes that the leaf's record has
	Hash  uint64
}

const (
	findHeaderSize = 16
	placeSize      = 12
	findSize       = 24
)

// Append appends r's encoding to b.
func (r *FindRequest) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, r.Units)
	b = le.AppendUint16(b, r.Owner)
	b = le.AppendUint16(b, uint16(len(r.Places)))
	b = le.AppendUint32(b, uint32(len(r.Finds)))
	b = le.AppendUint32(b, 0)
	for _, p := range r.Places {
		b = le.AppendUint32(b, p.Number)
		b = le.AppendUint32(b, p.Chunk)
		b = le.AppendUint32(b, p.Seed)
	}
	for _, f := range r.Finds {
		b = le.AppendUint32(b, f.Chunk)
		b = le.AppendUint32(b, f.Seed)
		b = le.AppendUint32(b, f.Off)
		b = le.AppendUint32(b, f.N)
		b = le.AppendUint64(b, f.Hash)
	}
	return b
}

// Decode sets r from b, which may be anything, and may change meanwhile: nothing in it is
// looked at twice. It refuses what is beyond the limits.
func (r *FindRequest) Decode(b []byte) error {
	le := binary.LittleEndian
	if len(b) < findHeaderSize {
		return fmt.Errorf("%w: %d bytes, want at least %d", errMalformed, len(b), findHeaderSize)
	}
	r.Units, r.Owner = le.Uint32(b), le.Uint16(b[4:])
	places, finds := int(le.Uint16(b[6:])), int(le.Uint32(b[8:]))
	switch {
	case places > MaxPlaces || finds > MaxFinds:
		return fmt.Errorf("%w: %d places and %d entries, want at most %d and %d", errMalformed, places, finds, MaxPlaces, MaxFinds)
	case len(b) != findHeaderSize+places*placeSize+finds*findSize:
		return fmt.Errorf("%w: %d bytes with %d places and %d entries", errMalformed, len(b), places, finds)
	case r.Units == 0 || r.Units > 1<<27 || le.Uint32(b[12:]) != 0:
		return fmt.Errorf("%w: segments of %d units", errMalformed, r.Units)
	}
	b = b[findHeaderSize:]
	r.Places, r.Finds = r.Places[:0], r.Finds[:0]
	for range places {
		p := Place{Number: le.Uint32(b), Chunk: le.Uint32(b[4:]), Seed: le.Uint32(b[8:])}
		if p.Number > MaxSegment {
			return fmt.Errorf("%w: segment %d, want at most %d", errMalformed, p.Number, MaxSegment)
		}
		r.Places = append(r.Places, p)
		b = b[placeSize:]
	}
	for range finds {
		f := Find{Chunk: le.Uint32(b), Seed: le.Uint32(b[4:]), Off: le.Uint32(b[8:]), N: le.Uint32(b[12:]), Hash: le.Uint64(b[16:])}
		if f.N < record.HeaderSize || f.N > MaxLeaf {
			return fmt.Errorf("%w: a leaf of %d bytes, want %d to %d", errMalformed, f.N, record.HeaderSize, MaxLeaf)
		}
		r.Finds = append(r.Finds, f)
		b = b[findSize:]
	}
	return nil
}

// What is found for a Find.
const (
	Nothing = iota // not even the leaf
	Entry          // the entry's record, which lies at the address
	Leaf           // the leaf's record; the address is that of an entry that could not be looked at, or 0
)

// FoundSize is the bytes in front of the record in what was found for each Find.
const FoundSize = 16

// Found decodes the first of the results in b, which may be anything, and returns the rest of b. It reports false if
// the result makes no sense.
func Found(b []byte) (what int, addr uint64, rec, rest []byte, ok bool) {
	if len(b) < FoundSize {
		return 0, 0, nil, nil, false
	}
	le := binary.LittleEndian
	n := int(le.Uint32(b[8:]))
	if what = int(le.Uint32(b[12:])); what > Leaf || n > len(b)-FoundSize {
		return 0, 0, nil, nil, false
	}
	return what, le.Uint64(b), b[FoundSize : FoundSize+n : FoundSize+n], b[FoundSize+n:], true
}

// finder is what a scanner knows of where segments are.
type finder struct {
	req    FindRequest
	places []Place // by number; those of which nothing is known have a Seed and a Chunk of 0
}

// learn remembers what f.req says of segments.
func (f *finder) learn(env *component.Env) error {
	for _, p := range f.req.Places {
		if n := int(p.Number) + 1; n > len(f.places) {
			more := max(n, 2*len(f.places), 64) - len(f.places)
			if err := env.Reserve(more * placeSize); err != nil {
				return err
			}
			places := make([]Place, len(f.places)+more)
			copy(places, f.places)
			f.places = places
		}
		f.places[p.Number] = p
	}
	return nil
}

// find appends to out what it has found for every Find, without records for which there is no room. It reads with
// read, as a scanner does.
func (f *finder) find(read func(chunk uint32, off uint64, b []byte) error, scratch, out []byte) ([]byte, error) {
	if len(f.req.Finds)*FoundSize > cap(out)-len(out) {
		return nil, component.ErrTooLarge
	}
	for i := range f.req.Finds {
		room := cap(out) - len(out) - (len(f.req.Finds)-i)*FoundSize
		what, addr, rec, err := f.one(read, &f.req.Finds[i], scratch)
		if err != nil {
			return nil, err
		}
		if len(rec) > room {
			what, rec = Nothing, nil
		}
		le := binary.LittleEndian
		out = le.AppendUint64(out, addr)
		out = le.AppendUint32(out, uint32(len(rec)))
		out = le.AppendUint32(out, uint32(what))
		out = append(out, rec...)
	}
	return out, nil
}

// one looks for one entry.
func (f *finder) one(read func(chunk uint32, off uint64, b []byte) error, q *Find, scratch []byte) (what int, addr uint64, rec []byte, err error) {
	leaf, scratch := scratch[:q.N], scratch[MaxLeaf:]
	off := int(q.Off) * record.Unit
	if err := read(q.Chunk, uint64(off), leaf); err != nil {
		return Nothing, 0, nil, err
	}
	page, err := record.Decode(leaf, q.Seed, off)
	if err != nil || page.Kind() != record.Page || page.Owner() != f.req.Owner {
		return Nothing, 0, nil, nil // the heap reads it, and finds out what is wrong
	}
	slots, ok := index.Unchecked(page.Body())
	if !ok {
		return Nothing, 0, nil, nil
	}
	tag := uint32(q.Hash)
	for k := slots.Find(tag); k < slots.Len() && slots.At(k).Tag == tag; k++ {
		word := slots.At(k).Word
		if word.IsLost() {
			continue
		}
		addr = word.Addr()
		number, at := addr/uint64(f.req.Units), int(addr%uint64(f.req.Units))*record.Unit
		if number >= uint64(len(f.places)) {
			continue
		}
		b := scratch[:min(word.Size(), int(f.req.Units)*record.Unit-at, len(scratch))]
		// The number may have belonged to another segment when the client said where it is: then the bytes do not
		// decode.
		if len(b) == 0 || read(f.places[number].Chunk, uint64(at), b) != nil {
			continue
		}
		e, err := record.Decode(b, f.places[number].Seed, at)
		if err == nil && e.Kind() == record.Entry && e.Owner() == f.req.Owner && e.Number() == q.Hash {
			return Entry, addr, e, nil
		}
	}
	return Leaf, addr, page, nil
}
