package broker

import (
	"encoding/binary"
	"errors"
	"fmt"

	"polder/memnode/twolayer"
	"polder/verbs"
)

// A request is 24 bytes, in little-endian order:
//
//	 0  u8   op
//	 1  u8   class
//	 2  u16  node
//	 4  u32  first chunk
//	 8  u64  session
//	16  u64  0
//
// An answer is 56 bytes and its keys:
//
//	 0  u8   status
//	 1  u8   least class
//	 2  u16  keys that follow
//	 4  u32  first chunk
//	 8  u64  session
//	16  u64  address
//	24  u64  bytes of a chunk of the least class
//	32  u32  chunks of the least class at the node
//	36  u32  grace period in milliseconds
//	40  u32  chunks free at the node, as far as is known
//	44  u32  chunks that this application may still have
//	48  u64  0
//	56  u32  keys
const (
	requestSize = 24
	answerSize  = 56
	maxKeys     = 1 << (twolayer.Classes - 1 - twolayer.SectionClass)
)

type op uint8

const (
	opAttach op = 1 // begins a session with a node, or goes on with it
	opAlloc  op = 2
	opFree   op = 3
)

type status uint8

const (
	statusOK       status = 0
	statusNoMemory status = 1
	statusBudget   status = 2
	statusNotOwner status = 3
	statusStale    status = 4 // the session is over
	statusDown     status = 5 // the node cannot be reached now
	statusBad      status = 6 // the request makes no sense; the connection ends
)

var errMalformed = errors.New("malformed message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// request asks for something at a node.
type request struct {
	op      op
	class   uint8
	node    uint16
	first   uint32
	session uint64 // as opAttach has answered it
}

// encode writes r to b.
//
// Preconditions: b has requestSize bytes.
func (r *request) encode(b []byte) {
	b[0], b[1] = byte(r.op), r.class
	binary.LittleEndian.PutUint16(b[2:], r.node)
	binary.LittleEndian.PutUint32(b[4:], r.first)
	binary.LittleEndian.PutUint64(b[8:], r.session)
	binary.LittleEndian.PutUint64(b[16:], 0)
}

// decode sets r from b.
func (r *request) decode(b []byte) error {
	if len(b) != requestSize {
		return malformed("request of %d bytes, want %d", len(b), requestSize)
	}
	*r = request{
		op: op(b[0]), class: b[1], node: binary.LittleEndian.Uint16(b[2:]),
		first: binary.LittleEndian.Uint32(b[4:]), session: binary.LittleEndian.Uint64(b[8:]),
	}
	switch {
	case r.op < opAttach || r.op > opFree:
		return malformed("request of unknown kind %d", r.op)
	case r.class >= twolayer.Classes:
		return malformed("request for class %d, want less than %d", r.class, twolayer.Classes)
	case r.op == opAttach && (r.class != 0 || r.session != 0) || r.op != opFree && r.first != 0 ||
		binary.LittleEndian.Uint64(b[16:]) != 0:
		return malformed("request with reserved bits set")
	}
	return nil
}

// answer is what became of a request.
type answer struct {
	status  status
	least   uint8
	first   uint32
	session uint64
	addr    uint64
	chunk   uint64
	chunks  uint32
	grace   uint32
	free    uint32
	budget  uint32
	keys    []verbs.RKey
}

// append appends a's encoding to b.
func (a *answer) append(b []byte) []byte {
	b = append(b, byte(a.status), a.least)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(a.keys)))
	b = binary.LittleEndian.AppendUint32(b, a.first)
	b = binary.LittleEndian.AppendUint64(b, a.session)
	b = binary.LittleEndian.AppendUint64(b, a.addr)
	b = binary.LittleEndian.AppendUint64(b, a.chunk)
	b = binary.LittleEndian.AppendUint32(b, a.chunks)
	b = binary.LittleEndian.AppendUint32(b, a.grace)
	b = binary.LittleEndian.AppendUint32(b, a.free)
	b = binary.LittleEndian.AppendUint32(b, a.budget)
	b = binary.LittleEndian.AppendUint64(b, 0)
	for _, k := range a.keys {
		b = binary.LittleEndian.AppendUint32(b, uint32(k))
	}
	return b
}

// decode sets a from the beginning of b, reusing a's keys.
func (a *answer) decode(b []byte) error {
	if len(b) < answerSize {
		return malformed("answer of %d bytes, want at least %d", len(b), answerSize)
	}
	keys := a.keys[:0]
	*a = answer{
		status: status(b[0]), least: b[1], first: binary.LittleEndian.Uint32(b[4:]),
		session: binary.LittleEndian.Uint64(b[8:]), addr: binary.LittleEndian.Uint64(b[16:]),
		chunk: binary.LittleEndian.Uint64(b[24:]), chunks: binary.LittleEndian.Uint32(b[32:]),
		grace: binary.LittleEndian.Uint32(b[36:]), free: binary.LittleEndian.Uint32(b[40:]),
		budget: binary.LittleEndian.Uint32(b[44:]),
	}
	n := int(binary.LittleEndian.Uint16(b[2:]))
	switch {
	case a.status > statusBad:
		return malformed("answer with unknown status %d", a.status)
	case a.least >= twolayer.Classes:
		return malformed("answer with class %d, want less than %d", a.least, twolayer.Classes)
	case n > maxKeys || len(b) < answerSize+4*n:
		return malformed("answer with %d keys in %d bytes", n, len(b))
	case binary.LittleEndian.Uint64(b[48:]) != 0:
		return malformed("answer with reserved bits set")
	}
	for i := range n {
		keys = append(keys, verbs.RKey(binary.LittleEndian.Uint32(b[answerSize+4*i:])))
	}
	a.keys = keys
	return nil
}
