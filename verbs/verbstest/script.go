package verbstest

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"

	"polder/verbs"
)

// Script is a random program over a pair of devices: batches of requests,
// right and wrong ones, through regions and windows, with binds,
// invalidations and receives between them. What fails is connected anew.
type Script struct {
	Seed  uint64
	Steps int
	// Doorbells posts every request of a batch by itself, which must make
	// no difference.
	Doorbells bool
}

const (
	scriptLanes   = 3
	scriptWindows = 4
	scriptBatch   = 8
)

// lane is a connected pair of queue pairs with completion queues of its own.
type lane struct {
	cqp, sqp verbs.QP
	ccq, scq verbs.CQ // send queues
	rcq      verbs.CQ // the server's receive queue
	recvs    int      // posted to the server's receive queue and not yet polled
}

type replay struct {
	*rig
	Script
	rand  *rand.Rand
	lanes [scriptLanes]*lane
	mws   [scriptWindows]verbs.MW
	keys  []verbs.RKey // that windows have or had
	nextW uint64       // next request ID
	out   strings.Builder
}

// Replay runs the script and returns what happened: every completion in the
// order of its queue, and checksums of both sides' memory after every step.
// The same script gives the same transcript over every driver.
func Replay(t *testing.T, p Pair, s Script) string {
	r := &replay{rig: newRig(t, p), Script: s, rand: rand.New(rand.NewPCG(s.Seed, 0))}
	for i := range r.lanes {
		r.lanes[i] = r.newLane()
	}
	for i := range r.mws {
		r.mws[i] = r.s.newMW([]verbs.MWType{verbs.MWType1, verbs.MWType2B}[i%2])
	}
	fill(r.c.buf, s.Seed)
	fill(r.s.buf, s.Seed+1)
	for step := range s.Steps {
		fmt.Fprintf(&r.out, "step %d:", step)
		lane := r.rand.IntN(scriptLanes)
		var ok bool
		switch k := r.rand.IntN(20); {
		case k < 12:
			ok = r.batch(r.lanes[lane])
		case k < 15:
			ok = r.bindStep(r.lanes[lane])
		case k < 17:
			ok = r.invalidateStep(r.lanes[lane])
		default:
			ok = r.recvStep(r.lanes[lane])
		}
		if !ok {
			r.lanes[lane] = r.replace(r.lanes[lane])
		}
		fmt.Fprintf(&r.out, " [client %08x, server %08x]\n", crc32.ChecksumIEEE(r.c.buf), crc32.ChecksumIEEE(r.s.buf))
	}
	return r.out.String()
}

func (r *replay) newLane() *lane {
	r.t.Helper()
	l := &lane{ccq: r.c.newCQ(4 * scriptBatch), scq: r.s.newCQ(4 * scriptBatch), rcq: r.s.newCQ(2 * sideDepth)}
	r.connect(l)
	return l
}

func (r *replay) connect(l *lane) {
	r.t.Helper()
	drop := func(verbs.AsyncEvent) {}
	l.cqp = r.c.newQPWith(verbs.QPInit{SendCQ: l.ccq, OnEvent: drop})
	l.sqp = r.s.newQPWith(verbs.QPInit{SendCQ: l.scq, RecvCQ: l.rcq, OnEvent: drop})
	r.join(l.cqp, l.sqp)
}

// replace connects a lane anew after a failure, once all that was posted to
// it has completed.
func (r *replay) replace(l *lane) *lane {
	r.t.Helper()
	r.collectRecvs(l, l.recvs)
	r.close(l.cqp, l.sqp)
	r.connect(l)
	r.out.WriteString(" (connected anew)")
	return l
}

func (r *replay) note(wc verbs.WC) {
	if wc.Status != passes {
		fmt.Fprintf(&r.out, " %d:%q", wc.ID, wc.Status)
		return
	}
	n := wc.ByteLen
	if wc.Op != verbs.OpRead && wc.Op != verbs.OpRecv {
		n = 0
	}
	fmt.Fprintf(&r.out, " %d:%v:%d", wc.ID, wc.Op, n)
}

// collectRecvs polls n receives.
func (r *replay) collectRecvs(l *lane, n int) {
	r.t.Helper()
	for _, wc := range poll(r.t, l.rcq, n) {
		r.note(wc)
	}
	l.recvs -= n
}

func (r *replay) id() uint64 { r.nextW++; return r.nextW }

// collect polls until the request of the given ID has completed, and reports
// whether all went well.
func (r *replay) collect(cq verbs.CQ, last uint64) (ok bool) {
	r.t.Helper()
	for ok = true; ; {
		wc := poll(r.t, cq, 1)[0]
		r.note(wc)
		ok = ok && wc.Status == passes
		if wc.ID == last {
			return ok
		}
	}
}

func (r *replay) post(qp verbs.QP, wrs []verbs.SendWR) {
	r.t.Helper()
	if !r.Doorbells {
		r.c.postTo(qp, wrs...)
		return
	}
	for _, wr := range wrs {
		r.c.postTo(qp, wr)
	}
}

// chance is true once in n times.
func (r *replay) chance(n int) bool { return r.rand.IntN(n) == 0 }

// span picks some bytes of a side's memory.
func (r *replay) span() (off, n int) {
	n = r.rand.IntN(300)
	if r.chance(6) {
		n = r.rand.IntN(200 << 10)
	}
	return r.rand.IntN(sideBuf - n + 1), n
}

