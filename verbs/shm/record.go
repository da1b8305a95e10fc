package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"polder/verbs/softnic"
)

// A record is a header of 8 bytes and a body, padded with zeros to a multiple of
// 8 bytes:
//
//	0  u32  length of the body, without the padding
//	4  u32  type
//	8  body
//
// All integers but the words of region.go are little-endian.
const recordHeader = 8

type recordType uint32

const (
	recordPacket  recordType = 1 + iota // a softnic packet
	recordConnect                       // connection management: see package cm
	recordAccept
	recordReject
	recordBye // the sender closes the connection on purpose

	recordTypeEnd
)

// maxBody is the largest body: a packet.
const maxBody = softnic.MaxHeader + softnic.MaxPayload

// padded is how much room a record with a body of n bytes takes.
func padded(n int) int { return (recordHeader + n + 7) &^ 7 }

const maxRecord = (recordHeader + maxBody + 7) &^ 7

// What is wrong with a ring's contents.
var (
	errTail      = errors.New("ring is filled beyond its size")
	errHead      = errors.New("ring is emptied beyond what is in it")
	errRecord    = errors.New("malformed record")
	errTruncated = errors.New("record is not whole")
)

// putHeader encodes a record's header.
func putHeader(b *[recordHeader]byte, t recordType, n int) {
	binary.LittleEndian.PutUint32(b[:], uint32(n))
	binary.LittleEndian.PutUint32(b[4:], uint32(t))
}

// nextRecord takes the first record off b, which is a copy of what a peer has
// written.
func nextRecord(b []byte) (t recordType, body, rest []byte, err error) {
	if len(b) < recordHeader {
		return 0, nil, nil, fmt.Errorf("cannot read a record: %w", errTruncated)
	}
	n := binary.LittleEndian.Uint32(b)
	t = recordType(binary.LittleEndian.Uint32(b[4:]))
	if t == 0 || t >= recordTypeEnd || n > maxBody {
		return 0, nil, nil, fmt.Errorf("cannot read a record of type %d and %d bytes: %w", t, n, errRecord)
	}
	size := padded(int(n))
	if size > len(b) {
		return 0, nil, nil, fmt.Errorf("cannot read a record of %d bytes: %w", n, errTruncated)
	}
	return t, b[recordHeader : recordHeader+n], b[size:], nil
}

// An inbox is the consuming end of a ring. It belongs to one goroutine, apart
// from pending.
type inbox struct {
	ring ring
	head uint64 // what has been consumed; the shared word is written only
	buf  []byte // a copy of what was in the ring
}

func newInbox(r ring) *inbox { return &inbox{ring: r, buf: make([]byte, ringSize)} }

// pending reports whether there is something to be taken, sensible or not.
func (i *inbox) pending() bool { return i.ring.tail.Load() != i.head }

// take copies what is in the ring, which is empty then, and is valid until the
// next call.
func (i *inbox) take() ([]byte, error) {
	n := i.ring.tail.Load() - i.head
	if n > ringSize || n%8 != 0 {
		return nil, fmt.Errorf("cannot read %d bytes: %w", n, errTail)
	}
	inOrder()
	b := i.buf[:n]
	i.ring.get(i.head, b)
	i.head += n
	i.ring.head.Store(i.head)
	return b, nil
}
