package verbstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"polder/verbs"
)

var dataTests = []test{
	{"WRITE and READ move every size", testSizes},
	{"SGLs gather and scatter", testSGL},
	{"an indirect SGL is read from memory", testIndirectSGL},
	{"WRITE is seen by the READ behind it", testWriteThenRead},
	{"a fence waits for the READs before it", testFence},
	{"CMP_SWAP swaps if equal and returns the old value", testCmpSwap},
	{"FETCH_ADD adds and returns the old value", testFetchAdd},
	{"a misaligned atomic is refused", testMisaligned},
	{"SENDs arrive in order, after the WRITEs before them", testSend},
	{"a SEND that does not fit fails on both sides", testSendTooLong},
	{"a SEND without a receive fails", testRNR},
	{"both ends may initiate", testBothWays},
	{"a message over the limit is refused", testTooLarge},
	{"NOP completes", func(t *testing.T, p Pair) { newRig(t, p).c.must(verbs.SendWR{ID: 1, Op: verbs.OpNop}) }},
}

func testSizes(t *testing.T, p Pair) {
	r := newRig(t, p)
	const most = 3 << 20
	local, remote := make([]byte, most), make([]byte, most+2)
	lmr, rmr := r.c.reg(local, allAccess), r.s.reg(remote, allAccess)
	for _, n := range []int{0, 1, 7, 8, 9, 63, 64, 65, 4095, 4096, 64<<10 - 1, 64 << 10, 64<<10 + 1, 200_001, 1 << 20, most} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if n > int(r.c.dev.Attr().MaxMsgSize) {
				return
			}
			want := make([]byte, n)
			fill(want, uint64(n))
			clear(remote)
			copy(local, want)
			sgl := []verbs.SGE{{Addr: lmr.Addr(), Length: uint32(n), LKey: lmr.LKey()}}
			wr := verbs.SendWR{ID: uint64(n), Op: verbs.OpWrite, SGL: sgl, RemoteAddr: rmr.Addr() + 1, RKey: rmr.RKey()}
			r.c.must(wr)
			wantBytes(t, "after WRITE", remote[1:1+n], want)
			if remote[0] != 0 || remote[1+n] != 0 {
				t.Error("the WRITE touched its neighbours")
			}
			clear(local)
			wr.Op = verbs.OpRead
			if wc := r.c.must(wr); wc.ByteLen != uint32(n) {
				t.Errorf("the READ's completion says %d bytes, want %d", wc.ByteLen, n)
			}
			wantBytes(t, "after READ", local[:n], want)
			if n < most && local[n] != 0 {
				t.Error("the READ touched what lies behind its buffer")
			}
		})
	}
}

func testSGL(t *testing.T, p Pair) {
	r := newRig(t, p)
	fill(r.c.buf[:100], 1)
	fill(r.c.buf[1000:1300], 2)
	want := append(append([]byte{}, r.c.buf[:100]...), r.c.buf[1000:1300]...)
	r.c.must(r.remote(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{r.c.sge(0, 100), r.c.sge(1000, 300)}}, 5))
	wantBytes(t, "gathered", r.s.buf[5:405], want)
	r.c.must(r.remote(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{r.c.sge(2000, 399), r.c.sge(4000, 1)}}, 5))
	wantBytes(t, "scattered, first", r.c.buf[2000:2399], want[:399])
	wantBytes(t, "scattered, second", r.c.buf[4000:4001], want[399:])
}

func testIndirectSGL(t *testing.T, p Pair) {
	r := newRig(t, p)
	const table = 100 << 10
	if !r.c.dev.Attr().WaitEnable {
		err := r.c.qp.PostSend(r.remote(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSGLIndirect, SGL: r.c.at(table, 16)}, 0))
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("an indirect SGL on a device without: got %v, want ErrInvalid", err)
		}
		return
	}
	parts := min(40, r.c.dev.Attr().MaxSGE)
	var want []byte
	for i := range parts {
		off, n := 500*i, 10+i
		fill(r.c.buf[off:off+n], uint64(i))
		want = append(want, r.c.buf[off:off+n]...)
		verbs.PutSGE(r.c.buf[table+i*verbs.SGESize:], r.c.sge(off, n))
	}
	r.c.must(r.remote(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSGLIndirect,
		SGL: r.c.at(table, parts*verbs.SGESize)}, 0))
	wantBytes(t, "gathered", r.s.buf[:len(want)], want)
	for i := range parts {
		clear(r.c.buf[500*i : 500*i+10+i])
	}
	r.c.must(r.remote(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSGLIndirect,
		SGL: r.c.at(table, parts*verbs.SGESize)}, 0))
	var got []byte
	for i := range parts {
		got = append(got, r.c.buf[500*i:500*i+10+i]...)
	}
	wantBytes(t, "scattered", got, want)
}

