package rpcmw_test

import (
	"testing"

	"polder/pool/pooltest"
	"polder/pool/rpcmw"
)

func TestConformance(t *testing.T) { pooltest.Conformance(t, rpcmw.Manager{}) }
