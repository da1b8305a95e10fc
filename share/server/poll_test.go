package server

import (
	"testing"
	"time"

	"polder/share/internal/shm"
)

// stillPoller returns a poller that nobody runs, and a mailbox that it polls.
func stillPoller(t *testing.T) (*poller, *mailbox) {
	t.Helper()
	s := still(t, nil)
	p := newPoller(s, time.Minute)
	if p.limit == 0 {
		p.limit = time.Minute // there is one processor
	}
	box, file, err := shm.NewMailbox()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(func() { box.Close() })
	return p, newMailbox(box, conn{s: s})
}

// ask asks n times by the socket, closely.
func (p *poller) ask(m *mailbox, n int) {
	for range n {
		p.answered(m)
		p.asked(m)
	}
	p.admit()
}

// TestWhoPollsForNothingIsLessEager: each time that a mailbox is given up after few
// requests, twice as many must follow one another before it is polled again.
func TestWhoPollsForNothingIsLessEager(t *testing.T) {
	p, m := stillPoller(t)
	for want := quickRequests; want <= mostQuickRequests; want *= 2 {
		if p.ask(m, want-1); m.polled.Load() {
			t.Fatalf("it is polled after %d requests, want %d", want-1, want)
		}
		if p.ask(m, 1); !m.polled.Load() || !m.box.Attended() {
			t.Fatalf("it is not polled after %d requests", want)
		}
		m.until = time.Now().Add(-time.Second)
		if p.poll(); m.polled.Load() || m.box.Attended() || len(p.boxes) != 0 {
			t.Fatal("a mailbox to which nothing comes is polled for ever")
		}
	}
	p.ask(m, mostQuickRequests)
	m.found = payRequests
	m.until = time.Now().Add(-time.Second)
	p.poll()
	if p.ask(m, quickRequests); !m.polled.Load() {
		t.Errorf("after polling has paid: it is not polled after %d requests", quickRequests)
	}
	p.boxes[0].until = time.Time{}
	p.poll()
}
