package softbench

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"time"

	"polder/soft"
)

// wallApp is an application of the wall-clock run: fewer objects than table 1's,
// and requests of those whose requests take long that take an eighth, with what
// they rebuild. That changes no ratio, and the caches are warm in seconds.
type wallApp struct {
	name       string
	base, cost time.Duration // of a request, and of rebuilding an object, in nanoseconds
	keys       int
	skew       float64
}

// All objects are 16 KiB, so few enough to be seen within a minute: together
// 1040 MiB, for which there are 320.
const (
	wallObject = 16000
	wallMemory = 320 * mib
)

var wallApps = []wallApp{
	{"HDSearch", 31250, 155525, 12 << 10, 0.75},
	{"WiredTiger", 9000, 20600, 20 << 10, 0.99},
	{"Storage", 8000, 10500, 20 << 10, 0.9},
	{"SocialNet", 50000, 403463, 13000, 1.1},
}

// popularity is the probability, cumulated and times its last element, of the
// keys in falling order.
func (a wallApp) popularity() []float64 {
	cdf := make([]float64, a.keys)
	sum := 0.0
	for k := range cdf {
		sum += math.Pow(float64(k+1), -a.skew)
		cdf[k] = sum
	}
	return cdf
}

// wallBest is the best fixed partition, found offline: of all in steps of a
// fortieth, that with the highest throughput if each application's most popular
// objects are what is kept.
func wallBest() map[uint64]float64 {
	const steps = 40
	var of [4][steps + 1]float64 // of ideal, by fortieths
	for i, a := range wallApps {
		cdf := a.popularity()
		for j := range of[i] {
			n := min(wallMemory*j/steps/wallObject, len(cdf))
			hits := 0.0
			if n > 0 {
				hits = cdf[n-1] / cdf[len(cdf)-1]
			}
			of[i][j] = float64(a.base) / (float64(a.base) + (1-hits)*float64(a.cost))
		}
	}
	best, shares := 0.0, make(map[uint64]float64)
	for a := 1; a < steps; a++ {
		for b := 1; a+b < steps; b++ {
			for c := 1; a+b+c < steps; c++ {
				d := steps - a - b - c
				if v := of[0][a] + of[1][b] + of[2][c] + of[3][d]; v > best {
					best = v
					for i, n := range []int{a, b, c, d} {
						shares[uint64(i+1)] = float64(n) / steps
					}
				}
			}
		}
	}
	return shares
}

// appWorker is one application: as many requests as it can make, of which the
// time is waited for in pieces that a timer can measure.
func appWorker(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want a socket, a number and a duration, not %q", args)
	}
	i, err := strconv.Atoi(args[1])
	if err != nil || i < 0 || i >= len(wallApps) {
		return fmt.Errorf("there is no application %q", args[1])
	}
	length, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	app := wallApps[i]
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Max: wallMemory, Coordinator: args[0], Name: app.name, Workers: 1, Logger: quiet})
	if err != nil {
		return err
	}
	defer h.Close()
	for t := time.NewTicker(time.Millisecond); h.Budget() == soft.MinBudget; <-t.C {
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Fprintln(out, "registered") // and has been granted more than it came with
	var owed time.Duration          // time that requests have taken and that has not passed yet
	m, err := soft.NewMap(h, soft.MapConfig[int, [wallObject]byte]{})
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, uint64(i)))
	cdf := app.popularity()
	sum := cdf[len(cdf)-1]
	begin := time.Now()
	requests := 0.0
	counted := time.Duration(0)
	for time.Since(begin) < length && ctx.Err() == nil {
		k := sort.SearchFloat64s(cdf, r.Float64()*sum)
		owed += app.base
		if _, ok := m.Get(k); !ok {
			owed += app.cost
			h.Rebuilt(app.cost)
			_ = m.SetCost(k, [wallObject]byte{byte(k)}, app.cost) // there may be no memory
		}
		late := time.Since(begin) > length/2
		if late {
			requests++
		}
		if owed > 2*time.Millisecond {
			t := time.Now()
			time.Sleep(owed)
			slept := time.Since(t)
			if late {
				counted += slept
			}
			owed -= slept // what was overslept is credited
		}
	}
	// Of ideal: requests made in the time that passed, as if each took base.
	fmt.Fprintf(out, "throughput %v\n", requests*app.base.Seconds()/max(counted.Seconds(), 1e-9))
	<-ctx.Done()
	return nil
}
