package clientmem

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// client is an account that knows whether it was hung up.
type client struct {
	*Account
	hungUp int
}

func join(b *Budget) *client {
	c := new(client)
	c.Account = b.Join()
	c.HangUp = func() { c.hungUp++ }
	return c
}

func TestTheGreediestIsEvictedFirst(t *testing.T) {
	b := New(100 << 10)
	small, large, middle := join(b), join(b), join(b)
	if !small.Hold(10<<10) || !large.Hold(50<<10) || !middle.Hold(40<<10) {
		t.Fatal("a client was evicted although the budget is just enough")
	}
	if !small.Hold(20 << 10) {
		t.Error("the client that wanted more was evicted although another one holds more")
	}
	if large.hungUp != 1 || !large.Evicted() || middle.hungUp+small.hungUp != 0 || b.Evicted() != 1 {
		t.Errorf("hung up: large %d, middle %d, small %d, want only large", large.hungUp, middle.hungUp, small.hungUp)
	}
	if got := b.Held(); got != 110<<10 {
		t.Errorf("held: %d, want also what the evicted one has not let go: %d", got, 110<<10)
	}
	if large.Hold(60 << 10) {
		t.Error("an evicted client was told to go on")
	}
	large.Leave()
	large.Leave()
	if got := b.Held(); got != 60<<10 {
		t.Errorf("held: %d, want %d once it has left", got, 60<<10)
	}
	if middle.Hold(200 << 10) {
		t.Error("a client that holds more than the whole budget was not evicted")
	}
	if small.Evicted() {
		t.Error("a client was evicted for what another one holds")
	}
}

// Clients that are disconnected and stay, as those who wait for far memory do, make room
// for others no more than a quarter of the budget.
func TestWhatIsNotLetGoIsNotThereForOthers(t *testing.T) {
	const max, each = 1 << 20, 50 << 10
	b := New(max)
	for range 200 {
		if c := join(b); !c.Hold(each) {
			c.Leave() // who is told so at once is nobody who waits
		}
		if got := b.Held(); got > max+max/4+2*each {
			t.Fatalf("%d bytes are held of a budget of %d", got, max)
		}
	}
	if n := b.Evicted(); n < 175 {
		t.Errorf("%d of 200 were evicted", n)
	}
}

// A client that wants little is served while those that were disconnected for having much have not let go of it.
func TestWhoWantsLittleIsServedWhateverIsNotLetGo(t *testing.T) {
	const max = 1 << 20
	b := New(max)
	little := join(b)
	for range 20 {
		join(b).Hold(100 << 10)
	}
	if b.Held() < max+max/4 {
		t.Fatalf("%d bytes are held, too few to test anything", b.Held())
	}
	if !little.Hold(16 << 10) {
		t.Error("a client was evicted that holds 16 KiB, for what others hold that are disconnected")
	}
	if little.Hold(64 << 10) {
		t.Error("a client was not evicted that holds more than its share")
	}
}

func TestPendingRepliesAreAllowedByWhatIsLeft(t *testing.T) {
	b := New(16 << 20)
	if got := b.Allow(2 << 20); got != 2<<20 {
		t.Errorf("of an empty budget: %d, want all that is asked for", got)
	}
	join(b).Hold(12 << 20)
	if got := b.Allow(2 << 20); got != 1<<20 {
		t.Errorf("with 4 MiB left: %d, want a quarter of it", got)
	}
	join(b).Hold(4<<20 - 1)
	if got := b.Allow(2 << 20); got != Allowance {
		t.Errorf("with nothing left: %d, want %d", got, Allowance)
	}
}

// TestTheSumIsKept has many goroutines hold and leave at random.
func TestTheSumIsKept(t *testing.T) {
	const max = 1 << 20
	b := New(max)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			join := func() *Account {
				a := b.Join()
				a.HangUp = func() {}
				return a
			}
			a := join()
			for range 5000 {
				if !a.Hold(r.IntN(max * 9 / 8)) {
					a.Leave()
					a = join()
				}
				if used := b.used.Load(); used < 0 || used > max+8*max*9/8 {
					t.Errorf("%d bytes are in use", used)
					break
				}
			}
			a.Leave()
		})
	}
	wg.Wait()
	if b.Held() != 0 || len(b.accounts) != 0 {
		t.Errorf("when all have left, %d bytes of %d accounts are held, want none", b.Held(), len(b.accounts))
	}
	if b.Evicted() == 0 {
		t.Error("nobody was evicted: the test tested nothing")
	}
}
