// Package wire has the messages between a client and the components of a memory node. They are SENDs on a queue pair
// of their own, so that components delay neither memory management nor one-sided access.
//
// Everything is little-endian. Decoding copies nothing and allocates nothing;
// it refuses what it does not know, because the peer may be hostile. CRCs are
// Castagnoli's, over everything after themselves.
//
// The queue pair is connected with a Hello of package memnode/wire, of kind
// component, and the node's answer is a Welcome, 16 bytes:
//
//	 0  u32  magic "PAC1"
//	 4  u16  credits: requests that may be unanswered
//	 6  u16  0
//	 8  u32  most bytes of a message
//	12  u32  longest that a request may run, in milliseconds
//
// A Request has a header of 64 bytes, and then the key and the data:
//
//	 0  u32  CRC32C
//	 4  u32  length, of all of it
//	 8  u32  id, which the reply carries back
//	12  u8   verb: 1 construct, 2 destruct, 3 read, 4 write, 5 delete, 6 compute
//	13  u8   0
//	14  u16  opcode of compute, otherwise 0
//	16  u64  object; construct: 0
//	24  u64  0
//	32  u64  0
//	40  u32  time that the client waits, in microseconds
//	44  u32  length of the key: the component's name, or an object's id
//	48  u32  most bytes of data that the client takes
//	52  [12] zero
//
// A Reply has a header of 32 bytes, and then data; if the request has failed, the data is text that says why:
//
//	 0  u32  CRC32C
//	 4  u32  length, of all of it
//	 8  u32  id
//	12  u8   verb | 0x80
//	13  u8   status
//	14  u16  0
//	16  u64  object: construct's
//	24  u64  0
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// Sizes in bytes.
const (
	WelcomeSize   = 16
	RequestHeader = 64
	ReplyHeader   = 32
)

// Limits of what a node may offer.
const (
	MaxCredits = 64
	MinMessage = 1 << 10
	MaxMessage = 1 << 20
)

const magic = 'P' | 'A'<<8 | 'C'<<16 | '1'<<24

// ErrMalformed is what every decoder's error Is.
var ErrMalformed = errors.New("malformed message")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Verb is what a request asks an object to do (AIFM, section 4.2.4).
type Verb uint8

const (
	Construct Verb = 1 + iota
	Destruct
	Read
	Write
	Delete
	Compute

	verbEnd
)

func (v Verb) String() string {
	switch v {
	case Construct:
		return "construct"
	case Destruct:
		return "destruct"
	case Read:
		return "read"
	case Write:
		return "write"
	case Delete:
		return "delete"
	case Compute:
		return "compute"
	}
	return fmt.Sprintf("Verb(%d)", uint8(v))
}

// Status is how a request ended.
type Status uint8

const (
	OK        Status = iota
	NotFound         // the object has nothing under that key
	Refused          // the component refused the request
	NoMemory         // the client's memory for components is used up
	Unknown          // the node has no component of that name
	NoObject         // there is no such object, or no longer
	Lost             // the object went with the process that held it
	Panicked         // the component panicked, and the object is lost
	Expired          // the request's time was over before it could run
	TooLarge         // the reply does not fit
	Malformed        // the request makes no sense
	Busy             // the node runs as many components as it may

	statusEnd
)

func (s Status) String() string {
	names := [...]string{"ok", "not found", "refused", "no memory left", "no such component", "no such object",
		"object is lost", "component panicked", "timed out at the node", "reply is too large", "malformed request", "no room for components"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// Welcome is the node's answer to a client that connects.
type Welcome struct {
	Credits int           // requests that may be unanswered
	Message int           // most bytes of a message
	Time    time.Duration // longest that a request may run, in milliseconds
}

// Append appends w's encoding to b.
func (w *Welcome) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = binary.LittleEndian.AppendUint16(b, uint16(w.Credits))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(w.Message))
	return binary.LittleEndian.AppendUint32(b, uint32(w.Time.Milliseconds()))
}

// Decode sets w from b.
func (w *Welcome) Decode(b []byte) error {
	switch {
	case len(b) != WelcomeSize:
		return fmt.Errorf("%w: a welcome of %d bytes, want %d", ErrMalformed, len(b), WelcomeSize)
	case binary.LittleEndian.Uint32(b) != magic || b[6] != 0 || b[7] != 0:
		return fmt.Errorf("%w: this is no welcome of a node's components", ErrMalformed)
	}
	d := Welcome{
		Credits: int(binary.LittleEndian.Uint16(b[4:])),
		Message: int(binary.LittleEndian.Uint32(b[8:])),
		Time:    time.Duration(binary.LittleEndian.Uint32(b[12:])) * time.Millisecond,
	}
	switch {
	case d.Credits < 1 || d.Credits > MaxCredits:
		return fmt.Errorf("%w: %d credits, want 1 to %d", ErrMalformed, d.Credits, MaxCredits)
	case d.Message < MinMessage || d.Message > MaxMessage:
		return fmt.Errorf("%w: messages of %d bytes, want %d to %d", ErrMalformed, d.Message, MinMessage, MaxMessage)
	}
	*w = d
	return nil
}

// Request is a client's message. Key and Data alias the buffer that it was
// decoded from.
type Request struct {
	ID     uint32
	Verb   Verb
	Op     uint16
	Object uint64
	Time   time.Duration // in microseconds, less than 72 minutes
	Room   uint32        // most bytes of data that the client takes
	Key    []byte
	Data   []byte
}

