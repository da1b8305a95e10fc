package partition

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestTheNextOwnerIsExpectingAPartition when it is closed by the one before, so that nobody waits for the next owner's beat.
func TestTheNextOwnerIsExpectingAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.start(1, 4), w.start(2, 4)
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		closed := 0
		a.onClose = func(_ context.Context, p int) error {
			if closed++; b.m.Map().Next[p] != b.id {
				t.Errorf("partition %d is closed, and the next owner does not know", p)
			}
			return nil
		}
		time.Sleep(300 * time.Millisecond) // it is between beats
		a.leave()
		if closed != 2 {
			t.Errorf("%d partitions were closed, want 2", closed)
		}
		b.leave()
	})
}

func TestARemovalEndsTheServersThatLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b, tool := w.start(1, 4), w.start(2, 4), w.host(3)
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		var used *UsedError
		if _, _, err := BeginRemoval(t.Context(), tool, false); !errors.As(err, &used) || len(used.Addrs) != 2 {
			t.Errorf("while two servers live: %v, want a UsedError with their addresses", err)
		}
		select {
		case <-a.m.Removed():
			t.Error("it was removed")
		default:
		}
		epoch := a.m.Map().Epoch
		m, version, err := BeginRemoval(t.Context(), tool, true)
		if err != nil || !m.Removing || len(m.Servers) > 0 || m.Partitions != 4 || m.Epoch <= epoch {
			t.Fatalf("by force: %+v, %v, want a map of 4 partitions without servers, above epoch %d", m, err, epoch)
		}
		if again, v, err := BeginRemoval(t.Context(), tool, false); err != nil || v != version || !again.Removing {
			t.Errorf("once more: %+v in version %d, %v, want version %d", again, v, err, version)
		}
		if err := w.host(4).join(4); !errors.Is(err, ErrRemoved) {
			t.Errorf("a server joins meanwhile: %v, want ErrRemoved", err)
		}
		for _, h := range []*host{a, b} {
			<-h.m.Removed()
			began := time.Now()
			if err := h.m.Close(t.Context()); !errors.Is(err, ErrRemoved) || time.Since(began) > time.Second {
				t.Errorf("it ends with %v after %v, want ErrRemoved at once", err, time.Since(began))
			}
			if got := h.calls(); !slices.Contains(got, "close 0") && !slices.Contains(got, "close 3") {
				t.Errorf("it did %v, and closed nothing", got)
			}
		}
	})
}

func TestARemovalWaitsForTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, tool := w.start(1, 4), w.host(2)
		a.kill()
		began := time.Now()
		if _, _, err := BeginRemoval(t.Context(), tool, false); err != nil || time.Since(began) < DefaultPatience {
			t.Errorf("a server was killed: %v after %v, want nil after %v", err, time.Since(began), DefaultPatience)
		}
	})
}

// TestAMapTakesThePlaceOfWhatIsVacant, above its epoch, and of nothing else.
func TestAMapTakesThePlaceOfWhatIsVacant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.value, w.version = []byte("something"), 1
		h := w.host(1)
		cfg := Config{Register: h, ID: h.id, Addr: "10.0.0.1:6379", Partitions: 2, Open: h.open, Close: h.close}
		if _, err := Join(t.Context(), cfg); !errors.Is(err, ErrNoMap) {
			t.Errorf("there is something else: %v, want ErrNoMap", err)
		}
		cfg.Vacant = func(value []byte) (uint64, bool) { return 41, string(value) == "nothing" }
		if _, err := Join(t.Context(), cfg); !errors.Is(err, ErrNoMap) {
			t.Errorf("there is something else: %v, want ErrNoMap", err)
		}
		w.value = []byte("nothing")
		m, err := Join(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		h.m = m
		close(h.ready)
		if got := m.Map().Epoch; got <= 41 {
			t.Errorf("the map has epoch %d, want more than 41", got)
		}
		h.leave()
	})
}
