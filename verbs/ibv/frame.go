package ibv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"polder/verbs"
)

// A frame is a header of 8 bytes, u32 CRC32C of what follows, u8 type, u24
// length of the body, and the body.
type frameType uint8

const (
	frameConnect frameType = iota + 1
	frameAccept
	frameReject
	frameReady
	frameDown
	framePing
	framePong
	frameBye
)

const (
	frameHeader = 8
	maxReason   = 1 << 10
	maxBody     = 4 + maxReason
)

var (
	errFrame   = errors.New("malformed frame")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// message is a decoded frame. Which fields count depends on the type.
type message struct {
	typ     frameType
	request uint32 // CONNECT, ACCEPT, REJECT
	qpn     uint32 // CONNECT, ACCEPT: the sender's; READY, DOWN: the receiver's
	psn     uint32 // CONNECT, ACCEPT: the first packet that the sender sends
	status  verbs.Status
	data    []byte // private data or reason
}

// layouts says which words of a type's body there are, and how much data may
// follow.
var layouts = map[frameType]struct{ words, data int }{
	frameConnect: {3, verbs.MaxPrivateData},
	frameAccept:  {3, verbs.MaxPrivateData},
	frameReject:  {1, maxReason},
	frameReady:   {1, 0},
	frameDown:    {2, 0},
	framePing:    {0, 0},
	framePong:    {0, 0},
	frameBye:     {0, 0},
}

// words are the fields of m in the order of its type's body.
func (m *message) words() []uint32 {
	switch m.typ {
	case frameConnect, frameAccept:
		return []uint32{m.request, m.qpn, m.psn}
	case frameReject:
		return []uint32{m.request}
	case frameReady:
		return []uint32{m.qpn}
	case frameDown:
		return []uint32{m.qpn, uint32(m.status)}
	}
	return nil
}

// appendFrame appends m's frame to b.
func appendFrame(b []byte, m message) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHeader)...)
	for _, w := range m.words() {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	b = append(b, m.data...)
	f := b[start:]
	binary.LittleEndian.PutUint32(f[4:], uint32(m.typ)|uint32(len(f)-frameHeader)<<8)
	binary.LittleEndian.PutUint32(f, crc32.Checksum(f[4:], castagnoli))
	return b
}

// readFrame reads one frame. The message's data is its own.
func readFrame(r io.Reader) (message, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return message{}, err
	}
	word := binary.LittleEndian.Uint32(h[4:])
	n := int(word >> 8)
	if n > maxBody {
		return message{}, fmt.Errorf("%w: a body of %d bytes, want at most %d", errFrame, n, maxBody)
	}
	f := make([]byte, 4+n)
	copy(f, h[4:])
	if _, err := io.ReadFull(r, f[4:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return message{}, err
	}
	if crc32.Checksum(f, castagnoli) != binary.LittleEndian.Uint32(h[:]) {
		return message{}, fmt.Errorf("%w: its checksum is wrong", errFrame)
	}
	return decodeFrame(frameType(word), f[4:])
}

func decodeFrame(t frameType, body []byte) (message, error) {
	l, ok := layouts[t]
	if !ok {
		return message{}, fmt.Errorf("%w: type %d", errFrame, t)
	}
	if n := len(body); n < 4*l.words || n > 4*l.words+l.data {
		return message{}, fmt.Errorf("%w: type %d with a body of %d bytes, want %d to %d", errFrame, t, n, 4*l.words, 4*l.words+l.data)
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(body[4*i:]) }
	m := message{typ: t, data: body[4*l.words:]}
	switch t {
	case frameConnect, frameAccept:
		m.request, m.qpn, m.psn = word(0), word(1), word(2)
	case frameReject:
		m.request = word(0)
	case frameReady:
		m.qpn = word(0)
	case frameDown:
		m.qpn = word(0)
		if word(1) > uint32(verbs.StatusFatalErr) {
			return message{}, fmt.Errorf("%w: status %d", errFrame, word(1))
		}
		m.status = verbs.Status(word(1))
	}
	if m.qpn >= 1<<24 || m.psn >= 1<<24 {
		return message{}, fmt.Errorf("%w: queue pair %d, first packet %d, want 24 bits", errFrame, m.qpn, m.psn)
	}
	return m, nil
}
