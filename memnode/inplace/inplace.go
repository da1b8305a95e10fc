// Package inplace passes the memory of a node, for reading, to clients on the node's machine.
//
// A client connects to a node over TCP as any other client does, and writes through its queue pairs, which the node
// can close. In addition it asks for the memory, at a Unix socket ([Ask], [Door]). It is passed two descriptors: one
// of all the memory that the node lends, opened for reading only, and one of a page with a lease ([tenancy.Lease]),
// which is for this connection alone. It maps both. To read, it copies, and then checks the lease: it believes the
// copy only if the lease is still valid. When a connection has ended, or another client takes its session over, the
// node revokes the lease before it does anything else. So a client that can no longer write also believes nothing
// that it reads, and does not take memory that has been reclaimed, zeroed or lent to others for its own.
//
// # Where the socket is
//
// The name of the socket ([Name]) is derived from the address of the node's listener. It is in the abstract
// namespace, where a process that was killed leaves nothing behind. Each network namespace has an abstract namespace
// of its own, so a process that finds the name is where the address leads to the same node.
//
// # Who is passed what
//
// The node passes memory to processes of its own user, and of root ([fdpass.Peer.Trusted]), that know the number and
// the secret of a session, and the client's address of the connection over which the session is used now: a request
// from an earlier connection of the session is refused. The client tells its secret only to processes of its own
// user, and of root.
//
// All the memory that the node lends is in one file, so a client can read what others have borrowed. It runs as the
// node's user, and could read the node's memory by other means.
//
// # Messages
//
// There is one message each way, of a fixed layout, little-endian. The client sends
//
//	 0  u32  magic "PIP1"
//	 4  u16  0
//	 6  u16  port of the client's end of the connection
//	 8  u64  session id
//	16  [32] session secret
//	48  [16] IP address of the client's end of the connection; an IPv4 address is mapped to IPv6
//
// and the node answers, with the descriptors of the memory and the lease,
//
//	0  u32  magic
//	4  u32  0
//	8  u64  bytes of memory
//
// or, if it refuses, without descriptors, with 0 bytes of memory, followed by the reason as text of at most 256
// bytes.
//
// # Faults
//
// The sizes of both files are sealed, which the client checks, so that no access faults for good: a page that the
// node has given back to the operating system, or that has never existed, reads as zeros. When the node has ended,
// the memory stays for as long as it is mapped.
package inplace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"polder/memnode/wire"
)

// Timeout bounds the whole exchange, at both ends.
const Timeout = time.Second

const (
	magic      = 0x31504950 // "PIP1"
	askSize    = 64
	answerSize = 16
	maxReason  = 256
)

// Name is the name of the socket of a node that listens at addr. "@" stands for the zero byte with which abstract
// names begin.
func Name(addr netip.AddrPort) string {
	host := "*"
	if ip := plain(addr).Addr(); !ip.IsUnspecified() {
		host = ip.String()
	}
	return fmt.Sprintf("@polder-in-place/%s:%d", host, addr.Port())
}

// plain returns addr in the form in which both ends of a connection write it.
func plain(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap().WithZone(""), addr.Port())
}

// A Request is what a client sends to ask for the memory.
type Request struct {
	Session wire.Session
	From    netip.AddrPort // the client's end of the connection
}

// Is reports whether peer, which is the node's name for the client's end of the connection, is r.From.
func (r *Request) Is(peer string) bool {
	addr, err := netip.ParseAddrPort(peer)
	return err == nil && plain(addr) == plain(r.From)
}

// Append appends r to b.
func (r *Request) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint16(b, r.From.Port())
	b = binary.LittleEndian.AppendUint64(b, r.Session.ID)
	b = append(b, r.Session.Secret[:]...)
	ip := r.From.Addr().As16()
	return append(b, ip[:]...)
}

// Decode parses b. Its error Is wire.ErrMalformed.
func (r *Request) Decode(b []byte) error {
	if len(b) != askSize || binary.LittleEndian.Uint32(b) != magic || binary.LittleEndian.Uint16(b[4:]) != 0 {
		return fmt.Errorf("%w: %d bytes that ask for no memory", wire.ErrMalformed, len(b))
	}
	r.From = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[48:])).Unmap(), binary.LittleEndian.Uint16(b[6:]))
	r.Session.ID = binary.LittleEndian.Uint64(b[8:])
	copy(r.Session.Secret[:], b[16:])
	return nil
}

// ErrRefused is wrapped by the error of Ask if the node has refused.
var ErrRefused = errors.New("the node does not pass its memory")

func appendAnswer(b []byte, size int, refusal string) []byte {
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	return append(b, refusal[:min(len(refusal), maxReason)]...)
}

// decodeAnswer returns how many bytes of memory come with an answer that carries files descriptors.
func decodeAnswer(b []byte, files int) (size uint64, err error) {
	malformed := len(b) < answerSize || binary.LittleEndian.Uint32(b) != magic || binary.LittleEndian.Uint32(b[4:]) != 0
	if !malformed {
		size = binary.LittleEndian.Uint64(b[8:])
	}
	switch reason := len(b) - answerSize; {
	case malformed:
	case size == 0 && files == 0 && reason <= maxReason:
		return 0, fmt.Errorf("%w: %q", ErrRefused, b[answerSize:])
	case size > 0 && files == 2 && reason == 0:
		return size, nil
	}
	return 0, fmt.Errorf("%w: an answer of %d bytes with %d descriptors", wire.ErrMalformed, len(b), files)
}

// here reports whether ip is an address of this machine.
func here(ip netip.Addr) bool {
	if ip = ip.Unmap().WithZone(""); ip.IsLoopback() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if own, ok := a.(*net.IPNet); ok {
			if o, ok := netip.AddrFromSlice(own.IP); ok && o.Unmap() == ip {
				return true
			}
		}
	}
	return false
}
