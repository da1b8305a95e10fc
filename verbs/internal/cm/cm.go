// Package cm is the connection management of software drivers: it joins queue
// pairs over a connection that carries messages beside packets, and takes that
// connection down once.
//
// # Messages
//
// Their bodies begin with two little-endian words:
//
//	CONNECT  u32 request, u32 queue pair of the requester   private data
//	ACCEPT   u32 request, u32 queue pair of the acceptor    private data
//	REJECT   u32 request, u32 0                             reason, UTF-8
//
// Requests are numbered by the requester. An ACCEPT comes before the first
// packet of the acceptor's queue pair. A requester that has given up tells an
// acceptor so with a DOWN packet. How a driver marks messages is its own affair.
//
// # Concurrency
//
// A driver's reader calls [Conn.Handle]; everything else may be called by any
// number of goroutines, [Conn.End] also from within a call that it interrupts. No
// lock is held while a driver's methods are called, but for [Link.Put] of an
// ACCEPT, during which the device's is.
package cm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"polder/verbs"
)

// A Type is what a message is.
type Type uint8

const (
	Connect Type = iota + 1
	Accept
	Reject
)

// HeaderSize is the size of a message without data, and MaxReason of the longest
// reason.
const (
	HeaderSize = 8
	MaxReason  = 1 << 10
)

var (
	ErrMalformed = errors.New("malformed connection management message")

	errNoListener = errors.New("this end does not listen")
	errAnswered   = fmt.Errorf("the request has been answered before: %w", verbs.ErrInvalid)
)

// Append appends a message to b.
func Append(b []byte, request, qpn uint32, data []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, request)
	b = binary.LittleEndian.AppendUint32(b, qpn)
	return append(b, data...)
}

// Decode takes a message apart. Data aliases body.
func Decode(t Type, body []byte) (request, qpn uint32, data []byte, err error) {
	limit := verbs.MaxPrivateData
	if t == Reject {
		limit = MaxReason
	}
	if t < Connect || t > Reject || len(body) < HeaderSize || len(body) > HeaderSize+limit {
		return 0, 0, nil, fmt.Errorf("cannot decode a message of type %d and %d bytes: %w", t, len(body), ErrMalformed)
	}
	request = binary.LittleEndian.Uint32(body)
	qpn = binary.LittleEndian.Uint32(body[4:])
	if qpn >= 1<<24 || t == Reject && qpn != 0 {
		return 0, 0, nil, fmt.Errorf("cannot decode a message of type %d: queue pair %d: %w", t, qpn, ErrMalformed)
	}
	return request, qpn, body[HeaderSize:], nil
}

func checkPrivate(private []byte) error {
	if len(private) > verbs.MaxPrivateData {
		return fmt.Errorf("%d bytes of private data exceed %d: %w", len(private), verbs.MaxPrivateData, verbs.ErrInvalid)
	}
	return nil
}
