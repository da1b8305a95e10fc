//go:build !ibverbs

package ibv

import (
	"context"
	"errors"
	"fmt"

	"polder/verbs"
)

// ErrNotBuilt: this program was built without RDMA.
var ErrNotBuilt = errors.New("built without RDMA: install libibverbs-dev (Debian) or rdma-core-devel (Fedora), and build with -tags ibverbs and CGO_ENABLED=1")

// Built reports whether this program was built with RDMA.
const Built = false

// Open opens the RDMA device of that name, such as mlx5_0. An empty name is that
// of the host's only device.
func Open(name string) (verbs.Device, error) {
	return nil, fmt.Errorf("cannot open RDMA device %q: %w", name, ErrNotBuilt)
}

// Listen accepts connections for dev at addr (host:port; port 0 picks one).
func Listen(_ verbs.Device, addr string, _ Config) (verbs.Listener, error) {
	return nil, fmt.Errorf("cannot listen on %s: %w", addr, ErrNotBuilt)
}

// Dial connects dev to the listener at addr (host:port).
func Dial(_ context.Context, _ verbs.Device, addr string, _ Config) (verbs.Conn, error) {
	return nil, fmt.Errorf("cannot dial %s: %w", addr, ErrNotBuilt)
}

// Devices describes the RDMA devices of this host.
func Devices() ([]Info, error) {
	return nil, fmt.Errorf("cannot list RDMA devices: %w", ErrNotBuilt)
}
