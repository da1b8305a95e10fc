package turns_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/internal/turns"
)

// script runs in p, and says what has happened.
func script(p *turns.Process, note func(format string, args ...any)) {
	var g turns.Group
	var mu sync.Mutex
	cond := turns.Cond{L: &mu}
	ready := 0
	answers := make(chan int, 3)
	for i := range 3 {
		g.Go(p, func() {
			p.Wait(p.NewTimer(time.Duration(3-i)*time.Second), nil)
			answers <- i
			mu.Lock()
			defer mu.Unlock()
			ready++
			cond.Broadcast()
		})
	}
	mu.Lock()
	for ready < 2 {
		cond.Wait(p)
	}
	note("%d are ready", ready)
	mu.Unlock()
	g.Wait(p)
	timer := p.NewTimer(time.Second)
	for {
		i, ok := turns.Recv(p, answers, timer)
		if !ok {
			break
		}
		note("answer %d", i)
	}
	ctx, cancel := p.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if which := p.Wait(p.NewTimer(time.Hour), nil, ctx.Done()); which != 1 || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		note("Wait returns %d, %v", which, context.Cause(ctx))
	}
	if which := p.Wait(p.NewTimer(time.Millisecond), ctx.Done()); which != 0 && which != turns.Late {
		note("Wait returns %d", which)
	}
	stopped := p.AfterFunc(time.Millisecond, func() { note("a timer that was stopped has gone off") })
	stopped.Stop()
	done := make(chan struct{})
	p.AfterFunc(2*time.Millisecond, func() { close(done) })
	p.Wait(nil, done)
	note("done")
}

const scripted = "2 are ready, answer 2, answer 1, answer 0, done"

// TestCodeDoesTheSameSimulated as it does with goroutines.
func TestCodeDoesTheSameSimulated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		script(nil, func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) })
		if s := strings.Join(got, ", "); s != scripted {
			t.Errorf("with goroutines: %s", s)
		}
	})
	for seed := range uint64(100) {
		w := turns.NewWorld(seed)
		var got []string
		p := w.Process("p", 0)
		p.Go(func() {
			script(p, func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) })
		})
		w.Run(time.Minute)
		if s := strings.Join(got, ", "); s != scripted {
			t.Errorf("seed %d: %s", seed, s)
		}
		w.Close()
	}
}

// TestASeedDecidesTheOrder of those who could all go on.
func TestASeedDecidesTheOrder(t *testing.T) {
	run := func(seed uint64) (order []int, sum uint64) {
		w := turns.NewWorld(seed)
		defer w.Close()
		p := w.Process("p", 0)
		for i := range 5 {
			p.Go(func() { order = append(order, i) })
		}
		w.Run(time.Second)
		return order, w.Sum()
	}
	first, sum := run(0)
	differ := false
	for seed := range uint64(50) {
		a, x := run(seed)
		b, y := run(seed)
		if !slices.Equal(a, b) || x != y {
			t.Errorf("seed %d: order %v, then %v", seed, a, b)
		}
		if (x == sum) != (seed == 0) {
			t.Errorf("seeds 0 and %d have sums %x and %x", seed, sum, x)
		}
		differ = differ || !slices.Equal(a, first)
	}
	if !differ {
		t.Error("50 seeds give the same order")
	}
}

// TestProcessesThatAreKilledOrPaused, and those whose clocks are fast.
func TestProcessesThatAreKilledOrPaused(t *testing.T) {
	w := turns.NewWorld(1)
	defer w.Close()
	fast, killed := w.Process("fast", 100_000), w.Process("killed", 0)
	var at []time.Duration
	began := fast.Now()
	fast.Go(func() {
		for range 3 {
			fast.Sleep(10 * time.Second)
			at = append(at, w.Now().Round(time.Second))
		}
	})
	unlocked, woken := 0, 0
	var mu sync.Mutex
	cond := turns.Cond{L: &mu}
	for range 3 {
		killed.Go(func() {
			mu.Lock()
			defer func() { mu.Unlock(); unlocked++ }()
			cond.Wait(killed)
			woken++
		})
	}
	killed.After(10*time.Second, func() { mu.Lock(); cond.Broadcast(); mu.Unlock() })
	w.After(5*time.Second, func() { killed.Kill() })
	w.After(10*time.Second, func() { fast.Pause(30 * time.Second) })
	w.Run(time.Minute)
	if want := []time.Duration{9 * time.Second, 40 * time.Second, 49 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("a clock that is a tenth faster has gone off at %v, want %v", at, want)
	}
	if got := fast.Since(began).Round(time.Second); got != 66*time.Second {
		t.Errorf("in a minute it says %v", got)
	}
	if unlocked != 3 || woken != 0 || !killed.Dead() {
		t.Errorf("of 3 tasks %d have let their mutex go, and %d have gone on, although their process was killed", unlocked, woken)
	}
}
