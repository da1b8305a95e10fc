package pooltest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"polder/verbs"
	"polder/verbs/sim"
	"polder/verbs/softnic"
)

// Sim is the suite's set-up over verbs/sim. Pools wait for channels, so the
// world runs freely.
var Sim = Setup{
	Name: "sim",
	Fabric: func(t testing.TB) Fabric {
		w, err := sim.New(sim.Testbed())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		w.FreeRun()
		return &simFabric{w: w}
	},
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
