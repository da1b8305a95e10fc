package allocbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"polder/measure/arrayscan"
	"polder/verbs"
	"polder/verbs/softnic"
)

// ArrayScan is the name of package arrayscan's one-sided rival. Nodes do not offer it as
// a way of managing memory: it gives no keys, and nobody recovers what a dead client
// has allocated.
const ArrayScan = "arrayscan"

// scanUnit is the size of its chunks, in bytes.
const scanUnit = smallestSize

// scanPiece is how many words of the array clients read at a time, unless a block has more.
const scanPiece = 256

// startScan starts a device that serves an array of words, and clients that scan the array.
func (f *fabric) startScan(ctx context.Context, t *Trace, clients int) (r *rig, all []lender, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	dir, err := os.MkdirTemp("", "polder-alloc")
	if err != nil {
		return r, nil, err
	}
	r.defers(func() error { return os.RemoveAll(dir) })
	dev, err := f.newDevice(softnic.Config{Name: "node"})
	if err != nil {
		return r, nil, err
	}
	r.defers(dev.Close)
	// Blocks lie at multiples of their sizes, and clients leave gaps, because large blocks
	// do not fit between small ones. So there are many more words than the trace's blocks need.
	piece := scanPiece
	for _, q := range t.Requests {
		piece = max(piece, 1<<q.Class)
	}
	words := scanSpare * (int(t.Bytes()/scanUnit)/piece + 1 + clients) * piece
	high := new(atomic.Int64)
	r.taken = func() int64 { return high.Load() * scanUnit }
	array, err := newArray(dev, words)
	if err != nil {
		return r, nil, err
	}
	lis, err := f.listen(dev, dir)
	if err != nil {
		return r, nil, err
	}
	r.addr = lis.Addr()
	served := make(chan error, 1)
	go func() { served <- array.serve(lis) }()
	r.defers(func() error { return errors.Join(lis.Close(), <-served) })
	for i := range clients {
		dev, err := f.newDevice(softnic.Config{Name: "client"})
		if err != nil {
			return r, nil, err
		}
		r.defers(dev.Close)
		w, err := f.dialWords(ctx, dev, r.addr)
		if err != nil {
			return r, nil, err
		}
		all = append(all, scanLender{arrayscan.New(w, uint64(i+1), words, piece), high})
	}
	return r, all, nil
}

// array is the words in the device's memory, and what the queue pairs to clients share.
type array struct {
	pd verbs.PD
	cq verbs.CQ
	mr verbs.MR
}

func newArray(dev verbs.Device, words int) (*array, error) {
	a := &array{}
	var err error
	if a.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if a.cq, err = dev.CreateCQ(verbs.CQInit{Depth: 16, IgnoreOverrun: true}); err != nil {
		return nil, err
	}
	a.mr, err = a.pd.RegMR(make([]byte, 8*words),
		verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic)
	return a, err
}

