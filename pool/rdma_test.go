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

// TestIBVMechanisms runs the suite of pools over an RDMA device, by every way of
// managing memory that needs no more of it than the standard gives.
func TestIBVMechanisms(t *testing.T) {
	for _, m := range []pool.Manager{rpcmw.Mechanism{}, rpcmw.Mechanism{Type1: true}, finemem.Mechanism{}, finemr.Mechanism{}, staticmr.Mechanism{}} {
		t.Run(m.Name(), func(t *testing.T) {
			s := pooltest.RDMA
			s.Manager = m
			pooltest.Run(t, s)
		})
	}
}
