package arena

import (
	"strings"
	"testing"
)

// Where membarrier(2) is missing, the error says what is.
func TestMembarrier(t *testing.T) {
	can := CanMembarrier()
	for range 2 {
		if err := Membarrier(); (err == nil) != (can == nil) {
			t.Errorf("Membarrier: got %v, CanMembarrier says %v", err, can)
		}
	}
	if can != nil && !strings.Contains(can.Error(), "membarrier(2)") {
		t.Errorf("got %v, want an error that names membarrier(2)", can)
	}
}
