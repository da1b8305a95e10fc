package verbstest

import (
	"errors"
	"testing"

	"polder/verbs"
)

var windowTests = []test{
	{"an unbound window lets nothing through", testUnbound},
	{"a window narrows bounds", testWindowBounds},
	{"a window narrows access", testWindowAccess},
	{"type 1 serves the whole domain and is rebound while bound", testType1},
	{"type 1 is unbound by a bind of length 0", testType1Unbind},
	{"type 2B serves one queue pair", testType2},
	{"type 2B is assigned to the queue pair that the bind names", testType2Assign},
	{"type 2B must be invalidated before it is bound again", testType2Rebind},
	{"only its queue pair invalidates a type 2B window", testInvalidate},
	{"the owner's any-QP flag invalidates any window of the domain", testInvalidateAny},
	{"wrong binds are refused", testWrongBinds},
	{"a region with bound windows stays", testDeregBound},
	{"deallocating a bound window revokes it", testDeallocBound},
}

// bind is a BIND_MW of length bytes at off of the side's memory, to key unless
// that is the window's key already.
func (s *side) bind(mw verbs.MW, key uint8, off, length int, access verbs.Access) verbs.SendWR {
	if mw.RKey().Key() == key {
		key ^= 0x80
	}
	return verbs.SendWR{
		Op: verbs.OpBindMW, RKey: verbs.MakeRKey(mw.RKey().Index(), key), BindLKey: s.mr.LKey(),
		RemoteAddr: s.mr.Addr() + uint64(off), BindLength: uint64(length), BindAccess: access,
	}
}

func (s *side) newMW(typ verbs.MWType) verbs.MW {
	s.t.Helper()
	mw, err := s.pd.AllocMW(typ)
	if err != nil {
		s.t.Fatal(err)
	}
	if mw.Type() != typ {
		s.t.Fatalf("got a window of %v, want %v", mw.Type(), typ)
	}
	return mw
}

const windowAccess = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// through makes one access of the client's over qp with the given key, and
// checks whether it gets through. The queue pair is spent if it does not.
func (r *rig) through(what string, qp verbs.QP, op verbs.Opcode, key verbs.RKey, off, length int, want verbs.Status) {
	r.t.Helper()
	wc := r.c.doOn(qp, verbs.SendWR{ID: 7, Op: op, SGL: r.c.at(0, length),
		RemoteAddr: r.s.mr.Addr() + uint64(off), RKey: key})
	if wc.Status != want {
		r.t.Errorf("%s: got %v, want %v", what, wc.Status, want)
	}
}

const (
	passes  = verbs.StatusSuccess
	refused = verbs.StatusRemAccessErr
)

func testUnbound(t *testing.T, p Pair) {
	r := newRig(t, p)
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2B} {
		mw := r.s.newMW(typ)
		cqp, _ := r.joinMore()
		r.through(typ.String(), cqp, verbs.OpRead, mw.RKey(), 0, 8, refused)
	}
}

func testWindowBounds(t *testing.T, p Pair) {
	r := newRig(t, p)
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2B} {
		mw := r.s.newMW(typ)
		for i, c := range []struct {
			off, length int
			want        verbs.Status
		}{
			{1000, 500, passes}, {1000, 1, passes}, {1499, 1, passes}, {1200, 300, passes},
			{999, 1, refused}, {999, 2, refused}, {1500, 1, refused}, {1499, 2, refused},
			{1000, 501, refused}, {0, 8, refused}, {5000, 8, refused},
		} {
			if !p.Server.Attr().BoundsMW && c.want == refused {
				continue // the device owns up to it, and so does the node
			}
			cqp, sqp := r.joinMore()
			r.s.mustOn(sqp, r.s.bind(mw, uint8(i), 1000, 500, windowAccess))
			for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite} {
				if c.want == refused && op == verbs.OpWrite {
					break // the READ has spent the queue pair
				}
				r.through(typ.String(), cqp, op, mw.RKey(), c.off, c.length, c.want)
			}
			if typ == verbs.MWType2B {
				if err := mw.Dealloc(); err != nil {
					t.Fatal(err)
				}
				mw = r.s.newMW(typ)
			}
			r.close(cqp, sqp)
		}
	}
}

func testWindowAccess(t *testing.T, p Pair) {
	r := newRig(t, p)
	for i, c := range []struct {
		access verbs.Access
		op     verbs.Opcode
		want   verbs.Status
	}{
		{verbs.AccessRemoteRead, verbs.OpRead, passes},
		{verbs.AccessRemoteRead, verbs.OpWrite, refused},
		{verbs.AccessRemoteRead, verbs.OpFetchAdd, refused},
		{verbs.AccessRemoteWrite, verbs.OpRead, refused},
		{verbs.AccessRemoteWrite, verbs.OpWrite, passes},
		{verbs.AccessRemoteWrite, verbs.OpCmpSwap, refused},
		{verbs.AccessRemoteAtomic, verbs.OpRead, refused},
		{verbs.AccessRemoteAtomic, verbs.OpWrite, refused},
		{verbs.AccessRemoteAtomic, verbs.OpCmpSwap, passes},
		{verbs.AccessRemoteAtomic, verbs.OpFetchAdd, passes},
	} {
		cqp, sqp := r.joinMore()
		mw := r.s.newMW(verbs.MWType2B)
		off := int(-r.s.mr.Addr() & 7) // aligned for atomics
		r.s.mustOn(sqp, r.s.bind(mw, uint8(i), off, 64, c.access))
		r.through(c.op.String()+" through a window for "+c.access.String(), cqp, c.op, mw.RKey(), off, 8, c.want)
	}
}

