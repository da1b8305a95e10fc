package maru

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWhatCameWhileTheProcessWasStoppedCountsFromThen plays the reader and the beat
// of a process that is stopped for ten seconds: whichever of them runs first
// afterwards, what came meanwhile is not taken for fresh.
func TestWhatCameWhileTheProcessWasStoppedCountsFromThen(t *testing.T) {
	const s = time.Second
	type spans [][2]time.Duration // in which the process ran
	once := func(t time.Duration) [2]time.Duration { return [2]time.Duration{t, t} }
	for name, c := range map[string]struct {
		ran        spans
		since, now time.Duration // the reader has waited since then
		want       time.Duration
	}{
		"nothing has happened":              {spans{{0, 1 * s}}, 0, 1*s + 1, 1*s + 1},
		"a beat is a little late":           {spans{{0, 1 * s}}, 0, 1*s + stalled, 1*s + stalled},
		"the reader runs first":             {spans{{0, 1 * s}}, 0, 11 * s, 1 * s},
		"the beat runs first":               {spans{{0, 1 * s}, once(11 * s)}, 0, 11*s + 1, 1 * s},
		"and the reader a little later":     {spans{{0, 1 * s}, {11 * s, 11*s + 2*beatEvery}}, 0, 11*s + 2*beatEvery + 1, 1 * s},
		"the reader has waited from within": {spans{{0, 1 * s}, once(11 * s)}, 5 * s, 11*s + 1, 5 * s},
		"the reader has waited from after":  {spans{{0, 1 * s}, once(11 * s)}, 11*s + 1, 11*s + 2, 11*s + 2},
		"long after, from before":           {spans{{0, 1 * s}, {11 * s, 13 * s}}, 0, 13*s + 1, 13*s + 1},
	} {
		w := newStalls()
		for _, span := range c.ran {
			for at := span[0]; at <= span[1]; at += beatEvery {
				w.pulse(at)
			}
		}
		if got := w.earliest(c.since, c.now); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestWhatWasThereAlreadyIsNotFresh, however long it takes to read it.
func TestWhatWasThereAlreadyIsNotFresh(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	client, err := net.Dial("tcp", nl.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := nl.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	a := newArrivals(server, newStalls())
	a.before = func() error { return nil }
	const size = 32 << 10 // less than a socket takes
	if _, err := client.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	raw, err := server.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for there := 0; there < size; time.Sleep(time.Millisecond) {
		if err := raw.Control(func(fd uintptr) { there, err = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sent := time.Now()
	p := make([]byte, size+1)
	if n, err := a.Read(p); n != size || err != nil {
		t.Fatal(n, err)
	}
	if a.latest.After(sent) {
		t.Errorf("what was there at %v counts as come %v later", sent, a.latest.Sub(sent))
	}

	// What is waited for is.
	go func() {
		time.Sleep(20 * time.Millisecond)
		_, _ = client.Write([]byte("x"))
	}()
	if n, err := a.Read(p); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if late := time.Since(a.latest); late > stalled || a.latest.Before(sent.Add(20*time.Millisecond)) {
		t.Errorf("what has just come counts as come %v ago", late)
	}
	client.Close()
	if n, err := a.Read(p); n != 0 || !gone(err) {
		t.Errorf("at the end: got %d, %v", n, err)
	}
	if err := server.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(p); n != 0 || err == nil {
		t.Errorf("after a deadline: got %d, %v", n, err)
	}
}
