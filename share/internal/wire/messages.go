// Package wire is what clients and the daemon say to each other.
//
// A request is an operation, a byte, and its fields; a reply is a [Status], a
// byte, and its fields, or a text if the status is an error. Integers are
// little-endian and of fixed size, keys and texts carry their length in two
// bytes. On a Unix socket each message is one packet and may carry
// descriptors; on TLS it follows its length in four bytes. Short requests of
// a client that is busy go through its mailbox instead: see package shm.
//
//	op        request                                    reply
//	Hello     version flags token name refs maps owned   session token server-flags owned-regions  +table +mailbox
//	Alloc     length page-size pool                      region length page-size base offset durable handle
//	                                                     +writable descriptor
//	Release   handle                                     -
//	Put       region n*(page length ttl key)             n*status
//	Lookup    flags n*key                                n*location handles
//	Exists    n*key                                      n*byte
//	Delete    n*key                                      n*status
//	Pin       n*key                                      count
//	Unpin     n*key                                      n*status
//	Map       handle                                     length page-size offset shared  +read-only descriptor
//	Unmap     region                                     -
//	Unref     n*page                                     -
//	Evict     pages                                      count
//	Stats     -                                          JSON
//	List      what prefix after limit                    JSON
//	Watch     -                                          -, then notices: region kind
//	Bye       -                                          -
//	Kick      session                                    -
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the version of the protocol.
const Version = 1

// Limits.
const (
	MaxKey   = 512  // bytes of a key, at least 1
	MaxBatch = 1024 // keys of a request
	MaxName  = 128  // bytes of a client's name
	MaxRefs  = 8192 // references of a client, so that Hello can tell of them and of many mappings
)

// Op is an operation.
type Op uint8

// The operations.
const (
	Hello Op = iota + 1
	Alloc
	_ // its number is not used again
	Release
	Put
	Lookup
	Exists
	Delete
	Pin
	Unpin
	Map
	Unmap
	Unref
	Evict
	Stats
	List
	Watch
	Bye
	Kick

	// LastOp is the last of them.
	LastOp = Kick
)

var opNames = [...]string{Hello: "hello", Alloc: "alloc", Release: "release", Put: "put", Lookup: "lookup",
	Exists: "exists", Delete: "delete", Pin: "pin", Unpin: "unpin", Map: "map", Unmap: "unmap", Unref: "unref", Evict: "evict",
	Stats: "stats", List: "list", Watch: "watch", Bye: "bye", Kick: "kick"}

func (op Op) String() string {
	if int(op) < len(opNames) && opNames[op] != "" {
		return opNames[op]
	}
	return fmt.Sprintf("op(%d)", uint8(op))
}

// Status is the outcome of a request, or of one key of a batch.
type Status uint8

// The outcomes.
const (
	OK       Status = iota
	Existed         // the key was there before: the first writer has won
	NotFound        // no such key, region or reference
	Pinned          // the key is pinned
	Denied          // the handle, the owner or the user does not allow it
	Full            // no pool has room
	Quota           // the tenant's quota is used up
	Invalid         // the request makes no sense
	NoLog           // the log cannot take the record: the disk is full
	Busy            // too many connections or sessions
	Failed          // the daemon has failed
	Gone            // the page has held a key, and is not free yet
)

