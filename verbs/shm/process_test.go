package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"polder/internal/arena"
	"polder/internal/child/childtest"
	"polder/verbs"
	"polder/verbs/internal/endpoint"
	"polder/verbs/softnic"
)

var children = childtest.Jobs{"server": serveChild, "client": clientChild}

// end is a queue pair with memory.
type end struct {
	dev verbs.Device
	pd  verbs.PD
	cq  verbs.CQ
	qp  verbs.QP
	mr  verbs.MR
}

func newEnd() (e end, err error) {
	if e.dev, err = NewDevice(softnic.Config{}); err != nil {
		return e, err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return e, err
	}
	if e.cq, err = e.dev.CreateCQ(verbs.CQInit{Depth: 64}); err != nil {
		return e, err
	}
	if e.qp, err = e.pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 16, RecvDepth: 16}); err != nil {
		return e, err
	}
	e.mr, err = e.pd.RegMR(make([]byte, 1<<20), verbs.AccessLocalWrite|
		verbs.AccessRemoteRead|verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic)
	return e, err
}

// do posts one request and returns its status.
func (e *end) do(ctx context.Context, wr verbs.SendWR) (verbs.Status, error) {
	wr.Flags = verbs.SendSignaled
	if err := e.qp.PostSend(wr); err != nil {
		return 0, err
	}
	var wcs [1]verbs.WC
	for e.cq.Poll(wcs[:]) == 0 {
		if err := e.cq.Wait(ctx); err != nil {
			return 0, err
		}
	}
	return wcs[0].Status, nil
}

func (e *end) sgl(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}}
}

// serveChild accepts a queue pair, tells where its memory is, and passes a memfd
// whose first byte is 42.
func serveChild(addr string) error {
	e, err := newEnd()
	if err != nil {
		return err
	}
	l, err := Listen(e.dev, addr, Config{})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	req, err := l.Accept(context.Background())
	if err != nil {
		return err
	}
	fd, err := arena.NewMemfd("test", arena.PageSize)
	if err != nil {
		return err
	}
	if err := fd.SealForGood(); err != nil {
		return err
	}
	if _, err := fd.File().WriteAt([]byte{42}, 0); err != nil {
		return err
	}
	if err := req.Conn().(*conn).PassMemory(fd); err != nil {
		return err
	}
	private := binary.LittleEndian.AppendUint64(nil, e.mr.Addr())
	private = binary.LittleEndian.AppendUint32(private, uint32(e.mr.RKey()))
	if err := req.Accept(e.qp, private); err != nil {
		return err
	}
	<-req.Conn().Done()
	return nil
}

// clientChild connects a queue pair and stays.
func clientChild(addr string) error {
	e, err := newEnd()
	if err != nil {
		return err
	}
	conn, err := Dial(context.Background(), e.dev, addr, Config{})
	if err != nil {
		return err
	}
	if _, err := conn.Connect(context.Background(), e.qp, nil); err != nil {
		return err
	}
	fmt.Println("ready")
	<-conn.Done()
	return conn.Err()
}

func TestTwoProcesses(t *testing.T) {
	addr := filepath.Join(t.TempDir(), "sock")
	kill := childtest.Start(t, "server", addr)
	e, err := newEnd()
	if err != nil {
		t.Fatal(err)
	}
	defer e.dev.Close()
	ctx := patient(t)
	c, err := Dial(ctx, e.dev, addr, Config{})
	if err != nil {
		t.Fatal(err)
	}
	private, err := c.Connect(ctx, e.qp, nil)
	if err != nil {
		t.Fatal(err)
	}
	far, rkey := binary.LittleEndian.Uint64(private), verbs.RKey(binary.LittleEndian.Uint32(private[8:]))
	buf := e.mr.Bytes()
	copy(buf, "across processes")
	for i, wr := range []verbs.SendWR{
		{Op: verbs.OpWrite, SGL: e.sgl(0, 16), RemoteAddr: far, RKey: rkey},
		{Op: verbs.OpRead, SGL: e.sgl(64, 16), RemoteAddr: far, RKey: rkey},
		{Op: verbs.OpWrite, SGL: e.sgl(0, 1<<20), RemoteAddr: far, RKey: rkey},
		{Op: verbs.OpCmpSwap, SGL: e.sgl(128, 8), RemoteAddr: far + 1024, RKey: rkey, Swap: 7},
		{Op: verbs.OpFetchAdd, SGL: e.sgl(136, 8), RemoteAddr: far + 1024, RKey: rkey, Swap: 1},
	} {
		if status, err := e.do(ctx, wr); err != nil || status != verbs.StatusSuccess {
			t.Fatalf("request %d: %v, %v", i, status, err)
		}
	}
	if got := string(buf[64:80]); got != "across processes" {
		t.Errorf("read %q", got)
	}
	if got := binary.NativeEndian.Uint64(buf[136:]); got != 7 {
		t.Errorf("the word was %d, want 7", got)
	}
	fd, err := c.(*conn).ReceiveMemory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	m, err := fd.Map(0, fd.Size(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Bytes()[0] != 42 {
		t.Errorf("the memory passed begins with %d, want 42", m.Bytes()[0])
	}

	kill()
	<-c.Done()
	if err := c.Err(); err == nil || errors.Is(err, verbs.ErrClosed) {
		t.Errorf("the connection ended with %v", err)
	}
	if got := e.qp.State(); got != verbs.StateError {
		t.Errorf("the queue pair is in %v, want ERR", got)
	}
	m.Bytes()[1] = 1 // does not fault
	if m.Bytes()[0] != 42 {
		t.Error("what was mapped is gone with the process that made it")
	}
	// The socket that is left behind is in nobody's way.
	childtest.Start(t, "server", addr)
	if _, err := Dial(ctx, e.dev, addr, Config{}); err != nil {
		t.Errorf("the server that was started again cannot be dialled: %v", err)
	}
}

func TestAClientThatIsKilledIsNoticed(t *testing.T) {
	e, err := newEnd()
	if err != nil {
		t.Fatal(err)
	}
	defer e.dev.Close()
	l := newListener(t, e.dev, Config{MaxConns: 1})
	for range 2 { // the place is free again
		accepted := make(chan verbs.ConnRequest, 1)
		go func() {
			req, err := l.Accept(patient(t))
			if err == nil {
				var qp verbs.QP
				qp, err = e.pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 16, RecvDepth: 16})
				if err == nil {
					err = req.Accept(qp, nil)
				}
			}
			if err != nil {
				t.Error(err)
				close(accepted)
				return
			}
			accepted <- req
		}()
		kill := childtest.Start(t, "client", path(l.Addr()))
		req := <-accepted
		if req == nil {
			return
		}
		kill()
		<-req.Conn().Done()
		if err := req.Conn().Err(); err == nil || errors.Is(err, verbs.ErrClosed) {
			t.Errorf("the connection ended with %v", err)
		}
		tick := time.NewTicker(time.Millisecond)
		for l.(*endpoint.Listener).Peers() > 0 { // the next one needs its place
			select {
			case <-tick.C:
			case <-t.Context().Done():
				t.Fatal("its place is not free")
			}
		}
		tick.Stop()
	}
}
