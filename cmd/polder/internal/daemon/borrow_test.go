package daemon

import (
	"strings"
	"testing"

	"polder/internal/scheme"
	"polder/pool"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// TestANodeWhoseFabricIsMissingDoesNotAnswer, and says why: whether the process has another fabric or none.
func TestANodeWhoseFabricIsMissingDoesNotAnswer(t *testing.T) {
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for name, open := range map[string]map[string]pool.NodeConfig{
		"another": {scheme.TCP: {Device: dev}},
		"none":    {},
	} {
		f := &fabrics{p: &process{}, device: "no such device", open: open}
		n := f.node(scheme.RDMA + "host:1")
		if n.Name != scheme.RDMA+"host:1" {
			t.Errorf("with %s: it is called %q", name, n.Name)
		}
		if _, err := n.Dial(t.Context()); err == nil || !strings.Contains(err.Error(), `cannot open RDMA device "no such device"`) {
			t.Errorf("with %s: got %v, want that the device cannot be opened", name, err)
		}
	}
}
