package partition

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"polder/holder"
)

// TestTheNextOwnerIsExpectingAPartition when it is closed by the one before, so that nobody waits for the next owner's beat.
func TestTheNextOwnerIsExpectingAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.start(1, 4), w.start(2, 4)
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		closed := 0
		a.onClose = func(_ context.Context, p int) error {
			closed++
			if now := b.m.Map(); now.Next[p] != b.id && now.Owner[p] != b.id { // it may have heard already that it is its own
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

// TestNobodyJoinsAMapThatIsBeingFilled, but when it is released, and it takes no place that is taken.
func TestNobodyJoinsAMapThatIsBeingFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		tool := w.host(1)
		version, err := Reserve(t.Context(), tool, 4, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Reserve(t.Context(), tool, 4, func([]byte) (uint64, bool) { return 0, false }); !errors.Is(err, ErrTaken) {
			t.Errorf("a second time: %v, want ErrTaken", err)
		}
		if err := w.host(2).join(4); !errors.Is(err, ErrRemoved) {
			t.Errorf("a server joins meanwhile: %v, want ErrRemoved", err)
		}
		if err := Release(t.Context(), tool, version+1); !errors.Is(err, holder.ErrChanged) {
			t.Errorf("another map is released: %v, want ErrChanged", err)
		}
		if err := Release(t.Context(), tool, version); err != nil {
			t.Fatal(err)
		}
		if err := Release(t.Context(), tool, version); !errors.Is(err, holder.ErrChanged) {
			t.Errorf("it is released again: %v, want ErrChanged", err)
		}
		h := w.start(3, 0) // without saying how many
		w.until("it has everything", func() bool { return w.wrong(map[string]*host{h.id: h}) == "" })
		if m := h.m.Map(); m.Partitions != 4 || m.Removing {
			t.Errorf("the map is %+v, want one of 4 partitions", m)
		}
		h.leave()

		// One that was removed leaves its name, and its epoch.
		b, at, err := tool.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tool.Swap(t.Context(), at, []byte("gone")); err != nil || !IsMap(b) {
			t.Fatal(err)
		}
		if _, err := Reserve(t.Context(), tool, 2, func([]byte) (uint64, bool) { return 70, true }); err != nil {
			t.Fatal(err)
		}
		if m := w.now(); m.Partitions != 2 || m.Epoch != 70 {
			t.Errorf("the map is %+v, want one of 2 partitions, of epoch 70", m)
		}
	})
}
