package stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"polder/verbs"
	"polder/verbs/internal/cm"
	"polder/verbs/internal/endpoint"
	"polder/verbs/softnic"
)

// wirePeer is a peer made by hand: it can say anything.
type wirePeer struct {
	t      testing.TB
	nc     net.Conn
	sent   uint32 // frames
	frames *frameReader
}

// rawDial connects to l and says nothing.
func rawDial(t testing.TB, l verbs.Listener) *wirePeer {
	t.Helper()
	nc, err := net.Dial(network(l), l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &wirePeer{t: t, nc: nc, frames: newFrameReader(maxBody, readBuffer)}
}

// wireDial connects to l and shakes hands.
func wireDial(t testing.TB, l verbs.Listener) *wirePeer {
	t.Helper()
	p := rawDial(t, l)
	if _, err := exchangeHello(p.nc, ourHello); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *wirePeer) frame(t frameType, body []byte) []byte {
	p.sent++
	return appendFrame(nil, t, body, p.sent-1)
}

func (p *wirePeer) packet(pkt softnic.Packet) []byte {
	return p.frame(framePacket, append(pkt.AppendHeader(nil), pkt.Payload...))
}

func (p *wirePeer) write(b []byte) {
	p.t.Helper()
	if _, err := p.nc.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// read returns the next frame, or the error that ends the stream.
func (p *wirePeer) read() (frameType, []byte, error) {
	for {
		t, body, ok, err := p.frames.next()
		if ok || err != nil {
			return t, body, err
		}
		if err := p.frames.fill(p.nc); err != nil {
			return 0, nil, err
		}
	}
}

// lender is a device with memory and one queue pair, which a wirePeer has
// connected to.
type lender struct {
	qp   verbs.QP
	mr   verbs.MR
	conn verbs.Conn
}

// join connects the peer to a queue pair of dev's, as its queue pair 1.
func (p *wirePeer) join(dev *Device, l verbs.Listener) lender {
	p.t.Helper()
	var s lender
	pd, err := dev.AllocPD()
	if err != nil {
		p.t.Fatal(err)
	}
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 16})
	if err != nil {
		p.t.Fatal(err)
	}
	if s.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 4, RecvDepth: 4}); err != nil {
		p.t.Fatal(err)
	}
	if s.mr, err = pd.RegMR(make([]byte, 1<<20), verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite); err != nil {
		p.t.Fatal(err)
	}
	p.write(p.frame(frameConnect, cm.Append(nil, 5, 1, []byte("hello"))))
	req, err := l.Accept(patient(p.t))
	if err != nil {
		p.t.Fatal(err)
	}
	s.conn = req.Conn()
	if got := string(req.Private()); got != "hello" {
		p.t.Fatalf("got the private data %q", got)
	}
	if err := req.Accept(s.qp, []byte("welcome")); err != nil {
		p.t.Fatal(err)
	}
	typ, body, err := p.read()
	if err != nil || typ != frameAccept {
		p.t.Fatalf("got a frame of type %d, %v, want ACCEPT", typ, err)
	}
	id, qpn, private, err := cm.Decode(cm.Connect+cm.Type(typ-frameConnect), body)
	if err != nil || id != 5 || qpn != s.qp.Num() || string(private) != "welcome" {
		p.t.Fatalf("got ACCEPT %d, QP %d, %q, %v", id, qpn, private, err)
	}
	return s
}

// wantCut checks that the server has ended the connection because of want, or
// of anything if want is nil.
func (p *wirePeer) wantCut(s lender, want error) {
	p.t.Helper()
	select {
	case <-s.conn.Done():
	case <-patient(p.t).Done():
		p.t.Fatal("the connection is not cut")
	}
	if err := s.conn.Err(); err == nil || want != nil && !errors.Is(err, want) {
		p.t.Errorf("got %v, want %v", err, want)
	}
	if st := s.qp.State(); st != verbs.StateError {
		p.t.Errorf("the queue pair is in %v, want %v", st, verbs.StateError)
	}
}

