//go:build ibverbs

// Command roundtrip measures one-sided operations of verbs/ibv beside a C
// program on the same verbs (reference/roundtrip.c), by turns in one run on one
// device, which is connected to itself.
//
// A figure is the median over the rounds. The time of an operation runs from
// its post to when its completion has been polled. "poll" spins on the
// completion queue; "sleep" waits until there is something in it: the C program
// blocks in ibv_get_cq_event, Polder in CQ.Wait. Where several are outstanding, they
// are posted each by itself, or, in "batches", together with what has completed
// with them, with one doorbell.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"polder/measure/benchout"
	"polder/verbs"
	"polder/verbs/ibv"
)

func main() {
	var (
		device = flag.String("device", os.Getenv("POLDER_RDMA_DEVICE"), "the RDMA device")
		rival  = flag.String("reference", filepath.Join(os.Getenv("POLDER_RDMA_BIN"), "roundtrip-c"), "the C program")
		rounds = flag.Int("rounds", 11, "how often each is measured, by turns")
		count  = flag.Int("count", 1000, "operations in a round")
		asJSON = flag.Bool("json", false, "print one JSON object a line")
	)
	flag.Parse()
	if err := run(*device, *rival, *rounds, *count, *asJSON); err != nil {
		fmt.Fprintf(os.Stderr, "roundtrip: %v\n", err)
		os.Exit(1)
	}
}

// trial is what is measured.
type trial struct {
	op    string // as the C program has it
	size  int
	depth int
	post  string // "each" by itself, or a "batch" for what has completed together
	wait  string
}

var trials = []trial{
	{"read", 8, 1, "each", "poll"},
	{"read", 4096, 1, "each", "poll"},
	{"write", 8, 1, "each", "poll"},
	{"write", 4096, 1, "each", "poll"},
	{"swap", 8, 1, "each", "poll"},
	{"read", 8, 1, "each", "sleep"},
	{"write", 4096, 1, "each", "sleep"},
	{"read", 4096, 32, "each", "poll"},
	{"write", 4096, 32, "each", "poll"},
	{"read", 4096, 32, "batch", "poll"},
	{"write", 4096, 32, "batch", "poll"},
}

func (t trial) String() string {
	op := map[string]string{"read": "READ", "write": "WRITE", "swap": "CMP_SWAP"}[t.op]
	how := t.wait
	if t.post == "batch" {
		how += ", batches"
	}
	return fmt.Sprintf("%s %d B, depth %d, %s", op, t.size, t.depth, how)
}

// figures are what one round of a trial gives.
type figures struct{ p50, p99, all float64 } // nanoseconds

func run(device, rival string, rounds, count int, asJSON bool) error {
	out := benchout.New(os.Stdout, asJSON)
	for _, t := range trials {
		var ours, theirs []figures
		for range rounds {
			c, err := runReference(rival, device, t, count)
			if err != nil {
				return err
			}
			p, err := runPolder(device, t, count)
			if err != nil {
				return fmt.Errorf("cannot measure %v: %w", t, err)
			}
			theirs, ours = append(theirs, c), append(ours, p)
		}
		for _, f := range []struct {
			metric, unit string
			better       benchout.Better
			of           func(figures) float64
		}{
			{"p50", "us", benchout.Lower, func(f figures) float64 { return f.p50 / 1e3 }},
			{"p99", "us", benchout.Lower, func(f figures) float64 { return f.p99 / 1e3 }},
			{"rate", "ops/s", benchout.Higher, func(f figures) float64 { return float64(count) / f.all * 1e9 }},
		} {
			row := benchout.Row{Bench: "rdma", Case: t.String(), Metric: f.metric, Value: median(ours, f.of), Unit: f.unit}
			if err := out.Print(row.Against("C", median(theirs, f.of), f.better)); err != nil {
				return err
			}
		}
	}
	return nil
}

func median(rounds []figures, of func(figures) float64) float64 {
	var v []float64
	for _, r := range rounds {
		v = append(v, of(r))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func runReference(program, device string, t trial, count int) (f figures, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, device, t.op, strconv.Itoa(t.size), strconv.Itoa(t.depth), strconv.Itoa(count), t.wait, t.post)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		_, err = fmt.Fscan(strings.NewReader(string(out)), &f.p50, &f.p99, &f.all)
	}
	if err != nil {
		return f, fmt.Errorf("cannot measure the C program (%s): %w", strings.Join(cmd.Args, " "), err)
	}
	return f, nil
}