func testType1(t *testing.T, p Pair) {
	r := newRig(t, p)
	other, _ := r.joinMore()
	mw := r.s.newMW(verbs.MWType1)
	before := mw.RKey()
	wr := r.s.bind(mw, 0x11, 0, 64, windowAccess)
	r.s.must(wr)
	chosen := !p.Server.Attr().Type1Keys && mw.RKey().Key() != before.Key() // by the device
	if got := mw.RKey(); got != wr.RKey && !chosen || got.Index() != before.Index() {
		t.Errorf("after the bind the key is %v, want %v", got, wr.RKey)
	}
	first := mw.RKey()
	r.through("the binder's queue pair", r.c.qp, verbs.OpRead, first, 0, 64, passes)
	r.through("another queue pair", other, verbs.OpRead, first, 0, 64, passes)

	r.s.must(r.s.bind(mw, 0x22, 128, 64, windowAccess))
	r.through("the new binding", r.c.qp, verbs.OpRead, mw.RKey(), 128, 64, passes)
	r.through("the old key", other, verbs.OpRead, first, 0, 8, refused)
	if p.Server.Attr().BoundsMW {
		r.through("the old range under the new key", r.c.qp, verbs.OpRead, mw.RKey(), 0, 8, refused)
	}
}

func testType1Unbind(t *testing.T, p Pair) {
	r := newRig(t, p)
	mw := r.s.newMW(verbs.MWType1)
	r.s.must(r.s.bind(mw, 1, 0, 64, windowAccess))
	r.through("bound", r.c.qp, verbs.OpRead, mw.RKey(), 0, 64, passes)
	r.s.must(r.s.bind(mw, 2, 0, 0, 0))
	r.through("unbound", r.c.qp, verbs.OpRead, mw.RKey(), 0, 8, refused)
}

func testType2(t *testing.T, p Pair) {
	r := newRig(t, p)
	other, _ := r.joinMore()
	mw := r.s.newMW(verbs.MWType2B)
	wr := r.s.bind(mw, 0x33, 0, 64, windowAccess)
	r.s.must(wr)
	if got := mw.RKey(); got != wr.RKey {
		t.Errorf("after the bind the key is %v, want %v", got, wr.RKey)
	}
	r.through("its queue pair", r.c.qp, verbs.OpRead, mw.RKey(), 0, 64, passes)
	r.through("another queue pair", other, verbs.OpRead, mw.RKey(), 0, 64, refused)
	r.through("its queue pair, still", r.c.qp, verbs.OpRead, mw.RKey(), 0, 64, passes)
}

func testType2Assign(t *testing.T, p Pair) {
	r := newRig(t, p)
	other, otherS := r.joinMore()
	mw := r.s.newMW(verbs.MWType2B)
	wr := r.s.bind(mw, 0x44, 0, 64, windowAccess)
	wr.QPN = otherS.Num()
	r.s.must(wr) // posted to s.qp, for otherS
	r.through("the assigned queue pair", other, verbs.OpWrite, mw.RKey(), 0, 64, passes)
	r.through("the queue pair that posted the bind", r.c.qp, verbs.OpWrite, mw.RKey(), 0, 64, refused)
}

func testType2Rebind(t *testing.T, p Pair) {
	r := newRig(t, p)
	mw := r.s.newMW(verbs.MWType2B)
	r.s.must(r.s.bind(mw, 1, 0, 64, windowAccess))
	r.s.must(verbs.SendWR{Op: verbs.OpLocalInv, RKey: mw.RKey()})
	r.s.must(r.s.bind(mw, 2, 64, 64, windowAccess))
	r.through("bound again", r.c.qp, verbs.OpRead, mw.RKey(), 64, 64, passes)
	if wc := r.s.do(r.s.bind(mw, 3, 0, 64, windowAccess)); wc.Status != verbs.StatusMWBindErr {
		t.Errorf("a bind of a bound window: got %v, want %v", wc.Status, verbs.StatusMWBindErr)
	}
	wantState(t, r.s.qp, verbs.StateError)
}

func testInvalidate(t *testing.T, p Pair) {
	r := newRig(t, p)
	other, otherS := r.joinMore()
	mw := r.s.newMW(verbs.MWType2B)
	r.s.must(r.s.bind(mw, 1, 0, 64, windowAccess))
	key := mw.RKey()
	if wc := r.s.doOn(otherS, verbs.SendWR{Op: verbs.OpLocalInv, RKey: key}); wc.Status == passes {
		t.Error("another queue pair invalidated the window")
	}
	r.through("not invalidated", r.c.qp, verbs.OpRead, key, 0, 8, passes)
	r.s.must(verbs.SendWR{Op: verbs.OpLocalInv, RKey: key})
	r.through("invalidated", r.c.qp, verbs.OpRead, key, 0, 8, refused)
	_ = other
}