// batch posts a batch of the client's.
func (r *replay) batch(l *lane) (ok bool) {
	r.t.Helper()
	var wrs []verbs.SendWR
	sends, fetched := 0, false
	for range 1 + r.rand.IntN(scriptBatch) {
		wr := r.request()
		// Without a fence, a READ may see what a later request does, and a
		// later request may or may not see what a READ brings.
		switch wr.Op {
		case verbs.OpRead:
			fetched = true
		case verbs.OpCmpSwap, verbs.OpFetchAdd, verbs.OpWrite, verbs.OpSend:
			if fetched {
				wr.Flags |= verbs.SendFence
			}
			fetched = fetched || wr.Op != verbs.OpWrite && wr.Op != verbs.OpSend
		}
		if wr.Op == verbs.OpSend {
			sends++
		}
		wrs = append(wrs, wr)
	}
	last := &wrs[len(wrs)-1]
	last.Flags |= verbs.SendSignaled
	r.post(l.cqp, wrs)
	if ok = r.collect(l.ccq, last.ID); ok {
		r.collectRecvs(l, sends)
	}
	return ok
}

func (r *replay) request() verbs.SendWR {
	ops := []verbs.Opcode{verbs.OpRead, verbs.OpRead, verbs.OpWrite, verbs.OpWrite, verbs.OpWrite,
		verbs.OpCmpSwap, verbs.OpFetchAdd, verbs.OpSend, verbs.OpNop}
	wr := verbs.SendWR{ID: r.id(), Op: ops[r.rand.IntN(len(ops))]}
	if r.chance(3) {
		wr.Flags |= verbs.SendSignaled
	}
	if r.chance(4) {
		wr.Flags |= verbs.SendFence
	}
	off, n := r.span()
	switch wr.Op {
	case verbs.OpCmpSwap, verbs.OpFetchAdd:
		off, n = 8*r.rand.IntN(sideBuf/8-2)+int(-r.s.mr.Addr()&7), 8
		wr.Compare, wr.Swap = r.rand.Uint64N(2), r.rand.Uint64()
	case verbs.OpSend:
		n = min(n, 1000)
	}
	r.aim(&wr, off, n)
	switch r.rand.IntN(60) { // now and then, something wrong
	case 0:
		wr.RKey ^= 0x80
	case 1:
		wr.RemoteAddr += sideBuf
	case 2:
		wr.RemoteAddr++
	case 3:
		if len(wr.SGL) > 0 {
			wr.SGL[len(wr.SGL)-1].LKey ^= 1
		}
	}
	return wr
}

// aim gives a request its local and remote memory, the latter sometimes
// through a window.
func (r *replay) aim(wr *verbs.SendWR, off, n int) {
	if wr.Op == verbs.OpNop {
		return
	}
	local := r.rand.IntN(sideBuf - n + 1)
	if cut := r.rand.IntN(n + 1); wr.Op <= verbs.OpWrite && r.chance(2) {
		wr.SGL = []verbs.SGE{r.c.sge(local, cut), r.c.sge(local+cut, n-cut)}
	} else {
		wr.SGL = r.c.at(local, n)
	}
	if wr.Op != verbs.OpSend {
		*wr = r.remote(*wr, off)
		if len(r.keys) > 0 && r.chance(8) {
			wr.RKey = r.keys[len(r.keys)-1-r.rand.IntN(min(4, len(r.keys)))]
		}
	}
}

// bindStep binds a window on a queue pair of the server's.
func (r *replay) bindStep(l *lane) (ok bool) {
	r.t.Helper()
	mw := r.mws[r.rand.IntN(scriptWindows)]
	off, n := r.span()
	if r.chance(2) {
		off, n = 0, sideBuf
	}
	wr := r.s.bind(mw, uint8(r.rand.Uint32()), off, n, windowAccess)
	wr.ID, wr.Flags = r.id(), verbs.SendSignaled
	if r.chance(10) {
		wr.BindLength += sideBuf
	}
	r.s.postTo(l.sqp, wr)
	ok = r.collect(l.scq, wr.ID)
	r.keys = append(r.keys, mw.RKey())
	return ok
}

func (r *replay) invalidateStep(l *lane) (ok bool) {
	r.t.Helper()
	mw := r.mws[r.rand.IntN(scriptWindows)]
	wr := verbs.SendWR{ID: r.id(), Op: verbs.OpLocalInv, RKey: mw.RKey(), Flags: verbs.SendSignaled}
	if r.chance(2) {
		wr.Flags |= verbs.SendAnyQP
	}
	r.s.postTo(l.sqp, wr)
	return r.collect(l.scq, wr.ID)
}

// recvStep posts receives at the server, most of them long enough.
func (r *replay) recvStep(l *lane) (ok bool) {
	r.t.Helper()
	for range min(8, sideDepth-l.recvs) {
		off, n := r.rand.IntN(sideBuf-1000), 1000
		if r.chance(10) {
			n = 100
		}
		wr := verbs.RecvWR{ID: r.id(), SGL: []verbs.SGE{r.s.sge(off, n/2), r.s.sge(off+n/2, n/2)}}
		if err := l.sqp.PostRecv(wr); err != nil {
			r.t.Fatal(err)
		}
		l.recvs++
	}
	return true
}
