package pooltest

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"polder/pool/memfd"
	"polder/verbs"
	"polder/verbs/shm"
	"polder/verbs/softnic"
)

// SHM is the suite's set-up over verbs/shm, with chunks that are mapped.
var SHM = Setup{
	Name:    "shm",
	Fabric:  func(t testing.TB) Fabric { return &shmFabric{dir: t.TempDir()} },
	Manager: memfd.Manager{},
}

type shmFabric struct {
	dir   string
	names atomic.Int64
}

func (*shmFabric) NewDevice() (verbs.Device, error) { return shm.NewDevice(softnic.Config{}) }

func (f *shmFabric) Listen(dev verbs.Device, addr string) (verbs.Listener, error) {
	if addr == "" {
		addr = filepath.Join(f.dir, fmt.Sprintf("node-%d", f.names.Add(1)))
	}
	return shm.Listen(dev, addr, shm.Config{})
}

func (*shmFabric) Dial(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error) {
	return shm.Dial(ctx, dev, addr, shm.Config{})
}
