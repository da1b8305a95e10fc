package softbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"polder/internal/arena"
	"polder/internal/hostmem"
	"polder/measure/benchout"
	"polder/measure/softbench/rivals"
	"polder/soft"
	"polder/soft/coordinator"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// midasCooperative is table 3: MiB/s by the percentage of live objects.
var midasCooperative = map[int]float64{10: 312.5, 30: 243.1, 50: 173.6, 70: 104.2, 90: 34.7}

// RunReclaim measures how fast memory is taken back.
func RunReclaim(ctx context.Context, o Options) error {
	shares, modes := []int{10, 30, 50, 70, 90}, []string{"running", "stopped", "reading"}
	for i, live := range shares {
		o.progress(i, len(shares)+len(modes), fmt.Sprintf("cooperative, %d %% live", live))
		if err := cooperative(ctx, o, live); err != nil {
			return err
		}
	}
	size := int64(2 * gib)
	rounds := 5
	if o.Short {
		size, rounds = 512*mib, 3
	}
	for i, mode := range modes {
		o.progress(len(shares)+i, len(shares)+len(modes), "direct, client "+mode)
		if err := direct(ctx, o, mode, size, rounds); err != nil {
			return err
		}
	}
	return nil
}

// cooperative fills a heap with 64 B objects, live per cent of which are hot,
// and lowers its budget, so that the heap gives back the memory of the cold
// objects. It must save the hot ones.
func cooperative(ctx context.Context, o Options, live int) error {
	budget := int64(512 * mib)
	if o.Short {
		budget /= 2
	}
	// slack is what a heap keeps free while it is full, open what it needs for
	// the segments to which it writes new objects and saves hot ones.
	const slack, open = 16 * mib, 24 * mib
	const object = 64 + 32 // payload, header and alignment
	var rates, alone, kept []float64
	for range 3 {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := soft.Open(soft.Config{Budget: budget})
		if err != nil {
			return err
		}
		n := int(budget-slack) / object
		a, err := soft.NewArray[[64]byte](h, n, nil)
		if err != nil {
			return errors.Join(err, h.Close())
		}
		for i := range n {
			if err := a.Store(i, [64]byte{byte(i)}); err != nil {
				return errors.Join(err, h.Close())
			}
		}
		hot := func(i int) bool { return int(uint32(i)*2654435761>>8)%100 < live }
		var v [64]byte
		want := 0
		for range 3 {
			want = 0
			for i := range n {
				if hot(i) {
					a.Load(i, &v)
					want++
				}
			}
		}
		before := h.Budget()
		free := h.Stats().Free // giving this back takes no work, so it does not count
		after := min(int64(n)*object*int64(live)/100+open, before-free-8*mib)
		began, cpu := time.Now(), cpuTime()
		if err := h.SetBudget(after); err != nil {
			return errors.Join(err, h.Close())
		}
		took, used := time.Since(began), cpuTime()-cpu
		got := 0
		for i := range n {
			if hot(i) && a.Load(i, &v) {
				got++
			}
		}
		rates = append(rates, float64(before-free-h.Budget())/mib/took.Seconds())
		alone = append(alone, float64(before-free-h.Budget())/mib/used.Seconds())
		kept = append(kept, 100*float64(got)/float64(want))
		if err := h.Close(); err != nil {
			return err
		}
	}
	name := fmt.Sprintf("cooperative, %d %% live", live)
	row := benchout.Row{Bench: "soft reclaim", Case: name, Metric: "rate", Value: median(rates), Unit: "MiB/s"}
	if err := o.Printer.Print(row.Against("Midas, published", midasCooperative[live], benchout.Higher)); err != nil {
		return err
	}
	// On a machine that others use too, processor time says more than the time
	// that has passed.
	row.Metric, row.Value = "rate for one cpu", median(alone)
	if err := o.Printer.Print(row.Against("Midas, published", midasCooperative[live], benchout.Higher)); err != nil {
		return err
	}
	return o.Printer.Print(benchout.Row{Bench: "soft reclaim", Case: name, Metric: "hot kept", Value: median(kept), Unit: "%"})
}

