package shm

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// bothBoxes returns both sides of a mailbox.
func bothBoxes(t *testing.T) (client, daemon *Mailbox) {
	t.Helper()
	daemon, f, err := NewMailbox()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	client, err = OpenMailbox(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); daemon.Close() })
	return client, daemon
}

func TestRequestsAndAnswersGoThrough(t *testing.T) {
	c, d := bothBoxes(t)
	var buf [MaxPost]byte
	if _, ok := d.Receive(3, buf[:]); ok {
		t.Fatal("a request was found where none is")
	}
	c.Post(3, []byte("question"))
	got, ok := d.Receive(3, buf[:])
	if !ok || string(got) != "question" {
		t.Fatalf("got %q, %v", got, ok)
	}
	if c.Retract(3) {
		t.Fatal("a request was retracted that the daemon has taken")
	}
	if _, ok := d.Receive(3, buf[:]); ok {
		t.Fatal("a request was taken twice")
	}
	d.Write(3, []byte("answer"))
	if c.Answered(3) {
		t.Fatal("the answer is visible before it is sent")
	}
	d.Send(3)
	if !c.Answered(3) || string(c.Answer(3)) != "answer" {
		t.Fatalf("got %v, %q", c.Answered(3), c.Answer(3))
	}
}

// TestEveryRequestIsTakenOrRetracted is the argument of the mailbox: a daemon
// that stops attending leaves no request behind, and none is done twice.
func TestEveryRequestIsTakenOrRetracted(t *testing.T) {
	c, d := bothBoxes(t)
	const rounds = 1000
	var stop atomic.Bool
	var received uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		var buf [MaxPost]byte
		look := func() {
			for slot := range Posts {
				if msg, ok := d.Receive(slot, buf[:]); ok {
					received += binary.LittleEndian.Uint64(msg)
					d.Write(slot, msg)
					d.Send(slot)
				}
			}
		}
		for n := 0; !stop.Load(); n++ {
			d.Attend(true)
			for range n % 64 {
				look()
				if n%2 == 0 {
					runtime.Gosched() // on one processor, others see that it attends
				}
			}
			d.Attend(false)
			look()
			runtime.Gosched()
		}
	})
	var answered, retracted [4]uint64
	var clients sync.WaitGroup
	for slot := range answered {
		clients.Go(func() {
			var msg [8]byte
			for i := uint64(1); i <= rounds; i++ {
				binary.LittleEndian.PutUint64(msg[:], i)
				for !c.Attended() {
					runtime.Gosched()
				}
				c.Post(slot, msg[:])
				for !c.Answered(slot) {
					if !c.Attended() && c.Retract(slot) {
						retracted[slot] += i
						break
					}
					runtime.Gosched()
				}
				if c.Answered(slot) {
					got := binary.LittleEndian.Uint64(c.Answer(slot))
					if got != i {
						t.Errorf("got the answer to %d, want that to %d", got, i)
					}
					answered[slot] += got
					c.Idle(slot)
				}
			}
		})
	}
	clients.Wait()
	stop.Store(true)
	wg.Wait()
	var sum uint64
	for slot := range answered {
		sum += answered[slot]
		if got := answered[slot] + retracted[slot]; got != rounds*(rounds+1)/2 {
			t.Errorf("slot %d: a request was neither answered nor retracted: got %d, want %d", slot, got, rounds*(rounds+1)/2)
		}
	}
	if sum != received {
		t.Errorf("the daemon has received %d, and answers to %d have come", received, sum)
	}
}

func TestAnAnswerWakesWhoSleeps(t *testing.T) {
	c, d := bothBoxes(t)
	var buf [MaxPost]byte
	c.Post(0, []byte("x"))
	if _, ok := d.Receive(0, buf[:]); !ok {
		t.Fatal("the request was not found")
	}
	awake := make(chan struct{})
	go func() {
		defer close(awake)
		for !c.Answered(0) {
			c.Sleep(0, time.Hour)
		}
	}()
	for c.state(0).Load() != slotAwaited {
	}
	d.Send(0)
	<-awake
}

func TestBreakWakesWhoSleeps(t *testing.T) {
	c, d := bothBoxes(t)
	var buf [MaxPost]byte
	c.Post(0, []byte("x"))
	if _, ok := d.Receive(0, buf[:]); !ok {
		t.Fatal("the request was not found")
	}
	awake := make(chan struct{})
	go func() {
		defer close(awake)
		for !c.Broken() {
			c.Sleep(0, time.Hour)
		}
	}()
	for c.state(0).Load() != slotAwaited {
	}
	c.Break()
	<-awake
}

func TestNothingInAMailboxIsBelieved(t *testing.T) {
	c, d := bothBoxes(t)
	var buf [MaxPost]byte
	for _, n := range []uint32{MaxPost + 1, 1 << 31, 1<<32 - 1} {
		c.Post(0, []byte("x"))
		c.length(0).Store(n)
		msg, ok := d.Receive(0, buf[:])
		if !ok || len(msg) != MaxPost {
			t.Errorf("a length of %d: got %d bytes, %v, want %d", n, len(msg), ok, MaxPost)
		}
		// What was received does not change with what the client writes.
		before := msg[0]
		c.body(0)[0]++
		if msg[0] != before {
			t.Error("a request changes after it was received")
		}
		c.Idle(0)
	}
	for state := range uint32(100) {
		c.state(1).Store(state)
		if _, ok := d.Receive(1, buf[:]); ok != (state == slotPosted) {
			t.Errorf("state %d: received %v", state, ok)
		}
	}
	d.Write(2, make([]byte, MaxPost+1))
	if n := len(c.Answer(2)); n != MaxPost {
		t.Errorf("an answer that is too long: got %d bytes, want %d", n, MaxPost)
	}
}

func TestAMailboxIsUnmappedByItsLastUser(t *testing.T) {
	_, d := bothBoxes(t)
	if !d.Use() {
		t.Fatal("it cannot be used")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d.Attend(true) // still mapped
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d.Use() {
		t.Fatal("it can be used after it was unmapped")
	}
	d.users.Store(1) // for the cleanup, which closes it once more
}
