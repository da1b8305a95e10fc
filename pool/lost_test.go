package pool

import (
	"testing"
	"time"
)

// Whoever is told by an operation that a chunk is lost finds that Lost says so.
func TestWhatIsLostIsSaidToBe(t *testing.T) {
	for range 2000 {
		c := newChunk(nil, 1)
		go c.lose()
		err := c.acquire()
		for ; err == nil; err = c.acquire() {
			c.release()
		}
		select {
		case <-c.Lost():
		default:
			t.Fatalf("an operation has failed with %v before Lost is closed", err)
		}
	}
}

// An operation on a chunk that has vanished fails at once: Lost does not say so.
func TestWhatHasVanishedIsNotWaitedFor(t *testing.T) {
	c := newChunk(nil, 1)
	c.drop()
	told := make(chan error, 1)
	go func() { told <- c.acquire() }()
	select {
	case err := <-told:
		if err != ErrLost {
			t.Fatalf("got %v, want %v", err, ErrLost)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it is waited for")
	}
}
