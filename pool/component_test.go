package pool

import (
	"context"
	"testing"
	"time"

	"polder/memnode/component/wire"
)

// TestACallThatIsMadeAgainEndsAtItsDeadline: the port of the link is closed, and the node
// has not noticed, so that every attempt is to be repeated.
func TestACallThatIsMadeAgainEndsAtItsDeadline(t *testing.T) {
	n := &node{pool: &Pool{cfg: Config{Timeout: time.Millisecond}}, link: &link{}, state: nodeUp}
	n.link.components = &portAttempt{made: make(chan struct{}), port: &port{closed: true, message: wire.RequestHeader}}
	close(n.link.components.made)
	o := &Object{node: n, id: 1}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // or it would go on forever
	defer cancel()
	if _, err := n.callComponent(ctx, o, &wire.Request{Verb: wire.Read}, nil, true); err != ErrTimeout {
		t.Fatalf("calling: got %v, want %v", err, ErrTimeout)
	}
}
