// Package inplace passes the memory of a node, for reading, to clients on the node's machine.
//
// A client connects to a node over TCP as any other does, and writes through its queue pairs, which the node can
// close. Beside them it asks for the memory, at a Unix socket ([Ask], [Door]). It is passed two descriptors: one of all
// that the node lends, which was opened for reading only, and one of a page with a lease ([tenancy.Lease]), which is the
// connection's alone. It maps both. To read, it copies, and looks at the lease then: only if that is valid still, it
// believes what it has copied. The node revokes the lease before it does anything else about a connection that has
// ended, or that another client takes the session over from. So whoever cannot write any more believes nothing that it
// reads, either, and what is reclaimed, and zeroed, or lent to others, is not taken for one's own.
//
// # Where the socket is
//
// Its name is derived from the address of the node's listener, in the abstract namespace, where nothing is left behind
// by a process that was killed: [Name]. The namespace is the network namespace's, so that who finds the name is where
// the address leads, too.
//
// # Who is passed what
//
// The node passes memory to processes of its own user, and of root ([fdpass.Peer.Trusted]), that know the number and the secret of a session,
// and from which end of which connection that is used now: what an earlier connection of the session asks for is
// refused, even if the session is the same. The client tells its secret to processes of its own user, and of root.
//
// All that the node lends is in one file, so a client can read what others have borrowed. It runs as the node's
// user, and could read the node's memory by other means.
//
// # Messages
//
// There is one each way, of a fixed layout, little-endian. The client sends
//
//	 0  u32  magic "PIP1"
//	 4  u16  0
//	 6  u16  port of the client's end of the connection
//	 8  u64  session id
//	16  [32] session secret
//	48  [16] IP address of the client's end of the connection; one of IPv4 mapped to IPv6
//
// and the node answers, with the descriptors of the memory and the lease,
//
//	0  u32  magic
//	4  u32  0
//	8  u64  bytes of memory
//
// or, without any, with 0 bytes and the reason as text, of at most 256 bytes.
//
// # Faults
//
// The sizes of both files are sealed, which the client checks, so that no access faults for good: a page that the node
// has given back to the operating system, or has never had, reads as zeros. When the node has ended, the memory is there
// for as long as it is mapped.
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

// Name is the name of the socket that belongs to a node that listens at addr: "@" stands for the zero byte with which
// abstract names begin.
func Name(addr netip.AddrPort) string {
	host := "*"
	if ip := plain(addr).Addr(); !ip.IsUnspecified() {
		host = ip.String()
	}
	return fmt.Sprintf("@polder-in-place/%s:%d", host, addr.Port())
}

// plain is addr as both ends of a connection write it.
func plain(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap().WithZone(""), addr.Port())
}

// A Request is what a client says of itself.
type Request struct {
	Session wire.Session
	From    netip.AddrPort // the client's end of the connection
}

// Is reports whether the client's end of the connection is what the node calls peer.
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

// ErrRefused is what the error of Ask Is if the node was asked and did not want to.
var ErrRefused = errors.New("the node does not pass its memory")

func appendAnswer(b []byte, size int, refusal string) []byte {
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	return append(b, refusal[:min(len(refusal), maxReason)]...)
}

// decodeAnswer returns how many bytes of memory come with an answer that carries so many files.
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
