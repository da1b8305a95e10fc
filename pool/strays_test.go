package pool

import (
	"log/slog"
	"testing"

	"polder/pool/manager"
)

// TestWhatComesLaterGoesBehindWhatIsGivenUp: a piece that flies although its caller has
// given up may take effect late, but not after what the caller does next: that goes over the
// same queue pair, whatever it is, since queue pairs are not ordered among each other. If such
// pieces fly over two of them no place is behind both, and the connection is given up.
func TestWhatComesLaterGoesBehindWhatIsGivenUp(t *testing.T) {
	for _, prompt := range []bool{true, false} {
		n := newNode(&Pool{log: slog.New(slog.DiscardHandler)}, nil, NodeConfig{Name: "node"})
		l := &link{node: n, broke: make(chan struct{})}
		g := &group{link: l, qps: make([]manager.Poster, 3)}
		l.groups, n.link, n.state = []*group{g}, l, nodeUp
		x := &extent{node: n, id: 1}
		if got, want := x.path(g, !prompt), g.path(x.id, !prompt); got != want {
			t.Errorf("prompt %v: it goes over path %d, want %d", prompt, got, want)
		}
		for behind := range g.qps {
			x.strays[behind].Add(1)
			if got := x.path(g, !prompt); got != behind {
				t.Errorf("prompt %v: it goes over path %d, want %d, where a piece flies that was given up", prompt, got, behind)
			}
			x.strays[behind].Add(-1)
		}
		x.strays[0].Add(1)
		if x.path(g, !prompt); l.dead.Load() {
			t.Errorf("prompt %v: the connection was given up for strays on one path", prompt)
		}
		x.strays[2].Add(1)
		if x.path(g, !prompt); !l.dead.Load() {
			t.Errorf("prompt %v: the connection stays, with strays on two paths", prompt)
		}
	}
}
