package stream

import (
	"context"
	"testing"

	"polder/internal/invariants"
	"polder/verbs"
)

// line is a client's queue pair that is connected to memory.
type line struct {
	qp            verbs.QP
	cq            verbs.CQ
	local, remote verbs.MR
}

const lineDepth = 128

// kinds are the sockets that there are.
var kinds = map[string]func(testing.TB, *Device, Config) verbs.Listener{"tcp": newListener, "unix": newUnixListener}

func newLine(t testing.TB, kind string) line {
	t.Helper()
	end := func() (*Device, verbs.QP, verbs.CQ, verbs.MR) {
		dev := newDevice(t)
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := dev.CreateCQ(verbs.CQInit{Depth: 2 * lineDepth})
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: lineDepth, RecvDepth: 1})
		if err != nil {
			t.Fatal(err)
		}
		mr, err := pd.RegMR(make([]byte, 1<<20), verbs.AccessLocalWrite|
			verbs.AccessRemoteRead|verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic)
		if err != nil {
			t.Fatal(err)
		}
		return dev, qp, cq, mr
	}
	var l line
	server, sqp, _, smr := end()
	client, qp, cq, mr := end()
	l.qp, l.cq, l.local, l.remote = qp, cq, mr, smr
	ln := kinds[kind](t, server, Config{})
	conn := dial(t, client, ln)
	accepted := make(chan error, 1)
	go func() {
		req, err := ln.Accept(context.Background())
		if err == nil {
			err = req.Accept(sqp, nil)
		}
		accepted <- err
	}()
	if _, err := conn.Connect(patient(t), qp, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	return l
}

func (l line) request(op verbs.Opcode, n int) verbs.SendWR {
	return verbs.SendWR{Op: op, Flags: verbs.SendSignaled,
		SGL:        []verbs.SGE{{Addr: l.local.Addr(), Length: uint32(n), LKey: l.local.LKey()}},
		RemoteAddr: l.remote.Addr(), RKey: l.remote.RKey()}
}

// do posts wrs and polls as many completions into wcs.
func (l line) do(t testing.TB, wrs []verbs.SendWR, wcs []verbs.WC) {
	if err := l.qp.PostSend(wrs...); err != nil {
		t.Fatal(err)
	}
	for left := len(wrs); left > 0; {
		n := l.cq.Poll(wcs)
		for _, wc := range wcs[:n] {
			if err := wc.Err(); err != nil {
				t.Fatal(err)
			}
		}
		if left -= n; n == 0 {
			if err := l.cq.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSteadyStateDoesNotAllocate counts the allocations of both ends.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) { testSteadyState(t, newLine(t, kind)) })
	}
}

func testSteadyState(t *testing.T, l line) {
	wcs := make([]verbs.WC, lineDepth)
	for _, c := range []struct {
		name string
		op   verbs.Opcode
		size int
		n    int // requests at a time
	}{
		{"READ of 64 B", verbs.OpRead, 64, 1},
		{"WRITE of 64 B", verbs.OpWrite, 64, 1},
		{"CMP_SWAP", verbs.OpCmpSwap, 8, 1},
		{"128 READs of 64 B", verbs.OpRead, 64, lineDepth},
		{"128 WRITEs of 64 B", verbs.OpWrite, 64, lineDepth},
		{"READ of 1 MiB", verbs.OpRead, 1 << 20, 1},
		{"WRITE of 1 MiB", verbs.OpWrite, 1 << 20, 1},
	} {
		var wrs []verbs.SendWR
		for range c.n {
			wrs = append(wrs, l.request(c.op, c.size))
		}
		if invariants.Enabled { // the race detector makes pools forget at random
			l.do(t, wrs, wcs)
			continue
		}
		allocs := 1.0
		for range 5 { // buffers may grow at first
			if allocs = testing.AllocsPerRun(100, func() { l.do(t, wrs, wcs) }); allocs == 0 {
				break
			}
		}
		if allocs != 0 {
			t.Errorf("%s: got %v allocations, want 0", c.name, allocs)
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	for kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			op := verbs.OpRead
			l := newLine(b, kind)
			wrs, wcs := []verbs.SendWR{l.request(op, 64)}, make([]verbs.WC, 1)
			b.ReportAllocs()
			for b.Loop() {
				l.do(b, wrs, wcs)
			}
		})
	}
}

// BenchmarkPipelined counts requests, of which up to 128 are on their way.
func BenchmarkPipelined(b *testing.B) {
	for _, c := range []struct {
		name string
		op   verbs.Opcode
		size int
	}{
		{"READ-64", verbs.OpRead, 64},
		{"WRITE-64", verbs.OpWrite, 64},
		{"READ-64KiB", verbs.OpRead, 64 << 10},
		{"WRITE-64KiB", verbs.OpWrite, 64 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLine(b, "tcp")
			var wrs []verbs.SendWR
			for range lineDepth {
				wrs = append(wrs, l.request(c.op, c.size))
			}
			wcs := make([]verbs.WC, lineDepth)
			b.ReportAllocs()
			b.SetBytes(int64(c.size))
			onWay := 0
			for i := 0; i < b.N; {
				if n := min(lineDepth-onWay, b.N-i); n > 0 {
					if err := l.qp.PostSend(wrs[:n]...); err != nil {
						b.Fatal(err)
					}
					onWay += n
				}
				if err := l.cq.Wait(context.Background()); err != nil {
					b.Fatal(err)
				}
				n := l.cq.Poll(wcs)
				onWay -= n
				i += n
			}
		})
	}
}
