// Package wire is what a region and its pager say to each other over a Unix socket that keeps message boundaries:
// SOCK_SEQPACKET, everything little-endian.
//
// The first message of a client is Attach, with three descriptors: the memory, a memfd of which the size is sealed;
// the table, another such memfd; and the userfaultfd with which the client has registered its mapping of the memory.
// The pager answers with a Reply, whose text is Again if there was a region with the name already. An Attach without
// descriptors, and with Remove, asks the pager to remove the region with the name. Then Requests and Replies follow,
// in any order. The connection ends with the mapping, from either side.
//
// The table has two bits for each page. The first half of the table has a bit that is set while the pager has the
// page, if it is not in the memory and is not zeros. So a client whose pager has died can tell the next pager what is
// lost. The bits of the second half say which of these pages a checkpoint of the pager's heap has as the pager has
// them. The last page of the table begins with a u64, the Mark of the volume that the table belongs to.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	magic   = 0x32524750 // "PGR2"
	fixed   = 40
	reqSize = 32
	repSize = 16
	MaxPins = 1024 // MaxPins is how many ranges of a client may be pinned at a time
)

// Files is how many descriptors an Attach carries.
const Files = 3

// Attach asks for a pager.
type Attach struct {
	Size   uint64 // bytes
	Local  uint64 // bytes that may be in the memory at a time
	Base   uint64 // address of the mapping
	Resume bool   // the client had another pager before
	Remove bool   // there is no memory: the pager is to remove the region with the name
	Name   string // of a region that outlives the client; empty if it does not
	Pins   []Request
}

// MaxName is how long a Name may be, in bytes.
const MaxName = 200

// Again is the text of the reply to an Attach that has found its region.
const Again = "again"

// The flags of an Attach.
const (
	flagResume = 1 << iota
	flagRemove
	flagNamed
)

// TableSize is the size of the table for a memory of size bytes.
func TableSize(size uint64) int { return 2*TableKept(size) + 1<<12 }

// TableKept is where the second half of the table begins: a bit for each page, in whole pages.
func TableKept(size uint64) int { return int((size>>12+1<<15-1)>>15) << 12 }

// What a Request asks for.
const (
	OpPin      uint32 = iota + 1 // bring a range into the memory, and keep it there until OpUnpin
	OpUnpin                      // let go of the range that the request ID has pinned; it has no reply
	OpPrefetch                   // bring a range into the memory as far as there is room; it has no reply
	OpSync                       // make what is in the memory survive the client, and the pager if its heap is kept
)

// Write is a Request's flag: the pinned range will be written to.
const Write uint32 = 1

// Request is a request of a client.
type Request struct {
	ID     uint64
	Op     uint32
	Flags  uint32
	Off, N uint64
}

// Status is how a request has ended.
type Status uint32

// The statuses.
const (
	OK      Status = iota
	Refused        // the request is not allowed, or not now
	Lost           // a page of the range is lost
	Full           // there is no memory for it
	Failed
)

// Reply answers the request with the ID, or the Attach with 0.
type Reply struct {
	ID     uint64
	Status Status
	Text   string
}

var errShort = errors.New("the message is cut off or too long")

// Append appends the message.
func (a Attach) Append(b []byte) []byte {
	flags := uint32(0)
	if a.Resume {
		flags |= flagResume
	}
	if a.Remove {
		flags |= flagRemove
	}
	if a.Name != "" {
		flags |= flagNamed
	}
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint64(b, a.Size)
	b = binary.LittleEndian.AppendUint64(b, a.Local)
	b = binary.LittleEndian.AppendUint64(b, a.Base)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(a.Pins)))
	for _, p := range a.Pins {
		b = p.Append(b)
	}
	return append(b, a.Name...)
}

// ParseAttach reads an Attach.
func ParseAttach(b []byte) (a Attach, err error) {
	if len(b) < fixed || binary.LittleEndian.Uint32(b) != magic {
		return a, errors.New("it does not speak the pager's protocol")
	}
	flags := binary.LittleEndian.Uint32(b[4:])
	a.Size, a.Local = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	a.Base, a.Resume, a.Remove = binary.LittleEndian.Uint64(b[24:]), flags&flagResume != 0, flags&flagRemove != 0
	n := binary.LittleEndian.Uint64(b[32:])
	if b = b[fixed:]; flags >= flagNamed<<1 || n > MaxPins || uint64(len(b)) < n*reqSize {
		return a, errShort
	}
	b, a.Name = b[:n*reqSize], string(b[n*reqSize:])
	if named := flags&flagNamed != 0; named != (a.Name != "") || len(a.Name) > MaxName || a.Remove && !named {
		return a, fmt.Errorf("its name has %d bytes, want 1 to %d if it has one: %w", len(a.Name), MaxName, errShort)
	}
	for ; len(b) > 0; b = b[reqSize:] {
		p, err := ParseRequest(b[:reqSize])
		if err != nil || p.Op != OpPin {
			return a, fmt.Errorf("what is pinned cannot be read: %w", errShort)
		}
		a.Pins = append(a.Pins, p)
	}
	return a, nil
}

// Append appends the message.
func (r Request) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.ID)
	b = binary.LittleEndian.AppendUint32(b, r.Op)
	b = binary.LittleEndian.AppendUint32(b, r.Flags)
	b = binary.LittleEndian.AppendUint64(b, r.Off)
	return binary.LittleEndian.AppendUint64(b, r.N)
}

// ParseRequest reads a Request.
func ParseRequest(b []byte) (r Request, err error) {
	if len(b) != reqSize {
		return r, errShort
	}
	r = Request{
		binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]),
		binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:]),
	}
	if r.ID == 0 || r.Op < OpPin || r.Op > OpSync || r.Flags > Write {
		return r, fmt.Errorf("there is no request %d with flags %#x and ID %d", r.Op, r.Flags, r.ID)
	}
	return r, nil
}

// Append appends the message.
func (r Reply) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.ID)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Status))
	return append(b, r.Text...)
}

// ParseReply reads a Reply.
func ParseReply(b []byte) (r Reply, err error) {
	if len(b) < repSize || binary.LittleEndian.Uint64(b[8:]) > uint64(Failed) {
		return r, errShort
	}
	return Reply{binary.LittleEndian.Uint64(b), Status(b[8]), string(b[repSize:])}, nil
}
