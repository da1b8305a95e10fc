package kernelpart

import (
	"testing"
	"time"
)

// TestAPageOfAScanTakesTheKernelSomeTime: less than a fault of a single page by far, and not none.
func TestAPageOfAScanTakesTheKernelSomeTime(t *testing.T) {
	d, err := OfScan()
	if err != nil {
		t.Fatal(err)
	}
	if d <= 0 || d > time.Second {
		t.Errorf("it takes %v", d)
	}
	t.Log(d)
}
