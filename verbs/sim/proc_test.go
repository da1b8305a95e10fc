package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/verbs"
	"polder/verbs/softnic"
)

// TestProcesses: processes take turns in the order of their times, and in that
// of their asking at the same time.
func TestProcesses(t *testing.T) {
	w := newWorld(t, Testbed())
	var log []string
	for _, p := range []struct {
		name string
		rest time.Duration
	}{{"a", 3}, {"b", 2}, {"c", 3}} {
		w.Go(p.name, func(self *Proc) error {
			for range 2 {
				if err := self.Sleep(p.rest); err != nil {
					return err
				}
				log = append(log, p.name)
			}
			return nil
		})
	}
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(log, ""); got != "bacbac" {
		t.Errorf("got the order %s, want bacbac", got)
	}
	if w.Now() != 6 {
		t.Errorf("it is %v, want 6ns", w.Now())
	}
}

func TestMutex(t *testing.T) {
	w := newWorld(t, Testbed())
	var m Mutex
	var log []string
	for _, name := range []string{"a", "b", "c"} {
		w.Go(name, func(p *Proc) error {
			if err := m.Lock(p); err != nil {
				return err
			}
			defer m.Unlock()
			log = append(log, name)
			return p.Sleep(time.Second)
		})
	}
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(log, ""); got != "abc" || w.Now() != 3*time.Second {
		t.Errorf("got the order %s in %v, want abc in 3s", got, w.Now())
	}
}

// TestEnds: Run ends when all is done, when a process fails, when nothing can
// happen and when it is told to; processes that are left are stopped.
func TestEnds(t *testing.T) {
	failure := errors.New("failed")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		fail error
		want error
	}{
		{"nothing can happen", t.Context(), nil, errStuck},
		{"a process fails", t.Context(), failure, failure},
		{"canceled", canceled, nil, context.Canceled},
	} {
		r := newRig(t, Testbed())
		var stopped [2]error
		r.w.Go("waits", func(*Proc) error {
			stopped[0] = r.client.cq.Wait(t.Context())
			return stopped[0]
		})
		r.w.Daemon("serves", func(p *Proc) error {
			stopped[1] = p.Until(r.client.dev, func() bool { return false })
			return stopped[1]
		})
		r.w.Go("ends", func(p *Proc) error {
			if err := p.Sleep(time.Millisecond); err != nil {
				return err
			}
			return c.fail
		})
		if err := r.w.Run(c.ctx); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		if c.ctx != canceled && (stopped[0] != ErrStopped || stopped[1] != ErrStopped) {
			t.Errorf("%s: the others got %v, want ErrStopped", c.name, stopped)
		}
		// The world goes on to be useful.
		r.w.Go("again", func(p *Proc) error { return p.Sleep(1) })
		if err := r.w.Run(t.Context()); err != nil {
			t.Errorf("%s: afterwards: %v", c.name, err)
		}
	}
}

// TestUntil: a process sees the word that a peer's WRITE changed, no sooner
// than a processor could.
func TestUntil(t *testing.T) {
	c := bare()
	c.Wire, c.PCIeWrite = 5*time.Microsecond, time.Microsecond
	r := newRig(t, c)
	qp, _ := r.join(t, r.client.cq)
	var seen time.Duration
	r.w.Go("polls", func(p *Proc) error {
		err := p.Until(r.server.dev, func() bool { return r.server.mr.Bytes()[0] == 7 })
		seen = p.Now()
		return err
	})
	r.w.Go("writes", func(p *Proc) error {
		for i := range 3 {
			r.client.mr.Bytes()[0] = byte(5 + i)
			if err := do(qp, r.client.cq, r.request(verbs.OpWrite, 1)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := r.w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Two round trips of 12 µs, a doorbell, the wire and a look.
	if want := 31 * time.Microsecond; !near(seen, want, 0.001) {
		t.Errorf("seen after %v, want %v", seen, want)
	}
}

func TestTwoCannotWaitForOneCQ(t *testing.T) {
	r := newRig(t, Testbed())
	r.w.Daemon("first", func(*Proc) error { return r.client.cq.Wait(t.Context()) })
	r.w.Go("second", func(p *Proc) error {
		if err := p.Sleep(1); err != nil {
			return err
		}
		return r.client.cq.Wait(t.Context())
	})
	if err := r.w.Run(t.Context()); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
}

func TestCostsAreChecked(t *testing.T) {
	for name, set := range map[string]func(c *Costs){
		"Units":     func(c *Costs) { c.Units = 0 },
		"PCIeRead":  func(c *Costs) { c.PCIeRead = -1 },
		"LinkRate":  func(c *Costs) { c.LinkRate = 0 },
		"Window":    func(c *Costs) { c.Window = maxWindow + 1 },
		"MTU":       func(c *Costs) { c.MTU = 1 << 20 },
		"Contexts":  func(c *Costs) { c.Contexts = 0 },
		"PCIeWrite": func(c *Costs) { c.PCIeWrite = time.Hour },
	} {
		c := Testbed()
		set(&c)
		if _, err := New(c); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A process that has been stopped does not wait for a completion in wall-clock time.
func TestAStoppedProcessWaitsForNothing(t *testing.T) {
	w, err := New(Testbed())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	dev, err := w.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	var first, second error
	w.Daemon("waits twice", func(p *Proc) error {
		first = cq.Wait(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		second = cq.Wait(ctx)
		return nil
	})
	w.Go("ends", func(p *Proc) error { return p.Sleep(time.Microsecond) })
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(first, ErrStopped) || !errors.Is(second, ErrStopped) {
		t.Errorf("got %v and %v, want %v", first, second, ErrStopped)
	}
}

// TestBroadcastResumesAllWhoWait, in the order in which they came, and nobody who does not wait any more.
func TestBroadcastResumesAllWhoWait(t *testing.T) {
	w := newWorld(t, Testbed())
	var c, last Cond
	var resumed []int
	for i := range 3 {
		w.Go("waits", func(p *Proc) error {
			err := errors.Join(p.Sleep(time.Duration(i)), c.Wait(p))
			resumed = append(resumed, i)
			err = errors.Join(err, last.Wait(p))
			if p.Now() != time.Second {
				t.Errorf("it went on at %v, want a second", p.Now())
			}
			return err
		})
	}
	w.Go("broadcasts", func(p *Proc) error {
		err := p.Sleep(5)
		c.Broadcast()
		err = errors.Join(err, p.Sleep(5))
		c.Broadcast()
		err = errors.Join(err, p.Sleep(time.Second-10))
		last.Broadcast()
		return err
	})
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 1, 2}; !slices.Equal(resumed, want) {
		t.Errorf("%v were resumed, want %v", resumed, want)
	}
}
