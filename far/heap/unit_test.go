package heap

import "testing"

// Who waits for room for what shrinks is refused only after that was tried for
// which something is kept, even if others who wait are told that there is none.
func TestWhoShrinksIsRefusedAfterATryOnly(t *testing.T) {
	var l Logs
	l.round = &round{done: make(chan struct{})}
	other, shrinks := l.join(ForMutator), l.join(ForShrink)
	l.look()
	if l.refuse(errStoreFull, false) {
		t.Error("refused though nothing was tried for what shrinks")
	}
	select {
	case <-shrinks.done:
		t.Fatal("the wait has ended")
	default:
	}
	if !l.refuse(errStoreFull, true) {
		t.Error("not refused after everything was tried")
	}
	for _, r := range []*round{other, shrinks} {
		<-r.done
		if r.err != errStoreFull {
			t.Errorf("got %v, want %v", r.err, errStoreFull)
		}
	}
}
