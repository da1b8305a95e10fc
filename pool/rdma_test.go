//go:build ibverbs

package pool_test

import (
	"testing"

	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/finemr"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
	"polder/pool/staticmr"
)

// TestIBVManagers runs the suite of pools over an RDMA device, by every way of
// managing memory that needs no more of it than the standard gives.
func TestIBVManagers(t *testing.T) {
	for _, m := range []pool.Manager{rpcmw.Manager{}, rpcmw.Manager{Type1: true}, finemem.Manager{}, finemr.Manager{}, staticmr.Manager{}} {
		t.Run(m.Name(), func(t *testing.T) {
			s := pooltest.RDMA
			s.Manager = m
			pooltest.Run(t, s)
		})
	}
}
