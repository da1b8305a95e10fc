package pooltest

import (
	"context"
	"os"
	"testing"

	"polder/verbs"
	"polder/verbs/ibv"
)

// RDMA is the suite's set-up over the RDMA device that the environment variable POLDER_RDMA_DEVICE names, with all
// nodes and pools on this host. It needs a Manager that works with the device.
var RDMA = Setup{
	Name: "rdma",
	Fabric: func(t testing.TB) Fabric {
		name := os.Getenv("POLDER_RDMA_DEVICE")
		if name == "" {
			t.Fatal("POLDER_RDMA_DEVICE names no device: make test-rdma runs this in a virtual machine that has one")
		}
		return rdmaFabric{name}
	},
}

type rdmaFabric struct{ device string }

func (f rdmaFabric) NewDevice() (verbs.Device, error) { return ibv.Open(f.device) }

func (rdmaFabric) Listen(dev verbs.Device, addr string) (verbs.Listener, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	return ibv.Listen(dev, addr, ibv.Config{})
}

func (rdmaFabric) Dial(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error) {
	return ibv.Dial(ctx, dev, addr, ibv.Config{})
}
