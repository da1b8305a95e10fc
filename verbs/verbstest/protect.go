package verbstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"polder/verbs"
)

var protectionTests = []test{
	{"the remote side checks every access", testRemoteAccess},
	{"the local side checks every access", testLocalAccess},
	{"a deregistered region is gone", testDereg},
	{"a queue pair's failure is its own", testIsolation},
	{"an ended queue pair writes no more", testEndedWritesNoMore},
}

func le64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

// testRemoteAccess runs every kind of access against regions that allow too
// little, on a fresh queue pair each.
func testRemoteAccess(t *testing.T, p Pair) {
	r := newRig(t, p)
	const size = 4096
	all := verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	otherPD := newSide(t, p.Server)
	foreign := otherPD.reg(make([]byte, size), all)
	open := r.s.reg(make([]byte, size), all)

	type access struct {
		op     verbs.Opcode
		needs  verbs.Access
		length int
	}
	accesses := []access{
		{verbs.OpRead, verbs.AccessRemoteRead, 64},
		{verbs.OpWrite, verbs.AccessRemoteWrite, 64},
		{verbs.OpCmpSwap, verbs.AccessRemoteAtomic, 8},
		{verbs.OpFetchAdd, verbs.AccessRemoteAtomic, 8},
	}
	for _, a := range accesses {
		type target struct {
			name string
			mr   verbs.MR
			key  verbs.RKey
			off  int64
			ok   bool
		}
		n := int64(a.length)
		targets := []target{
			{"all of it", open, open.RKey(), size - n, true},
			{"past its end", open, open.RKey(), size - n + 8, false},
			{"before its start", open, open.RKey(), -8, false},
			{"far away", open, open.RKey(), -int64(open.Addr()) - n, false},
			{"a wrong key", open, open.RKey() ^ 0x01, 0, false},
			{"a wrong index", open, open.RKey() ^ 0x00f00000, 0, false},
			{"key 0", open, 0, 0, false},
			{"another domain", foreign, foreign.RKey(), 0, false},
		}
		for _, allowed := range []verbs.Access{0, verbs.AccessRemoteRead,
			verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
			verbs.AccessLocalWrite | verbs.AccessRemoteAtomic,
			all &^ a.needs} {
			mr := r.s.reg(make([]byte, size), allowed)
			targets = append(targets, target{"a region that allows " + allowed.String(), mr, mr.RKey(), 0, allowed.Has(a.needs)})
		}
		for _, to := range targets {
			name := fmt.Sprintf("%v of %s", a.op, to.name)
			cqp, sqp := r.joinMore()
			clear(r.c.buf[:64])
			wc := r.c.doOn(cqp, verbs.SendWR{ID: 1, Op: a.op, SGL: r.c.at(0, a.length),
				RemoteAddr: uint64(int64(to.mr.Addr()) + to.off), RKey: to.key, Swap: 0})
			if to.ok {
				if wc.Status != verbs.StatusSuccess {
					t.Errorf("%s: got %v, want success", name, wc.Status)
				}
				wantState(t, sqp, verbs.StateRTS)
			} else {
				if wc.Status != verbs.StatusRemAccessErr {
					t.Errorf("%s: got %v, want %v", name, wc.Status, verbs.StatusRemAccessErr)
				}
				wantState(t, cqp, verbs.StateError)
				r.s.event(verbs.EventQPAccessErr, sqp)
				wantState(t, sqp, verbs.StateError)
			}
			r.close(cqp, sqp)
		}
	}
}

