//go:build !ibverbs

package ibv

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestWithoutTheTagEverythingSaysSo(t *testing.T) {
	_, open := Open("mlx5_0")
	_, listen := Listen(nil, "127.0.0.1:0", Config{})
	_, dial := Dial(context.Background(), nil, "127.0.0.1:1", Config{})
	_, list := Devices()
	for _, err := range []error{open, listen, dial, list} {
		if !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), "-tags ibverbs") {
			t.Errorf("got %v, want ErrNotBuilt and how to build", err)
		}
	}
}
