package softnic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"polder/verbs"
)

// Kind is what a packet is.
type Kind uint8

const (
	KindSend       Kind = iota + 1 // begins a SEND: Length, Payload
	KindWrite                      // begins a WRITE: Length, Addr, RKey, Payload
	KindMore                       // continues the message begun: Payload
	KindRead                       // Length, Addr, RKey
	KindCmpSwap                    // Addr, RKey, Compare, Swap
	KindFetchAdd                   // Addr, RKey, Swap (the addend)
	KindReadResp                   // some bytes of a READ: Payload
	KindAtomicResp                 // Swap: the value before
	KindAck                        // all requests up to PSN are done
	KindNak                        // all requests before PSN are done, and PSN failed: Status
	KindDown                       // the sender's queue pair is in the error state or gone
	KindMaskedAdd                  // Addr, RKey, Compare (the mask), Swap (the addend)
	KindAlloc                      // Length, of the answer
	KindFree                       // Addr (the handle)

	numKinds = int(iota) + 1
)

var kindNames = [numKinds]string{
	"", "SEND", "WRITE", "MORE", "READ", "CMP_SWAP", "FETCH_ADD",
	"READ_RESP", "ATOMIC_RESP", "ACK", "NAK", "DOWN", "MASKED_FETCH_ADD", "ALLOC", "FREE",
}