// serve connects clients until the listener is closed. It tells each client the address
// and the rkey of the words.
func (a *array) serve(l verbs.Listener) error {
	for {
		req, err := l.Accept(context.Background())
		if errors.Is(err, verbs.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		qp, err := a.pd.CreateQP(verbs.QPInit{SendCQ: a.cq, RecvCQ: a.cq, SendDepth: 1, RecvDepth: 1})
		if err != nil {
			return err
		}
		le := binary.LittleEndian
		if err := req.Accept(qp, le.AppendUint32(le.AppendUint64(nil, a.mr.Addr()), uint32(a.mr.RKey()))); err != nil {
			return err
		}
	}
}

// words is a client's access to the array. It implements arrayscan.Words.
type words struct {
	qp   verbs.QP
	cq   verbs.CQ
	buf  verbs.MR
	addr uint64
	key  verbs.RKey
	wrs  [arrayscan.MaxSwaps]verbs.SendWR
	sges [arrayscan.MaxSwaps]verbs.SGE
	was  [arrayscan.MaxSwaps]uint64
}

func (f *fabric) dialWords(ctx context.Context, dev verbs.Device, addr string) (*words, error) {
	w := &words{}
	conn, err := f.dial(ctx, dev, addr)
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	if w.cq, err = dev.CreateCQ(verbs.CQInit{Depth: 2 * arrayscan.MaxSwaps}); err != nil {
		return nil, err
	}
	if w.buf, err = pd.RegMR(make([]byte, arrayscan.MaxRead), verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if w.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: w.cq, RecvCQ: w.cq, SendDepth: arrayscan.MaxSwaps, RecvDepth: 1}); err != nil {
		return nil, err
	}
	answer, err := conn.Connect(ctx, w.qp, nil)
	if err != nil {
		return nil, err
	}
	if len(answer) != 12 {
		return nil, fmt.Errorf("the array is described in %d bytes, want 12", len(answer))
	}
	w.addr, w.key = binary.LittleEndian.Uint64(answer), verbs.RKey(binary.LittleEndian.Uint32(answer[8:]))
	return w, nil
}

// run posts n requests, which complete in order, and waits for the last.
func (w *words) run(ctx context.Context, n int) error {
	w.wrs[n-1].Flags = verbs.SendSignaled
	if err := w.qp.PostSend(w.wrs[:n]...); err != nil {
		return err
	}
	var wc [1]verbs.WC
	for w.cq.Poll(wc[:]) == 0 {
		if err := w.cq.Wait(ctx); err != nil {
			return err
		}
	}
	return wc[0].Err()
}

// Read implements arrayscan.Words.
func (w *words) Read(ctx context.Context, off uint64, n int) ([]byte, error) {
	w.sges[0] = verbs.SGE{Addr: w.buf.Addr(), Length: uint32(n), LKey: w.buf.LKey()}
	w.wrs[0] = verbs.SendWR{Op: verbs.OpRead, RemoteAddr: w.addr + off, RKey: w.key, SGL: w.sges[:1]}
	return w.buf.Bytes()[:n], w.run(ctx, 1)
}

// CompareAndSwap implements arrayscan.Words.
func (w *words) CompareAndSwap(ctx context.Context, ops []arrayscan.Swap) ([]uint64, error) {
	for i, op := range ops {
		w.sges[i] = verbs.SGE{Addr: w.buf.Addr() + uint64(8*i), Length: 8, LKey: w.buf.LKey()}
		w.wrs[i] = verbs.SendWR{Op: verbs.OpCmpSwap, RemoteAddr: w.addr + op.Off, RKey: w.key,
			Compare: op.Old, Swap: op.New, SGL: w.sges[i : i+1]}
	}
	if err := w.run(ctx, len(ops)); err != nil {
		return nil, err
	}
	for i := range ops {
		w.was[i] = binary.LittleEndian.Uint64(w.buf.Bytes()[8*i:])
	}
	return w.was[:len(ops)], nil
}

// scanSpare is at least how many times as much memory there is as a trace asks for.
const scanSpare = 8

// scanLender borrows blocks of the array's chunks. All memory up to the last chunk that
// any client has had counts as taken, gaps included.
type scanLender struct {
	a    *arrayscan.Allocator
	high *atomic.Int64 // chunks up to the end of the last one taken; all lenders share it
}

func (l scanLender) alloc(ctx context.Context, q Request) (block, error) {
	first, err := l.a.Alloc(ctx, int(q.Class))
	if err != nil {
		return nil, err
	}
	end := int64(first) + 1<<q.Class
	for high := l.high.Load(); end > high && !l.high.CompareAndSwap(high, end); high = l.high.Load() {
	}
	return scanBlock{l.a, first, int(q.Class)}, nil
}

type scanBlock struct {
	a            *arrayscan.Allocator
	first, class int
}

func (b scanBlock) free(ctx context.Context) error { return b.a.Free(ctx, b.first, b.class) }