// Size is how many bytes r's encoding has.
func (r *Request) Size() int { return RequestHeader + len(r.Key) + len(r.Data) }

// Append appends r's encoding to b.
func (r *Request) Append(b []byte) []byte {
	start := len(b)
	var h [RequestHeader]byte
	le := binary.LittleEndian
	le.PutUint32(h[4:], uint32(r.Size()))
	le.PutUint32(h[8:], r.ID)
	h[12] = byte(r.Verb)
	le.PutUint16(h[14:], r.Op)
	le.PutUint64(h[16:], r.Object)
	le.PutUint32(h[40:], uint32(r.Time.Microseconds()))
	le.PutUint32(h[44:], uint32(len(r.Key)))
	le.PutUint32(h[48:], r.Room)
	b = append(b, h[:]...)
	b = append(b, r.Key...)
	b = append(b, r.Data...)
	seal(b[start:])
	return b
}

// Decode sets r from b. If b has a header at all, r.ID and r.Verb are set even
// when the rest is malformed, so that the refusal can be addressed.
func (r *Request) Decode(b []byte) error {
	*r = Request{}
	if len(b) < RequestHeader {
		return fmt.Errorf("%w: a request of %d bytes, want at least %d", ErrMalformed, len(b), RequestHeader)
	}
	le := binary.LittleEndian
	r.ID, r.Verb = le.Uint32(b[8:]), Verb(b[12])
	key := uint64(le.Uint32(b[44:]))
	switch {
	case le.Uint32(b[4:]) != uint32(len(b)):
		return fmt.Errorf("%w: a request of %d bytes says it has %d", ErrMalformed, len(b), le.Uint32(b[4:]))
	case le.Uint32(b) != crc32.Checksum(b[4:], castagnoli):
		return fmt.Errorf("%w: a request fails its checksum", ErrMalformed)
	case r.Verb < Construct || r.Verb >= verbEnd:
		return fmt.Errorf("%w: unknown verb %d", ErrMalformed, uint8(r.Verb))
	case b[13] != 0 || !allZero(b[24:40]) || !allZero(b[52:RequestHeader]):
		return fmt.Errorf("%w: reserved bytes of a request are not zero", ErrMalformed)
	case r.Verb != Compute && le.Uint16(b[14:]) != 0:
		return fmt.Errorf("%w: %v has an opcode", ErrMalformed, r.Verb)
	case (le.Uint64(b[16:]) == 0) != (r.Verb == Construct):
		return fmt.Errorf("%w: %v of object %#x", ErrMalformed, r.Verb, le.Uint64(b[16:]))
	case RequestHeader+key > uint64(len(b)):
		return fmt.Errorf("%w: a key of %d bytes in a request of %d", ErrMalformed, key, len(b))
	}
	r.Op = le.Uint16(b[14:])
	r.Object = le.Uint64(b[16:])
	r.Time = time.Duration(le.Uint32(b[40:])) * time.Microsecond
	r.Room = le.Uint32(b[48:])
	r.Key, r.Data = b[RequestHeader:RequestHeader+key:RequestHeader+key], b[RequestHeader+key:]
	return nil
}

// Reply is a node's message. Data aliases the buffer that it was decoded from.
type Reply struct {
	ID     uint32
	Verb   Verb
	Status Status
	Object uint64
	Data   []byte // what went wrong, unless Status is OK
}

// Put encodes r into b, and returns how many bytes the reply has. The caller has already written data bytes of Data
// into b, at ReplyHeader.
//
// Preconditions: b has room for the reply.
func (r *Reply) Put(b []byte, data int) int {
	h := b[:ReplyHeader]
	clear(h)
	le := binary.LittleEndian
	le.PutUint32(h[4:], uint32(ReplyHeader+data))
	le.PutUint32(h[8:], r.ID)
	h[12], h[13] = byte(r.Verb)|0x80, byte(r.Status)
	le.PutUint64(h[16:], r.Object)
	seal(b[:ReplyHeader+data])
	return ReplyHeader + data
}

// Decode sets r from b.
func (r *Reply) Decode(b []byte) error {
	*r = Reply{}
	if len(b) < ReplyHeader {
		return fmt.Errorf("%w: a reply of %d bytes, want at least %d", ErrMalformed, len(b), ReplyHeader)
	}
	le := binary.LittleEndian
	switch {
	case le.Uint32(b[4:]) != uint32(len(b)):
		return fmt.Errorf("%w: a reply of %d bytes says it has %d", ErrMalformed, len(b), le.Uint32(b[4:]))
	case le.Uint32(b) != crc32.Checksum(b[4:], castagnoli):
		return fmt.Errorf("%w: a reply fails its checksum", ErrMalformed)
	case b[12] < 0x80 || Status(b[13]) >= statusEnd:
		return fmt.Errorf("%w: unknown reply %#x, status %d", ErrMalformed, b[12], b[13])
	case b[14] != 0 || b[15] != 0 || !allZero(b[24:ReplyHeader]):
		return fmt.Errorf("%w: reserved bytes of a reply are not zero", ErrMalformed)
	}
	r.ID, r.Verb, r.Status = le.Uint32(b[8:]), Verb(b[12]&0x7f), Status(b[13])
	r.Object, r.Data = le.Uint64(b[16:]), b[ReplyHeader:]
	return nil
}

func seal(b []byte) {
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
