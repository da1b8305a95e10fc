//go:build ibverbs

package pool_test

import (
	"testing"

	"polder/pool"
	"polder/pool/baseline"
	"polder/pool/finemem"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
)

// TestIBVManagers runs the suite of pools over an RDMA device, by every way of
// managing memory that needs no more of it than the standard gives.
func TestIBVManagers(t *testing.T) {
	for _, m := range []pool.Manager{rpcmw.Manager{}, baseline.RPCMW1{}, finemem.Manager{}, baseline.FineMR{}, baseline.StaticMR{}} {
		t.Run(m.Name(), func(t *testing.T) {
			s := pooltest.RDMA
			s.Manager = m
			pooltest.Run(t, s)
		})
	}
}
