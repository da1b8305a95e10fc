package softnic

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"polder/verbs"
)

var samplePackets = []Packet{
	{Kind: KindSend, DestQP: 5, PSN: 9, Length: 3, Payload: []byte("abc")},
	{Kind: KindSend, DestQP: psnMask, PSN: psnMask},
	{Kind: KindWrite, DestQP: 5, PSN: 9, Length: 1 << 30, RKey: 0x01020304, Addr: 1 << 63, Payload: []byte("abc")},
	{Kind: KindMore, DestQP: 5, PSN: 9, Payload: make([]byte, MaxPayload)},
	{Kind: KindRead, DestQP: 5, PSN: 9, Length: 77, RKey: 0xffffffff, Addr: 1<<64 - 1},
	{Kind: KindCmpSwap, DestQP: 5, PSN: 9, RKey: 1, Addr: 2, Compare: 3, Swap: 4},
	{Kind: KindFetchAdd, DestQP: 5, PSN: 9, RKey: 1, Addr: 2, Swap: 4},
	{Kind: KindReadResp, DestQP: 5, PSN: 9, Payload: []byte("abc")},
	{Kind: KindReadResp, DestQP: 5, PSN: 9},
	{Kind: KindAtomicResp, DestQP: 5, PSN: 9, Swap: 1 << 63},
	{Kind: KindAck, DestQP: 5, PSN: 9},
	{Kind: KindNak, DestQP: 5, PSN: 9, Status: verbs.StatusRemAccessErr},
	{Kind: KindDown, DestQP: 5},
	{Kind: KindMaskedAdd, DestQP: 5, PSN: 9, RKey: 1, Addr: 2, Compare: 1 << 7, Swap: 4},
	{Kind: KindAlloc, DestQP: 5, PSN: 9, Length: 32},
	{Kind: KindFree, DestQP: 5, PSN: 9, Addr: 1 << 40},
}

func frame(p *Packet) []byte { return append(p.AppendHeader(nil), p.Payload...) }

func TestPacketsSurviveTheWire(t *testing.T) {
	for _, p := range samplePackets {
		b := frame(&p)
		if got := p.HeaderSize() + len(p.Payload); got != len(b) {
			t.Errorf("%v: the header says %d bytes, the frame has %d", p.Kind, got, len(b))
		}
		var got Packet
		if err := got.Decode(b); err != nil {
			t.Errorf("%v: %v", p.Kind, err)
		} else if !reflect.DeepEqual(got, p) {
			t.Errorf("got %+v, want %+v", got, p)
		}
	}
}

func TestMalformedPacketsAreRefused(t *testing.T) {
	edit := func(p Packet, off int, v byte) []byte {
		b := frame(&p)
		b[off] = v
		return b
	}
	ack, nak, read := samplePackets[10], samplePackets[11], samplePackets[4]
	for name, b := range map[string][]byte{
		"nothing":             nil,
		"no kind":             edit(ack, 0, 0),
		"unknown kind":        edit(ack, 0, byte(numKinds)),
		"status on an ACK":    edit(ack, 1, 1),
		"padding":             edit(ack, 2, 1),
		"QP of 25 bits":       edit(ack, 7, 1),
		"PSN of 25 bits":      edit(ack, 11, 1),
		"word on an ACK":      edit(ack, 12, 1),
		"padding of a READ":   edit(read, 28, 1),
		"NAK of success":      edit(nak, 1, 0),
		"NAK of a flush":      edit(nak, 1, byte(verbs.StatusWRFlushErr)),
		"NAK of no status":    edit(nak, 1, 200),
		"payload on an ACK":   append(frame(&ack), 0),
		"half a header":       frame(&read)[:20],
		"payload too long":    append(frame(&samplePackets[3]), 0),
		"shorter than a base": frame(&ack)[:15],
	} {
		if err := new(Packet).Decode(b); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
	if err := new(Packet).Decode(make([]byte, 3)); !errors.Is(err, errShortPacket) {
		t.Errorf("got %v, want %v", err, errShortPacket)
	}
}

// FuzzDecode checks that Decode accepts exactly what AppendHeader makes.
func FuzzDecode(f *testing.F) {
	for _, p := range samplePackets {
		if len(p.Payload) < 1000 {
			f.Add(frame(&p))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packet
		if p.Decode(b) != nil {
			return
		}
		if again := frame(&p); !bytes.Equal(again, b) {
			t.Errorf("got %x, want %x", again, b)
		}
		if len(p.Payload) > 0 && &p.Payload[0] != &b[p.HeaderSize()] {
			t.Error("the payload is not part of the frame")
		}
	})
}