// cpuTime returns the processor time that this process has taken.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sensor is a host of which the benchmark says how much memory is idle.
type sensor struct {
	idle atomic.Int64
	real hostmem.Host
}

func (s *sensor) Read() (hostmem.Memory, error) {
	m, err := s.real.Read()
	m.Stalled = 0
	m.Available = min(m.Available, s.idle.Load())
	return m, err
}

func (s *sensor) Limit(string) (int64, int64, bool) { return 0, 0, false }

// direct has a coordinator take everything from a client in another process,
// while this one touches fresh pages as fast as the kernel hands them out.
func direct(ctx context.Context, o Options, mode string, size int64, rounds int) (err error) {
	dir, err := os.MkdirTemp("", "polder-soft-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	host := &sensor{}
	const reserve = 256 * mib
	plenty := reserve + size + 64*mib
	host.idle.Store(plenty)
	c, err := coordinator.New(coordinator.Config{
		Socket: filepath.Join(dir, "s"), Reserve: reserve, Max: size, Host: host, Policy: rivals.Even{},
		Interval: 20 * time.Millisecond, Grace: time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	w, err := o.start("fill", filepath.Join(dir, "s"), strconv.FormatInt(size, 10), mode)
	if err != nil {
		return err
	}
	defer w.stop()
	if _, err := w.expect("ready"); err != nil {
		return err
	}
	var rates, raced, alone []float64
	for round := range rounds + 1 { // the first does not count: in it the host has to find memory
		host.idle.Store(plenty)
		if err := waitFor(ctx, func() bool { return c.Stats().Resident >= size*8/10 }); err != nil {
			return fmt.Errorf("the client does not fill its memory: %w", err)
		}
		if mode == "stopped" {
			if err := w.signal(syscall.SIGSTOP); err != nil {
				return err
			}
		}
		solo, err := touch(256*mib, nil)
		if err != nil {
			return err
		}
		before := c.Stats().Resident
		var stop atomic.Bool
		touched := make(chan float64, 1)
		go func() {
			rate, _ := touch(size, &stop)
			touched <- rate
		}()
		began := time.Now()
		host.idle.Store(0)
		err = waitFor(ctx, func() bool { return c.Stats().Granted == 0 })
		took := time.Since(began)
		stop.Store(true)
		rate := <-touched
		after := c.Stats().Resident
		if mode == "stopped" {
			if err := w.signal(syscall.SIGCONT); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		if round > 0 {
			rates = append(rates, float64(before-after)/gib/took.Seconds())
			alone = append(alone, solo)
			raced = append(raced, rate)
		}
	}
	row := benchout.Row{Bench: "soft reclaim", Case: "direct, client " + mode, Metric: "rate", Value: median(rates), Unit: "GiB/s"}
	if err := o.Printer.Print(row.Against("toucher beside it", median(raced), benchout.Higher)); err != nil {
		return err
	}
	return o.Printer.Print(row.Against("toucher alone", median(alone), benchout.Higher))
}

// touch allocates memory and writes to each of its pages, as a program that needs
// memory does, until stop, if not nil, is true. It returns the rate in GiB/s.
func touch(size int64, stop *atomic.Bool) (float64, error) {
	m, err := arena.Anonymous(int(size), false)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	b := m.Bytes()
	began := time.Now()
	n := 0
	for ; n < len(b); n += 4096 {
		b[n] = 1
		if stop != nil && n%mib == 0 && stop.Load() {
			break
		}
	}
	return float64(n) / gib / time.Since(began).Seconds(), nil
}

// waitFor polls until f is true, for at most a minute.
func waitFor(ctx context.Context, f func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	t := time.NewTicker(200 * time.Microsecond)
	defer t.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	return s[len(s)/2]
}
