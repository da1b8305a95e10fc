// Package scan looks through far objects where they lie. It is the half of package far/remote that runs at the memory
// node, as an active component (AIFM, section 4.2.4).
//
// A client's heap says where, in the chunks that it has borrowed, the records of its objects are, and what it wants
// to know of their elements: a sum, a count, the least and the greatest, or which of them match. Code does not
// travel; the operations are a closed set. What comes back is 32 bytes, or a bit for every element, or the wanted
// elements of large objects.
//
// The node trusts nothing of what it is asked. The chunks must be the client's, before and after they are read
// (component.Chunks). Every record is copied before it is looked at, since its owner may write there meanwhile; it
// must have the checksum of its place, and the number, the owner and the size that the heap says. A record that does
// not have them ends the request: the heap then reads those objects itself, and finds out what is wrong. A request
// has at most [MaxBytes] of records and [MaxRuns] runs, so its time is bounded; that makes the component Bounded.
//
// # Request
//
// Construct takes no parameters. The opcodes Aggregate and Filter take a [Request], which is
//
//	 0  u64  of objects, every record's version is greater than this
//	 8  u32  bytes of an object, all of which elements fill
//	12  u16  owner
//	14  u8   kind of the numbers that are added up (internal/offload), 0: elements are counted
//	15  u8   conditions
//	16  u32  bytes of an element
//	20  u32  offset of the number in it
//	24  u32  runs
//	28  u32  0: the runs are of objects; 1: of entries of a map, each a run, whose values are the elements
//
// then conditions of
//
//	 0  [8]  operand, padded with zeros
//	 8  u32  offset of the number in an element
//	12  u8   its kind
//	13  u8   how it compares
//	14  u16  zero
//
// and runs of
//
//	 0  u32  chunk where the segment begins
//	 4  u32  seed of the segment (far/record)
//	 8  u32  offset of the first record in the segment, in units of 16 bytes
//	12  u32  records, which lie side by side; of an entry, the bytes that its record has at the most
//	16  u64  number of the first object; the other numbers follow it; of an entry, the lowest 32 bits of its number
//
// all little-endian. Aggregate answers with an offload.Aggregate, Filter with the bits of every record, in the order
// of the request, each record's in bytes of its own.
//
// The opcode Gather takes the same request, of objects, without conditions or a number to add up. A run of it is one
// element:
//
//	12  u32  which element of the object it is
//
// and the other fields say which object that is, as in other requests. It answers with the elements' bytes, in the
// order of the runs, at most [MaxAnswer]. Runs of the same record follow each other: the node reads and checks the
// record once. So, of objects of up to [MaxRecord], only the wanted elements travel. The client writes them to where
// they go, since no node writes to memory that it has lent.
//
// The opcode Lookup looks entries of a map up, by leaves of its index (far/index) that are at the node: so the client
// need not read a leaf before it reads the entry. A leaf has far addresses, in which segments have numbers. If the
// node is asked for something in a segment and does not know where that segment is, the client tells it with a later
// request. The request is
//
//	 0  u32  units of 16 bytes in a segment
//	 4  u16  owner
//	 6  u16  places
//	 8  u32  entries
//	12  u32  zero
//
// then places of u32 number of the segment, u32 its first chunk, u32 its seed, and entries of
//
//	 0  u32  chunk where the leaf's segment begins
//	 4  u32  that segment's seed
//	 8  u32  offset of the leaf in it, in units
//	12  u32  bytes of the leaf's record at the most
//	16  u64  hash of the key
//
// The answer has, for each entry that was asked for, u64 address, u32 length, u32 what was found ([Entry], [Leaf] or
// [Nothing]), and the record. The record is the leaf's if the leaf has no such entry, or has one that the node cannot
// look at: the client goes on with the leaf. An answer is only a claim: the client checks it as it checks what it
// reads.
package scan

import (
	"errors"
	"fmt"

	"polder/internal/offload"
	"polder/memnode/component"
)

// Name is what the component is called.
const Name = "scan"

// Component is what the program of a node must have, so that clients' heaps can compute there.
var Component = component.Component{New: New, Bounded: true}

// scanner is the component's object.
type scanner struct {
	env     *component.Env
	scratch []byte
	req     Request
	finder  finder
}

// New constructs a scanner. It is a component.Constructor.
func New(env *component.Env, _ *component.Call, params []byte) (component.Object, error) {
	if len(params) != 0 {
		return nil, fmt.Errorf("a scanner takes no parameters, got %d bytes", len(params))
	}
	if err := env.Reserve(MaxRuns*32 + MaxPlaces*placeSize + MaxFinds*findSize); err != nil { // of requests
		return nil, err
	}
	scratch, err := env.Alloc(MaxRecord + MaxLeaf)
	if err != nil {
		return nil, err
	}
	return &scanner{env: env, scratch: scratch}, nil
}

// askEvery is how many bytes a request reads before it checks again whether anybody still waits.
const askEvery = 32 << 10

var (
	errNothing = errors.New("a scanner has nothing under a key")
	errForeign = errors.New("the chunk is not this client's")
)

// Read implements component.Object.
func (*scanner) Read(*component.Call, []byte, []byte) ([]byte, error) { return nil, errNothing }

// Write implements component.Object.
func (*scanner) Write(*component.Call, []byte, []byte) error { return errNothing }

// Delete implements component.Object.
func (*scanner) Delete(*component.Call, []byte) error { return errNothing }

// Compute implements component.Object.
func (s *scanner) Compute(c *component.Call, op uint16, in, out []byte) ([]byte, error) {
	if op < Aggregate || op > Gather {
		return nil, fmt.Errorf("a scanner has no operation %d", op)
	}
	if c.Chunks == nil {
		return nil, errors.New("this node lends by a manager that does not tell whose a chunk is")
	}
	unasked := 0 // bytes that were read since it was last checked whether anybody still waits
	look := func(chunk uint32, off uint64, b []byte) error {
		unasked += len(b)
		switch {
		case unasked >= askEvery && c.Expired():
			return component.ErrExpired
		case !c.Chunks.Read(chunk, off, b):
			return errForeign
		}
		unasked %= askEvery
		return nil
	}
	if op == Lookup {
		if err := s.finder.req.Decode(in); err != nil {
			return nil, err
		}
		if err := s.finder.learn(s.env); err != nil {
			return nil, err
		}
		return s.finder.find(look, s.scratch, out)
	}
	if err := s.req.Decode(op, in); err != nil {
		return nil, err
	}
	read := func(run *Run, off uint64, b []byte) error { return look(run.Chunk, off, b) }
	scratch := s.scratch[:MaxRecord]
	switch op {
	case Gather:
		if len(s.req.Runs)*s.req.Scan.Stride > cap(out)-len(out) {
			return nil, component.ErrTooLarge
		}
		return s.req.Gather(read, scratch, out)
	case Filter:
		if s.req.FilterSize() > cap(out)-len(out) {
			return nil, component.ErrTooLarge
		}
		return s.req.Filter(read, scratch, out)
	}
	a, err := s.req.Aggregate(read, scratch)
	if err != nil {
		return nil, err
	}
	if cap(out)-len(out) < offload.AggregateSize {
		return nil, component.ErrTooLarge
	}
	return a.Append(out), nil
}
