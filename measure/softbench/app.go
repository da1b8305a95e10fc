package softbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"time"

	"polder/measure/softbench/vhost"
	"polder/soft"
)

// The wall-clock run repeats the run in virtual time with real processes, soft
// heaps and a coordinator instead of simulated ones: the same applications
// make the same requests. Because segments have 2 MiB, objects are sixteen times
// as large as in virtual time, and so is the memory.
const (
	larger     = 16
	wallMemory = larger * vhost.Memory
)

// wallEvery is how often an application reports its throughput.
const wallEvery = 500 * time.Millisecond

// shop is an application whose services have a soft heap each.
type shop struct {
	app    *vhost.App
	second float64 // seconds of time that a second of work takes
	heaps  []*soft.Heap
	maps   []*soft.Map[int32, []byte]
	buf    []byte
}

func newShop(app *vhost.App, socket string, faster float64) (*shop, error) {
	s := &shop{app: app, second: 1 / (app.Cores() * faster)}
	for _, v := range app.Services {
		h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Max: wallMemory, Coordinator: socket, Name: v.Name, Workers: 1, Logger: quiet})
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.heaps = append(s.heaps, h)
		m, err := soft.NewMap(h, soft.MapConfig[int32, []byte]{})
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.maps = append(s.maps, m)
		s.buf = make([]byte, max(len(s.buf), int(slices.Max(v.Sizes))*larger))
	}
	return s, nil
}

func (s *shop) close() error {
	var errs []error
	for _, h := range s.heaps {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

// get is a vhost.Getter. It does not spend the time of rebuilding, but tells the heap of it and returns it.
func (s *shop) get(v *vhost.Service, k int32, nested func() float64) float64 {
	m := s.maps[v.Number]
	if _, ok := m.Append(s.buf[:0], k); ok {
		return 0
	}
	cost := v.Rebuild(nested)
	d := time.Duration(cost * s.second * 1e9)
	s.heaps[v.Number].Rebuilt(d)
	_ = m.SetCost(k, s.buf[:v.Sizes[k]*larger], d) // fails if there is no memory just now
	return cost
}

// appWorker is one application. It makes as many requests as it can, and sleeps
// for the time that they would take, several at once, as timers are coarse. Every
// wallEvery it reports which part of that time would have been enough with
// everything in memory.
func appWorker(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("want a socket, a number, a duration and a rate, not %q", args)
	}
	apps, err := vhost.Apps()
	if err != nil {
		return err
	}
	i, err := strconv.Atoi(args[1])
	if err != nil || i < 0 || i >= len(apps) {
		return fmt.Errorf("there is no application %q", args[1])
	}
	length, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	faster, err := strconv.ParseFloat(args[3], 64)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(1) // there is one worker; a heap keeps a segment open for each processor
	s, err := newShop(apps[i], args[0], faster)
	if err != nil {
		return err
	}
	defer s.close()

	r := rand.New(rand.NewPCG(11, uint64(i)))
	begin := time.Now()
	due, say := begin, begin.Add(wallEvery)
	var spent, needed float64
	left := int(length / wallEvery) // reports to make
	for now := begin; left > 0 && ctx.Err() == nil; {
		took, base := s.app.Request(s.get, r)
		spent, needed = spent+took, needed+base
		due = due.Add(time.Duration(took * s.second * 1e9))
		if now.After(say) {
			fmt.Fprintf(out, "point %v\n", needed/spent)
			spent, needed, say = 0, 0, say.Add(wallEvery)
			left--
		}
		if now = time.Now(); due.Sub(now) > 2*time.Millisecond {
			time.Sleep(due.Sub(now))
			now = time.Now()
		} else if due.Before(now.Add(-100 * time.Millisecond)) {
			due = now // other processes have the processors: do not try to catch up
		}
	}
	<-ctx.Done()
	return nil
}