func testWriteThenRead(t *testing.T, p Pair) {
	r := newRig(t, p)
	for i := range 50 {
		n := 1 + i*3000
		fill(r.c.buf[:min(n, 100<<10)], uint64(i))
		n = min(n, 100<<10)
		r.c.post(
			r.remote(verbs.SendWR{Op: verbs.OpWrite, SGL: r.c.at(0, n)}, 0),
			r.remote(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: r.c.at(128<<10, n)}, 0))
		if wc := poll(t, r.c.cq, 1)[0]; wc.Status != verbs.StatusSuccess || wc.Op != verbs.OpRead {
			t.Fatalf("got %+v, want the READ to succeed", wc)
		}
		wantBytes(t, "read back", r.c.buf[128<<10:128<<10+n], r.c.buf[:n])
	}
}

func testFence(t *testing.T, p Pair) {
	r := newRig(t, p)
	const n = 80 << 10
	for i := range 20 {
		fill(r.s.buf[:n], uint64(i))
		r.c.post(
			r.remote(verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(0, n)}, 0),
			r.remote(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled | verbs.SendFence, SGL: r.c.at(0, n)}, 100<<10))
		if wc := poll(t, r.c.cq, 1)[0]; wc.Status != verbs.StatusSuccess {
			t.Fatal(wc.Status)
		}
		wantBytes(t, "copied through the client", r.s.buf[100<<10:100<<10+n], r.s.buf[:n])
	}
}

func testCmpSwap(t *testing.T, p Pair) {
	r := newRig(t, p)
	word := r.s.buf[64:72]
	for _, c := range []struct{ have, compare, swap, want uint64 }{
		{0, 0, 1, 1},
		{1, 0, 2, 1},
		{1, 1, ^uint64(0), ^uint64(0)},
		{^uint64(0), 1 << 63, 5, ^uint64(0)},
		{0x0102030405060708, 0x0102030405060708, 0x1112131415161718, 0x1112131415161718},
	} {
		binary.NativeEndian.PutUint64(word, c.have)
		wc := r.c.must(r.remote(verbs.SendWR{Op: verbs.OpCmpSwap, SGL: r.c.at(0, 8), Compare: c.compare, Swap: c.swap}, 64))
		if wc.ByteLen != 8 {
			t.Errorf("the completion says %d bytes, want 8", wc.ByteLen)
		}
		if old := binary.NativeEndian.Uint64(r.c.buf); old != c.have {
			t.Errorf("%+v: got the old value %#x", c, old)
		}
		if now := binary.NativeEndian.Uint64(word); now != c.want {
			t.Errorf("%+v: memory holds %#x", c, now)
		}
	}
}

func testFetchAdd(t *testing.T, p Pair) {
	r := newRig(t, p)
	sum := uint64(0)
	for i, add := range []uint64{1, 0, 1 << 40, ^uint64(0), 1 << 63, 1 << 63} {
		r.c.must(r.remote(verbs.SendWR{Op: verbs.OpFetchAdd, SGL: r.c.at(8*i, 8), Swap: add}, 128))
		if old := binary.NativeEndian.Uint64(r.c.buf[8*i:]); old != sum {
			t.Errorf("addition %d: got the old value %#x, want %#x", i, old, sum)
		}
		sum += add
		if now := binary.NativeEndian.Uint64(r.s.buf[128:]); now != sum {
			t.Errorf("addition %d: memory holds %#x, want %#x", i, now, sum)
		}
	}
}

func testMisaligned(t *testing.T, p Pair) {
	r := newRig(t, p)
	for _, op := range []verbs.Opcode{verbs.OpCmpSwap, verbs.OpFetchAdd} {
		cqp, sqp := r.joinMore()
		off := 4
		for (r.s.mr.Addr()+uint64(off))%8 == 0 {
			off++
		}
		wc := r.c.doOn(cqp, r.remote(verbs.SendWR{Op: op, SGL: r.c.at(0, 8), Swap: 1}, off))
		if wc.Status != verbs.StatusRemInvReqErr {
			t.Errorf("%v: got %v, want %v", op, wc.Status, verbs.StatusRemInvReqErr)
		}
		wantState(t, cqp, verbs.StateError)
		r.s.event(verbs.EventQPReqErr, sqp)
	}
}