func testInvalidateAny(t *testing.T, p Pair) {
	r := newRig(t, p)
	_, otherS := r.joinMore()
	mw := r.s.newMW(verbs.MWType2B)
	r.s.must(r.s.bind(mw, 1, 0, 64, windowAccess))
	key := mw.RKey()
	r.s.mustOn(otherS, verbs.SendWR{Op: verbs.OpLocalInv, Flags: verbs.SendAnyQP, RKey: key})
	r.through("invalidated", r.c.qp, verbs.OpRead, key, 0, 8, refused)
}

func testWrongBinds(t *testing.T, p Pair) {
	r := newRig(t, p)
	plain := r.s.reg(make([]byte, 4096), allAccess&^verbs.AccessMWBind)
	readable := r.s.reg(make([]byte, 4096), verbs.AccessRemoteRead|verbs.AccessMWBind)
	foreign := newSide(t, p.Server)
	type change func(wr *verbs.SendWR, mw verbs.MW)
	for name, c := range map[string]change{
		"past the region's end": func(wr *verbs.SendWR, _ verbs.MW) { wr.RemoteAddr += sideBuf - 8 },
		"before its start":      func(wr *verbs.SendWR, _ verbs.MW) { wr.RemoteAddr -= 8 },
		"a length that wraps":   func(wr *verbs.SendWR, _ verbs.MW) { wr.BindLength = ^uint64(0) },
		"a wrong lkey":          func(wr *verbs.SendWR, _ verbs.MW) { wr.BindLKey ^= 1 },
		"no such window":        func(wr *verbs.SendWR, _ verbs.MW) { wr.RKey ^= 0x00f00000 },
		"a region without AccessMWBind": func(wr *verbs.SendWR, _ verbs.MW) {
			wr.BindLKey, wr.RemoteAddr = plain.LKey(), plain.Addr()
		},
		"more than the region allows": func(wr *verbs.SendWR, _ verbs.MW) {
			wr.BindLKey, wr.RemoteAddr = readable.LKey(), readable.Addr()
		},
		"another domain's region": func(wr *verbs.SendWR, _ verbs.MW) {
			wr.BindLKey, wr.RemoteAddr = foreign.mr.LKey(), foreign.mr.Addr()
		},
		"another domain's queue pair": func(wr *verbs.SendWR, mw verbs.MW) {
			if wr.QPN = foreign.qp.Num(); mw.Type() == verbs.MWType1 {
				wr.BindLength = ^uint64(0) // type 1 has no queue pair: be wrong otherwise
			}
		},
	} {
		for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2B} {
			cqp, sqp := r.joinMore()
			mw := r.s.newMW(typ)
			wr := r.s.bind(mw, 9, 0, 64, windowAccess)
			c(&wr, mw)
			if wc := r.s.doOn(sqp, wr); wc.Status == passes {
				t.Errorf("%s (%v): the bind succeeded", name, typ)
			}
			wantState(t, sqp, verbs.StateError)
			if err := mw.Dealloc(); err != nil {
				t.Errorf("%s (%v): %v", name, typ, err)
			}
			r.close(cqp, sqp)
		}
	}
	mw := foreign.newMW(verbs.MWType2B)
	if wc := r.s.do(r.s.bind(mw, 9, 0, 64, windowAccess)); wc.Status == passes {
		t.Error("another domain's window was bound")
	}
}

func testDeregBound(t *testing.T, p Pair) {
	r := newRig(t, p)
	mw := r.s.newMW(verbs.MWType2B)
	mr := r.s.reg(make([]byte, 4096), allAccess)
	wr := r.s.bind(mw, 1, 0, 64, windowAccess)
	wr.BindLKey, wr.RemoteAddr = mr.LKey(), mr.Addr()
	r.s.must(wr)
	if err := mr.Deregister(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	r.c.must(verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(0, 8), RemoteAddr: mr.Addr(), RKey: mr.RKey()})
	r.s.must(verbs.SendWR{Op: verbs.OpLocalInv, RKey: mw.RKey()})
	if err := mr.Deregister(); err != nil {
		t.Errorf("after the window was invalidated: %v", err)
	}
}

func testDeallocBound(t *testing.T, p Pair) {
	r := newRig(t, p)
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2B} {
		cqp, sqp := r.joinMore()
		mw := r.s.newMW(typ)
		r.s.mustOn(sqp, r.s.bind(mw, 1, 0, 64, windowAccess))
		key := mw.RKey()
		r.through("bound", cqp, verbs.OpRead, key, 0, 8, passes)
		if err := mw.Dealloc(); err != nil {
			t.Fatal(err)
		}
		r.through("deallocated", cqp, verbs.OpRead, key, 0, 8, refused)
	}
	if err := r.s.mr.Deregister(); err != nil {
		t.Errorf("deallocated windows hold their region: %v", err)
	}
}