func TestWhatIsNotAccordingToProtocolCutsTheConnection(t *testing.T) {
	for _, c := range []struct {
		name string
		say  func(p *wirePeer, s lender)
		want error
	}{
		{"a bad checksum", func(p *wirePeer, _ lender) {
			b := p.frame(framePing, nil)
			b[0] ^= 1
			p.write(b)
		}, errFrameChecksum},
		{"a frame that is too large", func(p *wirePeer, _ lender) {
			p.write(p.frame(framePacket, make([]byte, maxBody+1))[:frameHeader])
		}, errFrameTooLarge},
		{"an unknown frame type", func(p *wirePeer, _ lender) { p.write(p.frame(frameTypeEnd, nil)) }, errFrameType},
		{"a replayed frame", func(p *wirePeer, s lender) {
			b := p.packet(softnic.Packet{Kind: softnic.KindWrite, DestQP: s.qp.Num(), Length: 8,
				Addr: s.mr.Addr(), RKey: s.mr.RKey(), Payload: make([]byte, 8)})
			p.write(append(b, b...))
		}, errFrameChecksum},
		{"a cut inside a frame", func(p *wirePeer, _ lender) {
			b := p.frame(framePacket, make([]byte, 1000))
			p.write(b[:500])
			p.nc.Close()
		}, errTruncated},
		{"an end without a BYE", func(p *wirePeer, _ lender) { p.nc.Close() }, io.ErrUnexpectedEOF},
		{"a BYE", func(p *wirePeer, _ lender) { p.write(p.frame(frameBye, nil)) }, errPeerClosed},
		{"a short management frame", func(p *wirePeer, _ lender) { p.write(p.frame(frameConnect, make([]byte, cm.HeaderSize-1))) }, cm.ErrMalformed},
		{"too much private data", func(p *wirePeer, _ lender) {
			p.write(p.frame(frameConnect, make([]byte, cm.HeaderSize+verbs.MaxPrivateData+1)))
		}, cm.ErrMalformed},
		{"a file over TCP", func(p *wirePeer, _ lender) { p.write(p.frame(frameFile, nil)) }, errFiles},
		{"an impossible queue pair", func(p *wirePeer, _ lender) { p.write(p.frame(frameConnect, cm.Append(nil, 1, 1<<24, nil))) }, cm.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := newDevice(t)
			l := newListener(t, dev, Config{})
			p := wireDial(t, l)
			s := p.join(dev, l)
			c.say(p, s)
			p.wantCut(s, c.want)
		})
	}
}

func TestAMalformedPacketCutsTheConnection(t *testing.T) {
	for _, body := range [][]byte{nil, {0}, make([]byte, 40), bytes.Repeat([]byte{0xff}, 64)} {
		dev := newDevice(t)
		l := newListener(t, dev, Config{})
		p := wireDial(t, l)
		s := p.join(dev, l)
		p.write(p.frame(framePacket, body))
		p.wantCut(s, nil)
	}
}

// TestAReplayedPacketIsRefused replays a packet in a frame of its own, which
// only the engine can notice. The queue pair fails, the connection does not.
func TestAReplayedPacketIsRefused(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{})
	p := wireDial(t, l)
	s := p.join(dev, l)
	write := softnic.Packet{Kind: softnic.KindWrite, DestQP: s.qp.Num(), Length: 8,
		Addr: s.mr.Addr(), RKey: s.mr.RKey(), Payload: make([]byte, 8)}
	p.write(append(p.packet(write), p.packet(write)...))
	for {
		typ, body, err := p.read()
		if err != nil || typ != framePacket {
			t.Fatalf("got a frame of type %d, %v, want a NAK", typ, err)
		}
		var got softnic.Packet
		if err := got.Decode(body); err != nil {
			t.Fatal(err)
		}
		if got.Kind == softnic.KindNak {
			if got.Status != verbs.StatusRemInvReqErr {
				t.Errorf("got a NAK with %v, want %v", got.Status, verbs.StatusRemInvReqErr)
			}
			break
		}
	}
	if st := s.qp.State(); st != verbs.StateError {
		t.Errorf("the queue pair is in %v, want %v", st, verbs.StateError)
	}
	p.write(p.frame(framePing, nil))
	for {
		typ, _, err := p.read()
		if err != nil {
			t.Fatalf("the connection ended: %v", err)
		}
		if typ == framePong {
			return
		}
	}
}

func TestNobodyIsWaitedForAtTheHandshake(t *testing.T) {
	for name, says := range map[string]string{
		"silence": "", "half a hello": "polderTC", "something else": "GET / HTTP/1.1\r\nHost: polder\r\n\r\n",
	} {
		dev := newDevice(t)
		l := newListener(t, dev, Config{HandshakeTimeout: 20 * time.Millisecond})
		p := rawDial(t, l)
		if _, err := io.WriteString(p.nc, says); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, p.nc); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection was not closed", name)
		}
	}
}

