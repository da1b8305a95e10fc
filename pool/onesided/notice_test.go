package onesided_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/manager"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/verbs"
)

// lateSends is a manager whose management queue pair completes SENDs late. A
// request ends when its SEND has completed and it is answered, so what has come
// with the answer or soon after it is known before whoever asked goes on.
type lateSends struct {
	onesided.Manager
	cq *lateCQ // the management queue pair's
}

func (m *lateSends) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	l.Device, l.PD = lateDevice{l.Device, m}, latePD{l.PD}
	return m.Manager.Attach(ctx, l)
}

type lateDevice struct {
	verbs.Device
	m *lateSends
}

func (d lateDevice) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	if d.m.cq != nil {
		return d.Device.CreateCQ(init) // to allocate with
	}
	q := &lateCQ{handler: init.Handler}
	init.Handler = func(verbs.CQ) { q.handler(q) }
	inner, err := d.Device.CreateCQ(init)
	q.CQ, d.m.cq = inner, q
	return q, err
}

type latePD struct{ verbs.PD }

func (p latePD) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	if q, ok := init.SendCQ.(*lateCQ); ok {
		init.SendCQ, init.RecvCQ = q.CQ, q.CQ
	}
	return p.PD.CreateQP(init)
}

type lateCQ struct {
	verbs.CQ
	handler func(verbs.CQ)

	mu      sync.Mutex
	late    bool       // SENDs do not complete
	held    []verbs.WC // of SENDs, since
	came    int        // messages that were polled since
	handled int        // of these, so many were handled before the next poll
}

func (q *lateCQ) Poll(wcs []verbs.WC) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handled = q.came
	if !q.late && len(q.held) > 0 {
		n = copy(wcs, q.held)
		q.held = q.held[n:]
		return n
	}
	for _, wc := range wcs[:q.CQ.Poll(wcs)] {
		switch {
		case !q.late:
		case wc.Op == verbs.OpSend:
			q.held = append(q.held, wc)
			continue
		default:
			q.came++
		}
		wcs[n] = wc
		n++
	}
	return n
}

// hold has SENDs complete no more.
func (q *lateCQ) hold() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.late = true
}

// release has them complete.
func (q *lateCQ) release() {
	q.mu.Lock()
	q.late = false
	q.mu.Unlock()
	q.handler(q)
}

// handledSince is how many messages have been handled since hold.
func (q *lateCQ) handledSince() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.handled
}

// TestANoticeIsYoungerThanTheAnswerBeforeIt: a node answers that it has no memory,
// and then notifies that it has some. Whoever has asked sees the answer only now, and
// must not wait for what it was notified of already.
func TestANoticeIsYoungerThanTheAnswerBeforeIt(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: 4096, ChunkSize: 4096})
		held := cl.Open(pool.Config{}).MustAlloc(t)
		late := &lateSends{Manager: m}
		cl.Setup.Manager = late
		waiter := cl.Open(pool.Config{})

		late.cq.hold()
		got := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
			defer cancel()
			_, err := waiter.AllocWait(ctx, int64(waiter.ChunkSize()))
			got <- err
		}()
		pooltest.Eventually(t, "the answer has come", func() bool { return late.cq.handledSince() == 1 })
		if err := held.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		pooltest.Eventually(t, "the notice has come", func() bool { return late.cq.handledSince() == 2 })
		late.cq.release()
		if err := <-got; err != nil {
			t.Errorf("waiting for the only chunk, which is free: %v", err)
		}
	})
}