// runPolder does in Go what reference/roundtrip.c does in C.
func runPolder(device string, t trial, count int) (f figures, err error) {
	dev, err := ibv.Open(device)
	if err != nil {
		return f, err
	}
	defer func() {
		if e := dev.Close(); err == nil {
			err = e
		}
	}()
	pd, err := dev.AllocPD()
	if err != nil {
		return f, err
	}
	a, err := newEnd(dev, pd, t)
	if err != nil {
		return f, err
	}
	b, err := newEnd(dev, pd, t)
	if err != nil {
		return f, err
	}
	if err := dev.ConnectLoopback(a.qp, b.qp); err != nil {
		return f, err
	}
	return a.measure(b, t, count)
}

// end is a queue pair and its memory.
type end struct {
	cq verbs.CQ
	qp verbs.QP
	mr verbs.MR
}

func newEnd(dev verbs.Device, pd verbs.PD, t trial) (e end, err error) {
	access := verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	if e.mr, err = pd.RegMR(make([]byte, t.size*t.depth), access); err != nil {
		return e, err
	}
	if e.cq, err = dev.CreateCQ(verbs.CQInit{Depth: 2 * t.depth}); err != nil {
		return e, err
	}
	e.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: t.depth, RecvDepth: 1})
	return e, err
}

// measure runs the operations of a trial from a to b's memory.
func (a end) measure(b end, t trial, count int) (figures, error) {
	var (
		ctx    = context.Background()
		op     = map[string]verbs.Opcode{"read": verbs.OpRead, "write": verbs.OpWrite, "swap": verbs.OpCmpSwap}[t.op]
		warm   = count / 10
		total  = warm + count
		took   = make([]time.Duration, 0, count)
		posted = make([]time.Duration, t.depth)
		wrs    = make([]verbs.SendWR, t.depth)
		wcs    = make([]verbs.WC, 32)
		began  time.Duration
	)
	// One clock, as the C program has it: time.Now reads two.
	base := time.Now()
	clock := func() time.Duration { return time.Since(base) }
	for i := range wrs {
		off := uint64(i * t.size)
		wrs[i] = verbs.SendWR{
			ID: uint64(i), Op: op, Flags: verbs.SendSignaled,
			SGL:        []verbs.SGE{{Addr: a.mr.Addr() + off, Length: uint32(t.size), LKey: a.mr.LKey()}},
			RemoteAddr: b.mr.Addr() + off, RKey: b.mr.RKey(),
		}
	}
	sent := 0
	var batch []verbs.SendWR
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := a.qp.PostSend(batch...)
		batch = batch[:0]
		return err
	}
	post := func(i uint64) error {
		posted[i] = clock()
		sent++
		if batch = append(batch, wrs[i]); t.post == "batch" {
			return nil
		}
		return flush()
	}
	for i := range wrs {
		if err := post(uint64(i)); err != nil {
			return figures{}, err
		}
	}
	if err := flush(); err != nil {
		return figures{}, err
	}
	for done := 0; done < total; {
		n := a.cq.Poll(wcs)
		if n == 0 && t.wait == "sleep" {
			if err := a.cq.Wait(ctx); err != nil {
				return figures{}, err
			}
		}
		for _, wc := range wcs[:n] {
			now := clock()
			if err := wc.Err(); err != nil {
				return figures{}, err
			}
			if done >= warm {
				took = append(took, now-posted[wc.ID])
			}
			if done == warm {
				began = now
			}
			done++
			if sent < total {
				if err := post(wc.ID); err != nil {
					return figures{}, err
				}
			}
		}
		if err := flush(); err != nil {
			return figures{}, err
		}
	}
	all := clock() - began
	slices.Sort(took)
	return figures{
		p50: float64(took[count/2].Nanoseconds()),
		p99: float64(took[count*99/100].Nanoseconds()),
		all: float64(all.Nanoseconds()),
	}, nil
}