func (k Kind) String() string {
	if k != 0 && int(k) < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// MaxPayload is the most payload bytes in one packet.
const MaxPayload = 64 << 10

// MaxHeader is the most header bytes of one packet.
const MaxHeader = 40

// Header sizes: what every packet has, and with the fields of its kind.
const (
	headerBase   = 16
	headerRemote = 32 // with Addr and RKey
	headerAtomic = MaxHeader
	headerValue  = 24 // with a value in response
)

var headerSizes = [numKinds]uint8{
	KindSend:       headerBase,
	KindWrite:      headerRemote,
	KindMore:       headerBase,
	KindRead:       headerRemote,
	KindCmpSwap:    headerAtomic,
	KindFetchAdd:   headerAtomic,
	KindReadResp:   headerBase,
	KindAtomicResp: headerValue,
	KindAck:        headerBase,
	KindNak:        headerBase,
	KindDown:       headerBase,
	KindMaskedAdd:  headerAtomic,
	KindAlloc:      headerBase,
	KindFree:       headerValue,
}

// payloadKinds has a bit for every kind that may carry a payload.
const payloadKinds = 1<<KindSend | 1<<KindWrite | 1<<KindMore | 1<<KindReadResp

func (k Kind) hasPayload() bool { return payloadKinds>>k&1 != 0 }

// psnMask keeps the 24 bits of a packet sequence number; QPNs have as many.
const psnMask = 1<<24 - 1

// A Packet is what travels between two NICs. Which fields count depends on
// Kind. On the wire, little-endian:
//
//	 0  u8   kind
//	 1  u8   status       NAK, otherwise 0
//	 2  u16  0
//	 4  u32  destination queue pair, 24 bits
//	 8  u32  PSN, 24 bits
//	12  u32  length       SEND, WRITE, READ, ALLOC: of the whole message; atomics: rkey
//	16  u64  address      WRITE, READ, atomics; ATOMIC_RESP: value; FREE: handle
//	24  u32  rkey         WRITE, READ
//	28  u32  0            WRITE, READ
//	24  u64  compare      atomics; MASKED_FETCH_ADD: mask
//	32  u64  swap         atomics; FETCH_ADD: addend
//
// and then the payload up to the end of the frame.
type Packet struct {
	Kind    Kind
	Status  verbs.Status
	DestQP  uint32
	PSN     uint32
	Length  uint32
	RKey    verbs.RKey
	Addr    uint64
	Compare uint64
	Swap    uint64
	Payload []byte
}

// HeaderSize is how many bytes AppendHeader appends.
//
// Preconditions: p.Kind is one of the constants.
func (p *Packet) HeaderSize() int { return int(headerSizes[p.Kind]) }

// AppendHeader appends the packet without its payload, which is to follow.
//
// Preconditions: p.Kind is one of the constants.
func (p *Packet) AppendHeader(b []byte) []byte {
	le := binary.LittleEndian
	var h [MaxHeader]byte
	h[0] = byte(p.Kind)
	le.PutUint32(h[4:], p.DestQP)
	le.PutUint32(h[8:], p.PSN)
	switch p.Kind {
	case KindSend, KindAlloc:
		le.PutUint32(h[12:], p.Length)
	case KindWrite, KindRead:
		le.PutUint32(h[12:], p.Length)
		le.PutUint64(h[16:], p.Addr)
		le.PutUint32(h[24:], uint32(p.RKey))
	case KindCmpSwap, KindFetchAdd, KindMaskedAdd:
		le.PutUint32(h[12:], uint32(p.RKey))
		le.PutUint64(h[16:], p.Addr)
		le.PutUint64(h[24:], p.Compare)
		le.PutUint64(h[32:], p.Swap)
	case KindAtomicResp:
		le.PutUint64(h[16:], p.Swap)
	case KindFree:
		le.PutUint64(h[16:], p.Addr)
	case KindNak:
		h[1] = byte(p.Status)
	}
	return append(b, h[:headerSizes[p.Kind]]...)
}

var (
	errShortPacket = errors.New("packet is shorter than its header")
	errPadding     = errors.New("packet has bits set that mean nothing")
)

// Decode sets p to what frame contains. Payload aliases frame.
func (p *Packet) Decode(frame []byte) error {
	*p = Packet{}
	if len(frame) < headerBase {
		return fmt.Errorf("cannot decode a packet of %d bytes: %w", len(frame), errShortPacket)
	}
	le := binary.LittleEndian
	k := Kind(frame[0])
	if k == 0 || int(k) >= numKinds {
		return fmt.Errorf("cannot decode a packet: its kind is %d", frame[0])
	}
	size := int(headerSizes[k])
	if len(frame) < size {
		return fmt.Errorf("cannot decode a %v packet of %d bytes: %w", k, len(frame), errShortPacket)
	}
	payload := frame[size:]
	switch {
	case len(payload) > MaxPayload:
		return fmt.Errorf("cannot decode a %v packet: payload of %d bytes exceeds %d", k, len(payload), MaxPayload)
	case len(payload) > 0 && !k.hasPayload():
		return fmt.Errorf("cannot decode a %v packet: it has %d bytes too many", k, len(payload))
	}
	p.Kind = k
	p.DestQP = le.Uint32(frame[4:])
	p.PSN = le.Uint32(frame[8:])
	word := le.Uint32(frame[12:])
	padding := uint32(le.Uint16(frame[2:])) | p.DestQP&^psnMask | p.PSN&^psnMask
	status := frame[1]
	switch k {
	case KindSend, KindAlloc:
		p.Length, word = word, 0
	case KindWrite, KindRead:
		p.Length, word = word, 0
		p.Addr = le.Uint64(frame[16:])
		p.RKey = verbs.RKey(le.Uint32(frame[24:]))
		padding |= le.Uint32(frame[28:])
	case KindCmpSwap, KindFetchAdd, KindMaskedAdd:
		p.RKey, word = verbs.RKey(word), 0
		p.Addr = le.Uint64(frame[16:])
		p.Compare = le.Uint64(frame[24:])
		p.Swap = le.Uint64(frame[32:])
	case KindAtomicResp:
		p.Swap = le.Uint64(frame[16:])
	case KindFree:
		p.Addr = le.Uint64(frame[16:])
	case KindNak:
		p.Status, status = verbs.Status(status), 0
		if !nakStatus(p.Status) {
			return fmt.Errorf("cannot decode a NAK packet: its status is %q", p.Status)
		}
	}
	if padding|word != 0 || status != 0 {
		return fmt.Errorf("cannot decode a %v packet: %w", k, errPadding)
	}
	if k.hasPayload() && size < len(frame) {
		p.Payload = payload
	}
	return nil
}

// nakStatus reports whether a responder may answer with s.
func nakStatus(s verbs.Status) bool {
	switch s {
	case verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr, verbs.StatusRemOpErr, verbs.StatusRNRRetryExcErr:
		return true
	}
	return false
}
