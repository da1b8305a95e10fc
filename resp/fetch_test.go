package resp

import "testing"

// TestSessionsGatherForAFetch: many are fetched for at once, a few at once without waiting, and
// nobody waits at the end.
func TestSessionsGatherForAFetch(t *testing.T) {
	var f fetcher
	f.start(&Server{}, nil)
	submit := func(n int) {
		for range n {
			f.submit(&conn{})
		}
	}
	submit(1)
	few := f.take(nil)
	submit(fetchFew)
	if !f.due() {
		t.Error("a few are under way, and others have to wait")
	}
	many := f.take(nil)
	if len(few) != 1 || len(many) != fetchFew {
		t.Fatalf("got %d and %d sessions, want 1 and %d", len(few), len(many), fetchFew)
	}
	submit(fetchFew)
	if f.due() {
		t.Errorf("%d are under way, and %d do not wait", f.flying, fetchFew)
	}
	submit(1)
	if !f.due() {
		t.Errorf("%d are under way, and as many have to wait", f.flying)
	}
	if got := f.take(few); len(got) != fetchFew+1 || f.flying != 2*fetchFew+1 {
		t.Errorf("got %d sessions, %d are under way; want %d, %d", len(got), f.flying, fetchFew+1, 2*fetchFew+1)
	}
	submit(1)
	if f.due() || !f.waiting {
		t.Error("one more is due at once, or is not waited for")
	}
	f.gathered()
	if !f.due() {
		t.Error("one has waited, and has to wait on")
	}
	f.stop()
	if !f.due() {
		t.Error("at the end, one is left")
	}
	if got := f.take(many); len(got) != 1 {
		t.Errorf("at the end, got %d sessions, want 1", len(got))
	}
	if got := f.take(nil); len(got) != 0 {
		t.Errorf("at the end, got %d sessions more", len(got))
	}
}
