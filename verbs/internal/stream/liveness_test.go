package stream

import (
	"testing"
	"time"

	"polder/verbs/internal/cm"
	"polder/verbs/softnic"
)

// TestAPeerThatNeverReadsIsCut asks for megabytes and reads none of them. What
// waits for it stays bounded, and after the stall timeout it is gone.
func TestAPeerThatNeverReadsIsCut(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{StallTimeout: 50 * time.Millisecond})
	p := wireDial(t, l)
	s := p.join(dev, l)
	var reads []byte
	for psn := range uint32(softnic.MaxRdAtom) {
		reads = append(reads, p.packet(softnic.Packet{Kind: softnic.KindRead, DestQP: s.qp.Num(), PSN: psn,
			Length: uint32(len(s.mr.Bytes())), Addr: s.mr.Addr(), RKey: s.mr.RKey()})...)
	}
	p.write(reads)
	p.wantCut(s, errStalled)
	o := &s.conn.(*testConn).out
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := cap(o.pending) + cap(o.spare) + cap(o.rest); n > 4*readyLimit {
		t.Errorf("the outbox has grown to %d bytes, the limit is %d", n, readyLimit)
	}
}

// TestAPeerThatOnlyAsksIsCut asks for answers that the engine does not hold
// back, rejections, and reads none of them.
func TestAPeerThatOnlyAsksIsCut(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{StallTimeout: time.Hour, Backlog: 1})
	p := wireDial(t, l)
	s := p.join(dev, l)
	for {
		var asks []byte
		for i := range uint32(1000) {
			asks = append(asks, p.frame(frameConnect, cm.Append(nil, i, 1, nil))...)
		}
		if _, err := p.nc.Write(asks); err != nil {
			break
		}
	}
	p.wantCut(s, errOutboxFull)
}

func TestASilentPeerIsPingedAndThenCut(t *testing.T) {
	dev := newDevice(t)
	// Time enough for this peer to answer on a busy machine.
	l := newListener(t, dev, Config{KeepAlive: 300 * time.Millisecond})
	p := wireDial(t, l)
	s := p.join(dev, l)
	// As long as it answers, it is not silent.
	for range 2 * silentIntervals {
		typ, _, err := p.read()
		if err != nil || typ != framePing {
			t.Fatalf("got a frame of type %d, %v, want PING", typ, err)
		}
		p.write(p.frame(framePong, nil))
	}
	p.wantCut(s, errSilent)
}

// TestCloseSaysBye checks what a peer sees of a clean close.
func TestCloseSaysBye(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{})
	p := wireDial(t, l)
	s := p.join(dev, l)
	if err := s.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if typ, _, err := p.read(); err != nil || typ != frameBye {
		t.Fatalf("got a frame of type %d, %v, want BYE", typ, err)
	}
	if _, _, err := p.read(); err == nil {
		t.Error("something came after the BYE")
	}
}

// TestCloseDoesNotWaitForAPeerThatDoesNotRead closes a device whose peer has
// megabytes to read and does not.
func TestCloseDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	dev := newDevice(t)
	l := newListener(t, dev, Config{StallTimeout: time.Hour})
	p := wireDial(t, l)
	s := p.join(dev, l)
	p.write(p.packet(softnic.Packet{Kind: softnic.KindRead, DestQP: s.qp.Num(),
		Length: uint32(len(s.mr.Bytes())), Addr: s.mr.Addr(), RKey: s.mr.RKey()}))
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
}