var statusNames = [...]string{"ok", "existed", "not found", "pinned", "denied", "full", "quota", "invalid", "log full", "busy", "failed", "gone"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Flags of Hello, of its reply, and of Lookup.
const (
	HelloLease    = 1 << 0 // a lease comes with the message
	HelloLane     = 1 << 1 // one more connection of a session that is attached
	HelloMailbox  = 1 << 2 // a mailbox is wanted
	HelloLRU      = 1 << 0 // in the reply: tell of the pages you look at
	HelloResumed  = 1 << 1 // in the reply: the token was known
	LookupRef     = 1 << 0 // count a reference for each key found
	LookupHandles = 1 << 1 // send the handles of all regions, even if they were sent before
)

// Notice is what the daemon tells without being asked, behind a region's number.
type Notice uint8

// The notices.
const (
	Freed    Notice = iota // a region that the client maps is freed: unmap it
	Recalled               // return a region of the client's own, as others need memory
)

// Location is where a key lies.
type Location struct {
	Found   bool
	Region  uint64
	Offset  uint64 // in the region
	Length  uint64
	Page    uint32 // in the table
	Word    uint64 // of the page
	Maru    bool   // it lies in a region of Maru's and not in a page; Word identifies the registration
	Expires int64  // Unix milliseconds, 0 for never
}

// AppendLocation encodes l.
func (b Writer) AppendLocation(l Location) Writer {
	if !l.Found {
		return b.U8(0)
	}
	found := uint8(1)
	if l.Maru {
		found = 2
	}
	return b.U8(found).U64(l.Region).U64(l.Offset).U64(l.Length).U32(l.Page).U64(l.Word).U64(uint64(l.Expires))
}

// Location decodes what AppendLocation encoded.
func (r *Reader) Location() Location {
	found := r.U8()
	if found == 0 {
		return Location{}
	}
	return Location{Found: true, Maru: found == 2, Region: r.U64(), Offset: r.U64(), Length: r.U64(), Page: r.U32(), Word: r.U64(), Expires: int64(r.U64())}
}

// Writer appends fields to a message.
type Writer []byte

// U8 appends a byte.
func (b Writer) U8(v uint8) Writer { return append(b, v) }

// U16 appends a 16-bit integer.
func (b Writer) U16(v uint16) Writer { return binary.LittleEndian.AppendUint16(b, v) }

// U32 appends a 32-bit integer.
func (b Writer) U32(v uint32) Writer { return binary.LittleEndian.AppendUint32(b, v) }

// U64 appends a 64-bit integer.
func (b Writer) U64(v uint64) Writer { return binary.LittleEndian.AppendUint64(b, v) }

// String appends a text of less than 64 KiB after its length.
func (b Writer) String(s string) Writer { return append(b.U16(uint16(len(s))), s...) }

// Raw appends bytes as they are.
func (b Writer) Raw(p []byte) Writer { return append(b, p...) }

// ErrMessage is the error of a message that is not as it should be.
var ErrMessage = errors.New("the message is malformed")

// Reader takes fields from a message. After the first field that is not there
// all are zero, and Err tells.
type Reader struct {
	b   []byte
	bad bool
}

// Read returns a Reader of b, which must not change while fields are used.
func Read(b []byte) *Reader { return &Reader{b: b} }

// Reset makes r read b.
func (r *Reader) Reset(b []byte) { r.b, r.bad = b, false }

// Take returns the next n bytes, which alias the message.
func (r *Reader) Take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

// U8 takes a byte.
func (r *Reader) U8() uint8 {
	if p := r.Take(1); p != nil {
		return p[0]
	}
	return 0
}

// U16 takes a 16-bit integer.
func (r *Reader) U16() uint16 {
	if p := r.Take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

// U32 takes a 32-bit integer.
func (r *Reader) U32() uint32 {
	if p := r.Take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

// U64 takes a 64-bit integer.
func (r *Reader) U64() uint64 {
	if p := r.Take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// Bytes takes a text, which aliases the message.
func (r *Reader) Bytes() []byte { return r.Take(int(r.U16())) }

// Rest takes all that is left.
func (r *Reader) Rest() []byte { return r.Take(len(r.b)) }

// More reports whether something is left.
func (r *Reader) More() bool { return !r.bad && len(r.b) > 0 }

// Err returns ErrMessage if a field was missing or something is left over.
func (r *Reader) Err() error {
	if r.bad || len(r.b) > 0 {
		return ErrMessage
	}
	return nil
}
