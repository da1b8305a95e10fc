package partition

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhatComesBackWhileItIsClosedIsOpenedAgain: the next owner died before it had opened it.
func TestWhatComesBackWhileItIsClosedIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		b := w.host(2)
		a.onClose = func(context.Context, int) error {
			b.kill()
			time.Sleep(10 * time.Second)
			return nil
		}
		if err := b.join(2); err != nil {
			t.Fatal(err)
		}
		w.until("it is open again", func() bool { return slices.Contains(a.calls()[2:], "open 0") && a.serves(0, 1)() })
		a.onClose = nil
		a.leave()
	})
}

// TestPreparingEndsWhenThePartitionIsAnothers that has not waited for it.
func TestPreparingEndsWhenThePartitionIsAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		var ended atomic.Bool
		a.onPrepare = func(ctx context.Context, _ int) error {
			<-ctx.Done()
			ended.Store(true)
			return ctx.Err()
		}
		b := w.start(2, 2)
		w.until("it is prepared", func() bool { return slices.Contains(a.calls(), "prepare 0") })
		w.put(func(m *Map) { m.Owner[0], m.Next[0] = b.id, "" })
		w.until("that ends", ended.Load)
		w.until("the other one has it", b.serves(0))
		b.kill()
		a.leave()
	})
}

// TestWhatNobodyOwnsGoesOnBeingServed until this server has joined again.
func TestWhatNobodyOwnsGoesOnBeingServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		w.put(func(m *Map) { m.remove(func(string) bool { return true }) })
		w.until("it is in the map again", func() bool { return slices.Equal(w.now().Owner, []string{a.id, a.id}) })
		time.Sleep(10 * time.Second)
		if got := a.calls()[2:]; len(got) != 0 {
			t.Errorf("it did %v, want nothing", got)
		}
		a.leave()
	})
}

// TestAServerDoesNotTakeItselfForDead when it could read the register, but not change it.
func TestAServerDoesNotTakeItselfForDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		before := w.now()
		setDeaf := func(deaf bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			a.deaf = deaf
		}
		setDeaf(true)
		time.Sleep(time.Minute)
		setDeaf(false)
		time.Sleep(10 * time.Second)
		if now := w.now(); now.Epoch != before.Epoch || len(now.Servers) != 1 || now.Servers[0].Beat == before.Servers[0].Beat {
			t.Errorf("the map was %+v and is %+v, want another beat", before, now)
		}
		a.leave()
	})
}

// TestAPartitionIsServedUntilTheMapHasChanged: while the register does not answer it neither moves nor waits.
func TestAPartitionIsServedUntilTheMapHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		setDeaf := func(deaf bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			a.deaf = deaf
		}
		a.onPrepare = func(context.Context, int) error {
			setDeaf(true)
			return nil
		}
		b := w.start(2, 2)
		w.until("it is prepared", func() bool { return slices.Contains(a.calls(), "prepare 0") })
		time.Sleep(2500 * time.Millisecond)
		if !a.serves(0, 1)() {
			t.Errorf("what could not be handed over is closed: %v", a.calls())
		}
		setDeaf(false)
		w.until("the other one has it", b.serves(0))
		if got, want := a.calls()[2:], []string{"prepare 0", "close 0"}; !slices.Equal(got, want) {
			t.Errorf("the owner did %v, want %v", got, want)
		}
		a.onPrepare = nil
		b.leave()
		a.leave()
	})
}

// TestAnOldMapIsNotActedOn: an answer of the register may be overtaken by a later one.
func TestAnOldMapIsNotActedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		now := a.m.Map()
		old := newMap(2)
		old.Owner[0] = id(2)
		if a.m.install(old, 0); a.m.Map() != now {
			t.Errorf("the map is %+v, want %+v", a.m.Map(), now)
		}
		a.leave()
	})
}