// close closes queue pairs that are done with.
func (r *rig) close(qps ...verbs.QP) {
	r.t.Helper()
	for _, qp := range qps {
		if err := qp.Close(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func testLocalAccess(t *testing.T, p Pair) {
	r := newRig(t, p)
	readOnly := r.c.reg(make([]byte, 64), verbs.AccessRemoteRead)
	other := newSide(t, p.Client)
	gone := r.c.reg(make([]byte, 64), allAccess)
	goneSGE := verbs.SGE{Addr: gone.Addr(), Length: 8, LKey: gone.LKey()}
	if err := gone.Deregister(); err != nil {
		t.Fatal(err)
	}
	mine := r.c.sge(0, 8)
	end := r.c.sge(sideBuf-4, 8)
	wrongKey := mine
	wrongKey.LKey ^= 1
	for _, c := range []struct {
		name string
		op   verbs.Opcode
		sge  verbs.SGE
		ok   bool
	}{
		{"READ into writable memory", verbs.OpRead, mine, true},
		{"READ into read-only memory", verbs.OpRead, verbs.SGE{Addr: readOnly.Addr(), Length: 8, LKey: readOnly.LKey()}, false},
		{"CMP_SWAP into read-only memory", verbs.OpCmpSwap, verbs.SGE{Addr: readOnly.Addr(), Length: 8, LKey: readOnly.LKey()}, false},
		{"WRITE from read-only memory", verbs.OpWrite, verbs.SGE{Addr: readOnly.Addr(), Length: 8, LKey: readOnly.LKey()}, true},
		{"WRITE from past the end", verbs.OpWrite, end, false},
		{"READ past the end", verbs.OpRead, end, false},
		{"SEND from past the end", verbs.OpSend, end, false},
		{"WRITE with a wrong lkey", verbs.OpWrite, wrongKey, false},
		{"WRITE from another domain", verbs.OpWrite, other.sge(0, 8), false},
		{"WRITE from a deregistered region", verbs.OpWrite, goneSGE, false},
	} {
		cqp, sqp := r.joinMore()
		wc := r.c.doOn(cqp, r.remote(verbs.SendWR{ID: 1, Op: c.op, SGL: []verbs.SGE{c.sge}}, 0))
		switch {
		case c.ok && wc.Status != verbs.StatusSuccess:
			t.Errorf("%s: got %v, want success", c.name, wc.Status)
		case !c.ok && wc.Status != verbs.StatusLocProtErr:
			t.Errorf("%s: got %v, want %v", c.name, wc.Status, verbs.StatusLocProtErr)
		case !c.ok:
			wantState(t, cqp, verbs.StateError)
		}
		r.close(cqp, sqp)
	}
	// A receive into memory that may not be written.
	cqp, sqp := r.joinMore()
	ro := r.s.reg(make([]byte, 64), 0)
	if err := sqp.PostRecv(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{{Addr: ro.Addr(), Length: 64, LKey: ro.LKey()}}}); err != nil {
		t.Fatal(err)
	}
	if wc := r.c.doOn(cqp, verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: r.c.at(0, 8)}); wc.Status != verbs.StatusRemOpErr {
		t.Errorf("SEND into a read-only receive: got %v, want %v", wc.Status, verbs.StatusRemOpErr)
	}
	if wc := poll(t, r.s.rcq, 1)[0]; wc.ID != 3 || wc.Status != verbs.StatusLocProtErr {
		t.Errorf("a read-only receive: got %+v, want %v", wc, verbs.StatusLocProtErr)
	}
	wantState(t, sqp, verbs.StateError)
}

func testDereg(t *testing.T, p Pair) {
	r := newRig(t, p)
	mr := r.s.reg(make([]byte, 64), allAccess)
	wr := verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(0, 8), RemoteAddr: mr.Addr(), RKey: mr.RKey()}
	r.c.must(wr)
	if err := mr.Deregister(); err != nil {
		t.Fatal(err)
	}
	// A new region may take the old one's place, but not its key.
	again := r.s.reg(mr.Bytes(), allAccess)
	if again.RKey() == mr.RKey() {
		t.Errorf("the key %v was given out again at once", mr.RKey())
	}
	if wc := r.c.do(wr); wc.Status != verbs.StatusRemAccessErr {
		t.Errorf("got %v, want %v", wc.Status, verbs.StatusRemAccessErr)
	}
	if err := mr.Deregister(); err != nil && !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("second Deregister: got %v, want nothing or ErrClosed", err)
	}
}

func testIsolation(t *testing.T, p Pair) {
	r := newRig(t, p)
	cqp, sqp := r.joinMore()
	if wc := r.c.doOn(cqp, verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(0, 8)}); wc.Status != verbs.StatusRemAccessErr {
		t.Fatalf("got %v, want %v", wc.Status, verbs.StatusRemAccessErr)
	}
	wantState(t, cqp, verbs.StateError)
	r.s.event(verbs.EventQPAccessErr, sqp)
	wantState(t, r.c.qp, verbs.StateRTS)
	wantState(t, r.s.qp, verbs.StateRTS)
	r.c.must(r.remote(verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(0, 8)}, 0))
}
