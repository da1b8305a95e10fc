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

// wallApp is an application of the wall-clock run: table 1's costs, fewer
// objects.
type wallApp struct {
	name       string
	base, cost time.Duration // of a request, and of rebuilding an object
	keys       int
	skew       float64
}

// All objects are 16 KiB, so few enough to be seen within a minute: together
// 520 MiB, for which there are 160.
const (
	wallObject = 16000
	wallMemory = 160 * mib
)

var wallApps = []wallApp{
	{"HDSearch", 250 * time.Microsecond, 1244200, 6 << 10, 0.75},
	{"WiredTiger", 9 * time.Microsecond, 20600, 10 << 10, 0.99},
	{"Storage", 8 * time.Microsecond, 10500, 10 << 10, 0.9},
	{"SocialNet", 400 * time.Microsecond, 3227700, 6500, 1.1},
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
	var owed time.Duration // time that requests have taken and that has not passed yet
	m, err := soft.NewMap(h, soft.MapConfig[int, [wallObject]byte]{})
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, uint64(i)))
	cdf := make([]float64, app.keys)
	sum := 0.0
	for k := range cdf {
		sum += math.Pow(float64(k+1), -app.skew)
		cdf[k] = sum
	}
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
