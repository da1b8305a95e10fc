package pooltest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

// Inproc is the suite's set-up over verbs/inproc.
var Inproc = Setup{
	Name:   "inproc",
	Fabric: func(testing.TB) Fabric { return &inprocFabric{f: inproc.NewFabric()} },
}

// Prefetching is inproc whose devices read entries as soon as they are enabled.
var Prefetching = Setup{
	Name: "inproc that prefetches",
	Fabric: func(testing.TB) Fabric {
		return &inprocFabric{f: inproc.NewFabric(), cfg: softnic.Config{Prefetch: true}}
	},
}

type inprocFabric struct {
	f     *inproc.Fabric
	cfg   softnic.Config
	names atomic.Int64
}

func (f *inprocFabric) NewDevice() (verbs.Device, error) { return f.f.NewDevice(f.cfg) }

func (f *inprocFabric) Listen(dev verbs.Device, addr string) (verbs.Listener, error) {
	if addr == "" {
		addr = fmt.Sprintf("memory-%d", f.names.Add(1))
	}
	return f.f.Listen(dev, addr)
}

func (f *inprocFabric) Dial(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error) {
	return f.f.Dial(ctx, dev, addr)
}
