package softbench

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// TestMain lets the test program be its own worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "worker" {
		if err := Worker(context.Background(), os.Stdout, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestTheBestFixedPartitionIsOne(t *testing.T) {
	sum := 0.0
	for name, share := range wallShares() {
		if share <= 0 {
			t.Errorf("%s has the share %v", name, share)
		}
		sum += share
	}
	if sum < 0.999 || sum > 1.001 {
		t.Errorf("the shares sum to %v", sum)
	}
}