// served reports whether the peer is answered: that it is let in shows only after
// the handshake.
func (p *wirePeer) served() bool {
	p.t.Helper()
	if _, err := exchangeHello(p.nc, ourHello); err != nil {
		return false
	}
	if _, err := p.nc.Write(p.frame(framePing, nil)); err != nil {
		return false
	}
	typ, _, err := p.read()
	return err == nil && typ == framePong
}

func TestAListenerHasALimitOfConnections(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{MaxConns: 2})
	for range 2 * 2 {
		rawDial(t, l) // who does not say hello takes no place
	}
	first, second := rawDial(t, l), rawDial(t, l)
	if !first.served() || !second.served() {
		t.Fatal("the first two connections are not served, the limit is 2")
	}
	if rawDial(t, l).served() {
		t.Error("a third connection was made, the limit is 2")
	}
	// A place that becomes free is given out again. When exactly that is,
	// the peer cannot see.
	first.nc.Close()
	for ctx := patient(t); ; {
		p := rawDial(t, l)
		if p.served() {
			return
		}
		p.nc.Close()
		if ctx.Err() != nil {
			t.Fatal("the place is not given out again")
		}
	}
}

func TestABacklogOfRequestsIsRejected(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{Backlog: 2})
	p := wireDial(t, l)
	for i := range uint32(3) {
		p.write(p.frame(frameConnect, cm.Append(nil, i, 1, nil)))
	}
	typ, body, err := p.read()
	if err != nil || typ != frameReject {
		t.Fatalf("got a frame of type %d, %v, want REJECT", typ, err)
	}
	if id, _, _, _ := cm.Decode(cm.Connect+cm.Type(typ-frameConnect), body); id != 2 {
		t.Errorf("request %d was rejected, want 2", id)
	}
}

// TestARequestWhosePeerIsGoneIsNotAccepted has a peer ask for a queue pair and hang up
// before anybody accepts: the next one's request is what Accept returns.
func TestARequestWhosePeerIsGoneIsNotAccepted(t *testing.T) {
	l := newUnixListener(t, newDevice(t), Config{})
	gone := wireDial(t, l)
	gone.write(gone.frame(frameConnect, cm.Append(nil, 1, 1, []byte("gone"))))
	gone.write(gone.frame(framePing, nil)) // its answer says that the request has been queued
	for typ := frameType(0); typ != framePong; {
		var err error
		if typ, _, err = gone.read(); err != nil {
			t.Fatal(err)
		}
	}
	gone.nc.Close()
	for ctx := patient(t); l.(*endpoint.Listener).Peers() > 0; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatal("the connection has not ended")
		}
	}
	next := wireDial(t, l)
	next.write(next.frame(frameConnect, cm.Append(nil, 1, 1, []byte("next"))))
	req, err := l.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(req.Private()); got != "next" {
		t.Errorf("the request of %q was accepted, want %q", got, "next")
	}
}

// FuzzHostilePeer lets a peer send a frame of any type with any body: it is cut off, or
// what it did made sense, and the device goes on.
func FuzzHostilePeer(f *testing.F) {
	f.Add(byte(frameConnect), cm.Append(nil, 1, 2, []byte("private")))
	f.Add(byte(frameFile), []byte{1})
	f.Add(byte(frameBye), []byte(nil))
	for _, p := range []softnic.Packet{
		{Kind: softnic.KindAck, DestQP: 5},
		{Kind: softnic.KindWrite, DestQP: 1, Length: 1 << 20, Addr: 1 << 32},
	} {
		f.Add(byte(framePacket), p.AppendHeader(nil))
	}
	dev := newDevice(f)
	l := newUnixListener(f, dev, Config{})
	f.Fuzz(func(t *testing.T, typ byte, body []byte) {
		p := wireDial(t, l)
		p.write(p.frame(frameType(typ), body[:min(len(body), maxBody)]))
		// Half a frame is no offence: the server waits for the rest.
		if err := p.nc.(*net.UnixConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, p.nc); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection was not closed")
		}
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatalf("the device is of no use any more: %v", err)
		}
		pd.Close()
	})
}
