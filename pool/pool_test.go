package pool_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOverInproc(t *testing.T) { pooltest.Run(t, pooltest.Inproc) }