func testSend(t *testing.T, p Pair) {
	r := newRig(t, p)
	const n, size = 16, 3000
	for i := range n {
		// Two SGEs, and room to spare.
		r.s.recv(verbs.RecvWR{ID: uint64(100 + i), SGL: []verbs.SGE{r.s.sge(4096*i, 10), r.s.sge(4096*i+10, size)}})
	}
	fill(r.c.buf[:n*size], 3)
	for i := range n {
		fill(r.c.buf[128<<10:128<<10+8], uint64(i))
		r.c.post(
			r.remote(verbs.SendWR{Op: verbs.OpWrite, SGL: r.c.at(i, 8)}, 200<<10),
			verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: r.c.at(i*size, size-i)})
		wc := poll(t, r.s.rcq, 1)[0]
		want := verbs.WC{ID: uint64(100 + i), Op: verbs.OpRecv, QPN: r.s.qp.Num(), ByteLen: uint32(size - i)}
		if wc != want {
			t.Fatalf("receive: got %+v, want %+v", wc, want)
		}
		wantBytes(t, "received", r.s.buf[4096*i:4096*i+size-i], r.c.buf[i*size:i*size+size-i])
		wantBytes(t, "written before", r.s.buf[200<<10:200<<10+8], r.c.buf[i:i+8])
		if wc := poll(t, r.c.cq, 1)[0]; wc.Status != verbs.StatusSuccess || wc.ID != uint64(i) || wc.Op != verbs.OpSend {
			t.Fatalf("send: got %+v", wc)
		}
	}
}

func testSendTooLong(t *testing.T, p Pair) {
	r := newRig(t, p)
	r.s.recv(verbs.RecvWR{ID: 9, SGL: r.s.at(0, 99)})
	// Some devices call it the receiver's own error.
	wc := r.c.do(verbs.SendWR{ID: 8, Op: verbs.OpSend, SGL: r.c.at(0, 100)})
	if wc.Status != verbs.StatusRemInvReqErr && wc.Status != verbs.StatusRemOpErr {
		t.Errorf("sender: got %v, want %v", wc.Status, verbs.StatusRemInvReqErr)
	}
	if wc := poll(t, r.s.rcq, 1)[0]; wc.ID != 9 || wc.Status != verbs.StatusLocLenErr {
		t.Errorf("receiver: got %+v, want %v", wc, verbs.StatusLocLenErr)
	}
	wantState(t, r.c.qp, verbs.StateError)
	wantState(t, r.s.qp, verbs.StateError)
}

func testRNR(t *testing.T, p Pair) {
	r := newRig(t, p)
	if wc := r.c.do(verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: r.c.at(0, 10)}); wc.Status != verbs.StatusRNRRetryExcErr {
		t.Errorf("got %v, want %v", wc.Status, verbs.StatusRNRRetryExcErr)
	}
	wantState(t, r.c.qp, verbs.StateError)
}

func testBothWays(t *testing.T, p Pair) {
	r := newRig(t, p)
	fill(r.s.buf[:1000], 4)
	r.s.must(verbs.SendWR{Op: verbs.OpWrite, SGL: r.s.at(0, 1000), RemoteAddr: r.c.mr.Addr(), RKey: r.c.mr.RKey()})
	wantBytes(t, "written by the server", r.c.buf[:1000], r.s.buf[:1000])
	r.c.must(r.remote(verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(2000, 1000)}, 0))
	wantBytes(t, "read by the client", r.c.buf[2000:3000], r.s.buf[:1000])
	r.c.recv(verbs.RecvWR{ID: 5, SGL: r.c.at(4000, 8)})
	r.s.must(verbs.SendWR{Op: verbs.OpSend, SGL: r.s.at(16, 8)})
	if wc := poll(t, r.c.rcq, 1)[0]; wc.ID != 5 || wc.ByteLen != 8 {
		t.Errorf("got %+v, want receive 5 of 8 bytes", wc)
	}
}

func testTooLarge(t *testing.T, p Pair) {
	r := newRig(t, p)
	over := r.c.dev.Attr().MaxMsgSize + 1
	wr := r.remote(verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.SendSignaled,
		SGL: []verbs.SGE{{Addr: r.c.mr.Addr(), Length: over, LKey: r.c.mr.LKey()}}}, 0)
	if err := r.c.qp.PostSend(wr); err != nil {
		return // refused at once: as good
	}
	if wc := poll(t, r.c.cq, 1)[0]; wc.Status == verbs.StatusSuccess {
		t.Errorf("a WRITE of %d bytes succeeded, MaxMsgSize is %d", over, over-1)
	}
}
