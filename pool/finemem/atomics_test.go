package finemem_test

import (
	"context"
	"sync/atomic"
	"testing"

	"polder/internal/invariants"
	"polder/pool/finemem"
	"polder/pool/pooltest"
	"polder/verbs"
)

// TestDeviceAtomics: where the device's atomics are not atomic with the processor's,
// as with RNICs, the node changes its metadata by the device's.
func TestDeviceAtomics(t *testing.T) {
	if invariants.Enabled {
		return // TestConformance is as concurrent; "make plain" runs this
	}
	s := pooltest.TCP
	s.Manager = finemem.Manager{}
	var loops atomic.Int32
	tcp := s.Fabric
	s.Fabric = func(t testing.TB) pooltest.Fabric { return apartFabric{tcp(t), &loops} }
	pooltest.Run(t, s)
	// One queue pair of a node's is for binding windows.
	if n := loops.Load(); n == 0 || n%2 != 0 {
		t.Errorf("the nodes connected %d queue pairs to themselves, want two each", n)
	}
}

// apartFabric has devices that say that their atomics are their own.
type apartFabric struct {
	pooltest.Fabric
	loops *atomic.Int32
}

func (f apartFabric) NewDevice() (verbs.Device, error) {
	d, err := f.Fabric.NewDevice()
	if err != nil {
		return nil, err
	}
	return apartDevice{d, f.loops}, nil
}

func (f apartFabric) Listen(d verbs.Device, addr string) (verbs.Listener, error) {
	return f.Fabric.Listen(d.(apartDevice).Device, addr)
}

func (f apartFabric) Dial(ctx context.Context, d verbs.Device, addr string) (verbs.Conn, error) {
	return f.Fabric.Dial(ctx, d.(apartDevice).Device, addr)
}

type apartDevice struct {
	verbs.Device
	loops *atomic.Int32
}

func (d apartDevice) Attr() verbs.DeviceAttr {
	a := d.Device.Attr()
	a.HostAtomics, a.Pinned = false, true
	return a
}

func (d apartDevice) ConnectLoopback(a, b verbs.QP) error {
	d.loops.Add(1)
	return d.Device.ConnectLoopback(a, b)
}
