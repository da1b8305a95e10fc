package pooltest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"polder/verbs"
	"polder/verbs/sim"
	"polder/verbs/softnic"
)

// Sim is the suite's set-up over verbs/sim. Pools wait for channels, so the world runs freely (sim.World.FreeRun).
var Sim = Setup{
	Name:   "sim",
	Fabric: func(t testing.TB) Fabric { return newSimFabric(t, sim.Loss{}) },
}

// LossySim is Sim over a network that loses every tenth answer to a READ or an
// atomic, so that READs are executed after what was posted behind them.
var LossySim = Setup{
	Name: "a sim that loses answers",
	Fabric: func(t testing.TB) Fabric {
		return newSimFabric(t, sim.Loss{OneIn: 10, Timeout: 100 * time.Microsecond})
	},
}

func newSimFabric(t testing.TB, loss sim.Loss) *simFabric {
	w, err := sim.New(sim.Testbed())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	w.Lose(loss)
	w.FreeRun()
	return &simFabric{w: w}
}

type simFabric struct {
	w     *sim.World
	names atomic.Int64
}

func (f *simFabric) NewDevice() (verbs.Device, error) { return f.w.NewDevice(softnic.Config{}) }

func (f *simFabric) Listen(dev verbs.Device, addr string) (verbs.Listener, error) {
	if addr == "" {
		addr = fmt.Sprintf("memory-%d", f.names.Add(1))
	}
	return f.w.Listen(dev.(*sim.Device), addr)
}

func (f *simFabric) Dial(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error) {
	return f.w.Dial(ctx, dev.(*sim.Device), addr)
}
