// Package brokerbench measures what FineMem's allocation service adds to an
// allocation: a 4 KiB block is allocated and freed by one caller, directly over a
// session with a memory node and through a broker that has such a session, in turns,
// over tcp. The memory node runs in this process, and so do both rivals, so that the
// difference is the broker's alone: its ring, its books, and being woken.
package brokerbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"polder/internal/benchout"
	"polder/memnode"
	"polder/pool/broker"
	"polder/pool/finemem"
	"polder/pool/mech"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// Options says how to run.
type Options struct {
	Out    benchout.Printer
	Rounds int // allocations of each kind; DefaultRounds if 0
}

// DefaultRounds is how many allocations are measured.
const DefaultRounds = 20_000

// slice is how many allocations are made in a row before it is the other's turn.
const slice = 100

// warmUp is how many turns are not measured.
const warmUp = 2

// Run runs the benchmark "broker".
func Run(ctx context.Context, o Options) error {
	if o.Rounds == 0 {
		o.Rounds = DefaultRounds
	}
	if err := run(ctx, o); err != nil {
		return fmt.Errorf("cannot run the benchmark of the broker: %w", err)
	}
	return nil
}

// rival allocates a block, and frees it.
type rival func(ctx context.Context) (alloc time.Duration, err error)

func run(ctx context.Context, o Options) (err error) {
	var closers []func() error
	defer func() {
		for _, c := range slices.Backward(closers) {
			err = errors.Join(err, c())
		}
	}()
	onClose := func(c func() error) { closers = append(closers, c) }
	device := func() (verbs.Device, error) {
		dev, err := tcp.NewDevice(softnic.Config{})
		if err == nil {
			onClose(dev.Close)
		}
		return dev, err
	}
	lender, err := device()
	if err != nil {
		return err
	}
	node, err := memnode.New(lender, memnode.Config{Lend: 64 << 20, ChunkSize: 4096, Manager: finemem.Name})
	if err != nil {
		return err
	}
	lis, err := tcp.Listen(lender, "127.0.0.1:0", tcp.Config{})
	if err != nil {
		return errors.Join(err, node.Close())
	}
	served := make(chan error, 1)
	go func() { served <- node.Serve(lis) }()
	onClose(func() error { return errors.Join(node.Close(), <-served) })

	direct, err := direct(ctx, lis.Addr(), device, onClose)
	if err != nil {
		return err
	}
	brokered, err := brokered(ctx, lis.Addr(), device, onClose)
	if err != nil {
		return err
	}
	var with, without []time.Duration
	rivals := []struct {
		rival
		took *[]time.Duration
	}{{direct, &without}, {brokered, &with}}
	for turn := range warmUp + max(1, o.Rounds/slice) {
		for _, r := range rivals {
			for range slice {
				took, err := r.rival(ctx)
				if err != nil {
					return err
				}
				if turn >= warmUp {
					*r.took = append(*r.took, took)
				}
			}
		}
	}
	return report(o.Out, with, without)
}

// direct allocates over a session of its own.
func direct(ctx context.Context, addr string, device func() (verbs.Device, error), onClose func(func() error)) (rival, error) {
	dev, err := device()
	if err != nil {
		return nil, err
	}
	conn, err := tcp.Dial(ctx, dev, addr, tcp.Config{})
	if err != nil {
		return nil, err
	}
	onClose(conn.Close)
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 1})
	if err != nil {
		return nil, err
	}
	s, err := finemem.Mechanism{}.Attach(ctx, mech.Link{Device: dev, PD: pd, Conn: conn, Access: func() (verbs.QP, error) {
		return pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
	}})
	if err != nil {
		return nil, err
	}
	onClose(func() error { s.Close(); return nil })
	session := s.(*finemem.Session)
	return func(ctx context.Context) (took time.Duration, err error) {
		var b finemem.Block
		start := time.Now()
		err = session.Do(ctx, func(a *finemem.Allocator) (err error) {
			b, err = a.Alloc(ctx, 0)
			return err
		})
		took = time.Since(start)
		if err == nil {
			err = session.Do(ctx, func(a *finemem.Allocator) error { return a.Free(ctx, b) })
		}
		return took, err
	}, nil
}

// brokered allocates through a broker.
func brokered(ctx context.Context, addr string, device func() (verbs.Device, error), onClose func(func() error)) (rival, error) {
	dev, err := device()
	if err != nil {
		return nil, err
	}
	b, err := broker.New(ctx, broker.Config{Device: dev, Nodes: []broker.Node{{
		Addr: addr,
		Dial: func(ctx context.Context) (verbs.Conn, error) { return tcp.Dial(ctx, dev, addr, tcp.Config{}) },
	}}})
	if err != nil {
		return nil, err
	}
	onClose(b.Close)
	dir, err := os.MkdirTemp("", "polder-")
	if err != nil {
		return nil, err
	}
	onClose(func() error { return os.RemoveAll(dir) })
	path := filepath.Join(dir, "broker.sock")
	l, err := b.Listen(path)
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- b.Serve(l) }()
	onClose(func() error { return errors.Join(b.Close(), <-served) })
	c, err := broker.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	onClose(c.Close)
	info, err := c.Attach(ctx, 0)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		block, err := c.Alloc(ctx, 0, info.Session, 0)
		took := time.Since(start)
		if err == nil {
			err = c.Free(ctx, 0, info.Session, block)
		}
		return took, err
	}, nil
}

// report prints quantiles of both, and what the broker adds to each.
func report(out benchout.Printer, with, without []time.Duration) error {
	slices.Sort(with)
	slices.Sort(without)
	for _, q := range []struct {
		name string
		at   float64
	}{{"min", 0}, {"p50", 0.5}, {"p99", 0.99}} {
		micro := func(sorted []time.Duration) float64 {
			return float64(sorted[int(q.at*float64(len(sorted)-1))]) / float64(time.Microsecond)
		}
		ours, theirs := micro(with), micro(without)
		row := benchout.Row{Bench: "broker", Case: "alloc 4 KiB through a broker", Metric: q.name, Value: ours, Unit: "µs"}
		if err := out.Print(row.Against("direct", theirs, benchout.Lower)); err != nil {
			return err
		}
		added := benchout.Row{Bench: "broker", Case: "added by the broker", Metric: q.name, Value: ours - theirs, Unit: "µs"}
		if q.name == "p50" {
			// FineMem's service adds 2 to 10 µs.
			added = added.Against("published, at most", 10, benchout.Lower)
		}
		if err := out.Print(added); err != nil {
			return err
		}
	}
	return nil
}
