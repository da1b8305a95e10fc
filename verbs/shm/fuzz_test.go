package shm

import (
	"testing"

	"polder/internal/arena"
	"polder/verbs/internal/cm"
	"polder/verbs/softnic"
)

// FuzzInbox: no contents of a ring make a reader look beyond what is in it.
func FuzzInbox(f *testing.F) {
	f.Add(uint64(8), make([]byte, 8))
	f.Add(uint64(ringSize+8), []byte{})
	f.Add(^uint64(0), []byte{1})
	ack := softnic.Packet{Kind: softnic.KindAck, DestQP: 5}
	f.Add(uint64(24), record(recordPacket, ack.AppendHeader(nil)))
	f.Add(uint64(24), record(recordConnect, cm.Append(nil, 1, 2, []byte("private"))))
	f.Add(uint64(16), record(recordBye, nil))
	mem, err := arena.Anonymous(regionSize, false)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { mem.Close() })
	f.Fuzz(func(t *testing.T, tail uint64, content []byte) {
		r := newRegion(mem, true)
		in := newInbox(r.in)
		r.in.put(0, content[:min(len(content), ringSize)])
		r.in.tail.Store(tail)
		b, err := in.take()
		if err != nil {
			return
		}
		for len(b) > 0 {
			typ, body, rest, err := nextRecord(b)
			if err != nil {
				return
			}
			if len(rest) >= len(b) || len(body) > maxBody {
				t.Fatalf("a record of %d bytes leaves %d of %d", len(body), len(rest), len(b))
			}
			b = rest
			if typ == recordPacket {
				var p softnic.Packet
				_ = p.Decode(body)
			} else if typ != recordBye {
				_, _, _, _ = cm.Decode(cm.Connect+cm.Type(typ-recordConnect), body)
			}
		}
	})
}

// FuzzHostileClient lets a client fill the rings as it likes: it is cut off, or
// what it did made sense, and the device goes on.
func FuzzHostileClient(f *testing.F) {
	f.Add(uint64(24), uint64(0), record(recordConnect, cm.Append(nil, 1, 2, []byte("private"))))
	f.Add(uint64(24), uint64(1<<40), record(recordConnect, cm.Append(nil, 1, 2, nil)))
	f.Add(uint64(8), uint64(0), make([]byte, 8))
	write := softnic.Packet{Kind: softnic.KindWrite, DestQP: 1, Length: 1 << 20, Addr: 1 << 32}
	f.Add(uint64(40), uint64(0), record(recordPacket, write.AppendHeader(nil)))
	dev := newDevice(f)
	l := newListener(f, dev, Config{MaxConns: 1024})
	f.Fuzz(func(t *testing.T, tail, head uint64, content []byte) {
		p := rawDial(t, l).greet()
		p.out.put(0, content[:min(len(content), ringSize)])
		p.in.head.Store(head)
		p.publish(tail)
		// Half a record is no offence: the server waits for the rest, until
		// the client hangs up.
		p.hangUp()
		p.wantCut()
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatalf("the device is of no use any more: %v", err)
		}
		pd.Close()
	})
}

// FuzzMessage: what comes over the socket is understood or refused.
func FuzzMessage(f *testing.F) {
	f.Add(encodeMessage(kindHello, 0))
	f.Add(encodeMessage(kindMemory, 1<<40))
	f.Add([]byte("polderSM\x02\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, size, err := decodeMessage(b)
		if err == nil && string(encodeMessage(kind, int(size))) != string(b) {
			t.Fatalf("%q is understood as a message of kind %d and size %d", b, kind, size)
		}
	})
}
