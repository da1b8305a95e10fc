package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func (h *host) serves(partitions ...int) func() bool {
	return func() bool {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		for _, p := range partitions {
			if h.parts[p] != serving {
				return false
			}
		}
		return len(h.parts) == len(partitions)
	}
}

func TestAServerThatIsAloneHasAllAndLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 3)
		w.until("all is open", a.serves(0, 1, 2))
		a.leave()
		a.leave()
		if m := w.now(); len(m.Servers) != 0 || !slices.Equal(m.Owner, []string{"", "", ""}) || len(a.parts) != 0 {
			t.Errorf("the map is %+v, want no servers and no owners; open are %v", m, a.parts)
		}
	})
}

func TestJoinRefusesWhatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if err := w.host(1).join(0); err == nil {
			t.Error("joined a map that is not there, of nobody knows how many partitions")
		}
		if err := w.host(1).join(MaxPartitions + 1); err == nil {
			t.Error("joined with too many partitions")
		}
		if err := (&host{w: w, id: "1", ready: make(chan struct{})}).join(1); err == nil {
			t.Error("joined with the ID 1")
		}
		if _, err := Join(t.Context(), Config{Register: w.host(1), ID: id(1), Addr: "a:1", Partitions: 1, Beat: 2 * time.Second, Patience: 5 * time.Second}); err == nil {
			t.Error("joined with a patience of two and a half beats")
		}
		if w.version != 0 {
			t.Fatalf("the register was changed to %s", w.value)
		}

		a := w.start(1, 4)
		var count *CountError
		if err := w.host(2).join(5); !errors.As(err, &count) || *count != (CountError{Have: 4, Want: 5}) {
			t.Errorf("joining 4 partitions as 5 says %v", err)
		}
		b := w.start(2, 0)
		b.leave()
		a.leave()

		w.value = []byte("\x03PolMan")
		if err := w.host(1).join(4); err == nil || string(w.value) != "\x03PolMan" {
			t.Errorf("joining what is no map says %v, and makes of it %q", err, w.value)
		}
	})
}

// TestAMoveIsPreparedAndQuick: the next owner has begun to open a partition when the owner prepares it, and goes on at once when the owner has closed it.
func TestAMoveIsPreparedAndQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 4)
		w.until("all is open", a.serves(0, 1, 2, 3))
		var preparing, most atomic.Int32
		closed, expected := map[int]time.Time{}, map[int]int{} // guarded by w.mu
		a.onPrepare = func(_ context.Context, p int) error {
			w.mu.Lock()
			if pause := time.Since(closed[0]); p == 1 && pause > 100*time.Millisecond {
				t.Errorf("the second partition is prepared %v after the first one was closed, want at once", pause)
			}
			w.mu.Unlock()
			most.Store(max(most.Load(), preparing.Add(1)))
			time.Sleep(3 * time.Second)
			preparing.Add(-1)
			w.mu.Lock()
			if expected[p] == 0 { // it need not have begun at the very moment at which it has said so
				t.Errorf("partition %d is prepared, and the next owner has not begun to open it", p)
			}
			w.mu.Unlock()
			if a.has(p) != serving {
				t.Errorf("partition %d is not served while it is prepared", p)
			}
			return errDown // which makes no difference
		}
		a.onClose = func(_ context.Context, p int) error {
			w.mu.Lock()
			if n := expected[p]; n != 1 {
				t.Errorf("partition %d is closed, and the next owner has begun to open it %d times, want once", p, n)
			}
			closed[p] = time.Now()
			w.mu.Unlock()
			return errDown // nor does this
		}
		b := w.host(2)
		b.onExpect = func(p int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			expected[p]++
		}
		b.onOpen = func(_ context.Context, p int) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if late := time.Since(closed[p]); closed[p].IsZero() || late > 20*time.Millisecond {
				t.Errorf("partition %d is opened %v after it was closed, want within 20ms", p, late)
			}
			return nil
		}
		if err := b.join(0); err != nil {
			t.Fatal(err)
		}
		w.until("half of it has moved", func() bool { return a.serves(2, 3)() && b.serves(0, 1)() })
		if got, want := a.calls()[4:], []string{"prepare 0", "close 0", "prepare 1", "close 1"}; !slices.Equal(got, want) {
			t.Errorf("the owner did %v, want %v", got, want)
		}
		if n := most.Load(); n != 1 {
			t.Errorf("%d partitions are handed over at a time, want 1", n)
		}
		a.onClose = nil
		b.leave()
		w.until("all is back", a.serves(0, 1, 2, 3))
		if got, want := b.calls()[2:], []string{"prepare 0", "close 0", "prepare 1", "close 1"}; !slices.Equal(got, want) {
			t.Errorf("who left did %v, want %v", got, want)
		}
		a.leave()
	})
}

// TestPartitionsComeOneAtATime to a server, whoever has them, so that each is opened as fast as can be; but one that cannot be opened holds up the others for no more than
// a beat.
func TestPartitionsComeOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hosts := []*host{w.start(1, 9), w.start(2, 9), w.start(3, 9)}
		living := map[string]*host{}
		for _, h := range hosts {
			living[h.id] = h
		}
		w.until("it is balanced", func() bool { return w.wrong(living) == "" })
		time.Sleep(DefaultBeat * 3 / 10) // none looks often any more, nor is about to beat: all see at their next one what is to move
		var closing, most atomic.Int32
		for _, h := range hosts {
			h.onClose = func(context.Context, int) error {
				most.Store(max(most.Load(), closing.Add(1)))
				time.Sleep(200 * time.Millisecond)
				return nil
			}
		}
		d := w.host(4)
		var first time.Time // guarded by w.mu
		d.onOpen = func(ctx context.Context, p int) error {
			time.Sleep(200 * time.Millisecond)
			closing.Add(-1)
			w.mu.Lock()
			defer w.mu.Unlock()
			if first.IsZero() {
				first = time.Now()
			}
			return nil
		}
		if err := d.join(9); err != nil {
			t.Fatal(err)
		}
		living[d.id] = d
		w.until("all has moved", func() bool { return w.wrong(living) == "" })
		if n := most.Load(); n != 1 {
			t.Errorf("%d partitions were neither open at the server that had them nor at the next one, want 1", n)
		}
		w.mu.Lock()
		took := time.Since(first)
		w.mu.Unlock()
		if took > time.Second {
			t.Errorf("the second partition was open %v after the first one, want 400ms and a few looks", took)
		}
		for _, h := range hosts {
			h.onClose = nil
		}
		var opened atomic.Int32
		e := w.host(5)
		e.onOpen = func(ctx context.Context, p int) error {
			if opened.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
			return nil
		}
		for _, h := range hosts {
			h.leave()
		}
		w.until("all is at one", d.serves(0, 1, 2, 3, 4, 5, 6, 7, 8))
		if err := e.join(9); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		w.mu.Lock()
		n := len(e.parts)
		w.mu.Unlock()
		if n != 3 {
			t.Errorf("while one of four partitions is being opened %d others are open, want 3", n)
		}
		time.Sleep(time.Minute)
		e.leave()
		d.leave()
	})
}

// TestAPartitionComesToAServerThatCannotBeat, since others change the map again and again before it has: it sees nevertheless at once that it is the owner.
// Eight partitions come, one after the other, since a server that does not look may happen to look in time for one.
func TestAPartitionComesToAServerThatCannotBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const partitions = 16
		a, b := w.start(1, partitions), w.host(2)
		w.until("all is open", func() bool { return w.wrong(map[string]*host{a.id: a}) == "" })
		setLate := func(late bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			b.late = late
		}
		a.onPrepare = func(context.Context, int) error {
			setLate(true)
			time.Sleep(2500 * time.Millisecond) // less than the patience by the longest pause of a server that cannot beat
			return nil
		}
		var closed time.Time // guarded by w.mu
		a.onClose = func(context.Context, int) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			closed = time.Now()
			return nil
		}
		b.onOpen = func(context.Context, int) error {
			w.mu.Lock()
			late := time.Since(closed)
			w.mu.Unlock()
			if late > 20*time.Millisecond {
				t.Errorf("it is opened %v after it was closed, want within 20ms", late)
			}
			setLate(false)
			return nil
		}
		if err := b.join(partitions); err != nil {
			t.Fatal(err)
		}
		w.until("half of them have moved", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		a.onClose = nil
		b.leave()
		a.leave()
	})
}

// TestAServerHandsOverOneAtATime, to whomever: what is prepared for the next move does not slow down this one.
func TestAServerHandsOverOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b, c := w.start(1, 6), w.start(2, 6), w.start(3, 6)
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b, c.id: c}) == "" })
		var handing atomic.Int32
		a.onPrepare = func(_ context.Context, p int) error {
			if n := handing.Add(1); n != 1 {
				t.Errorf("%d partitions are handed over at a time, want 1", n)
			}
			return nil
		}
		a.onClose = func(context.Context, int) error {
			time.Sleep(3 * time.Second)
			handing.Add(-1)
			return nil
		}
		a.leave()
		w.until("the others have all", func() bool { return w.wrong(map[string]*host{b.id: b, c.id: c}) == "" })
		b.leave()
		c.leave()
	})
}

// TestAServerOfAnEarlierVersionGetsPartitions, which does not say what it expects, and gives them back.
func TestAServerOfAnEarlierVersionGetsPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 4)
		w.until("all is open", a.serves(0, 1, 2, 3))
		b := w.host(2)
		b.old = true
		if err := b.join(4); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %v, want a few beats", took)
		}
		b.leave()
		w.until("all is back", a.serves(0, 1, 2, 3))
		a.leave()
	})
}

// TestAMoveThatIsNotWantedAnyMoreEndsBeforeTheClose because the next owner died while the partition was prepared.
func TestAMoveThatIsNotWantedAnyMoreEndsBeforeTheClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		a.onPrepare = func(context.Context, int) error {
			time.Sleep(10 * time.Second)
			return nil
		}
		b := w.start(2, 2)
		w.until("it is prepared", func() bool { return slices.Contains(a.calls(), "prepare 0") })
		b.kill()
		time.Sleep(time.Minute)
		if got := a.calls()[2:]; !slices.Equal(got, []string{"prepare 0"}) {
			t.Errorf("the owner did %v, want prepare 0 alone", got)
		}
		w.mu.Lock()
		for _, m := range a.told {
			if slices.Contains(m.Owner, "") {
				t.Errorf("nobody owned a partition: %+v", m)
			}
		}
		w.mu.Unlock()
		a.leave()
	})
}

// TestTheDeadAreReplacedAtOnceByAllOthers: all partitions of a server that was killed are opened at the same time, within its patience and two beats.
func TestTheDeadAreReplacedAtOnceByAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b, c := w.start(1, 12), w.start(2, 12), w.start(3, 12)
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b, c.id: c}) == "" })
		if c.m.Gone(t.Context(), a.id) {
			t.Error("a server that lives is gone")
		}
		opening, all := 0, make(chan struct{})
		together := func(context.Context, int) error {
			w.mu.Lock()
			if opening++; opening == 4 {
				close(all)
			}
			w.mu.Unlock()
			<-all
			return nil
		}
		b.onOpen, c.onOpen = together, together
		killed := time.Now()
		a.kill()
		w.until("the others have all", func() bool { return w.wrong(map[string]*host{b.id: b, c.id: c}) == "" })
		if took := time.Since(killed); took < 3*time.Second || took > 7*time.Second {
			t.Errorf("it took %v, want the patience of 4s, and about a beat", took)
		}
		if !c.m.Gone(t.Context(), a.id) {
			t.Error("a server that was killed is not gone")
		}
		if c.setCut(true); c.m.Gone(t.Context(), a.id) {
			t.Error("a server is said to be gone by one that cannot reach the register")
		}
		c.setCut(false)
		began := time.Now()
		b.leave()
		if took := time.Since(began); took > DefaultBeat+6*50*time.Millisecond {
			t.Errorf("it takes %v to hand over six partitions that are closed at once, want a few looks for each once the other server has beaten", took)
		}
		c.leave()
	})
}

// TestAllOthersMissADeadServerAtOnce: each of them sees soon that the map has given it what a server had that died, though they beat at different times.
func TestAllOthersMissADeadServerAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 12)
		time.Sleep(300 * time.Millisecond)
		b := w.start(2, 12)
		time.Sleep(300 * time.Millisecond)
		c := w.start(3, 12)
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b, c.id: c}) == "" })
		var first, last time.Time // guarded by w.mu
		opened := 0
		open := func(context.Context, int) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if last = time.Now(); opened == 0 {
				first = last
			}
			opened++
			return nil
		}
		b.onOpen, c.onOpen = open, open
		a.kill()
		w.until("the others have all", func() bool { return w.wrong(map[string]*host{b.id: b, c.id: c}) == "" })
		w.mu.Lock()
		if late := last.Sub(first); opened != 4 || late > 2*watchEvery {
			t.Errorf("of %d partitions that a dead server had the last one is opened %v after the first one, want 4, and at most %v", opened, late, 2*watchEvery)
		}
		w.mu.Unlock()
		b.leave()
		c.leave()
	})
}

// TestWhileTheRegisterIsAwayAllStaysAsItIs, and nobody is taken for dead when it comes back.
func TestWhileTheRegisterIsAwayAllStaysAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.start(1, 4), w.start(2, 4)
		living := map[string]*host{a.id: a, b.id: b}
		w.until("it is balanced", func() bool { return w.wrong(living) == "" })
		before, did := w.now(), len(a.calls())+len(b.calls())
		for range 5 {
			a.setCut(true)
			b.setCut(true)
			time.Sleep(time.Minute + 300*time.Millisecond)
			a.setCut(false)
			b.setCut(false)
			time.Sleep(10 * time.Second)
		}
		if now := w.now(); now.Epoch != before.Epoch || len(a.calls())+len(b.calls()) != did {
			t.Errorf("the map was %+v and is %+v; calls are %v and %v", before, now, a.calls(), b.calls())
		}
		a.leave()
		b.leave()
	})
}

// TestWhoWasTakenOutAliveComesBack: it serves what it has until it reaches the register again. Then it joins again, and closes what others have.
func TestWhoWasTakenOutAliveComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.start(1, 4), w.start(2, 4)
		living := map[string]*host{a.id: a, b.id: b}
		w.until("it is balanced", func() bool { return w.wrong(living) == "" })
		did := len(a.calls())
		var tried atomic.Int32
		b.onOpen = func(context.Context, int) error { // so that the owner is not fenced, but reads that it is none any more
			if tried.Add(1) < 100 {
				return errDown
			}
			return nil
		}
		a.setCut(true)
		w.until("it is taken out", func() bool { return len(w.now().Servers) == 1 })
		time.Sleep(time.Minute)
		if got := a.calls()[did:]; len(got) != 0 {
			t.Errorf("without the register it did %v, want nothing", got)
		}
		a.setCut(false)
		w.until("it is balanced again", func() bool { return w.wrong(living) == "" })
		closed := 0
		for _, call := range a.calls()[did:] {
			if call == "close 2" || call == "close 3" {
				closed++
			}
		}
		if closed != 2 {
			t.Errorf("it did %v, want that it closed 2 and 3", a.calls()[did:])
		}
		a.leave()
		b.leave()
	})
}

// TestWhatIsLostIsOpenedAgain if the map still gives it to this server. If not, it is neither opened nor closed.
func TestWhatIsLostIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		lose := func(p int) {
			w.mu.Lock()
			delete(a.parts, p)
			delete(w.open, p)
			w.mu.Unlock()
			a.m.Lost(p)
		}
		lose(0)
		w.until("it is open again", a.serves(0, 1))
		if got := a.calls()[2:]; !slices.Equal(got, []string{"open 0"}) {
			t.Errorf("it did %v, want open 0", got)
		}
		w.put(func(m *Map) {
			m.Servers = append(m.Servers, Server{ID: id(2), Addr: "a:1"})
			m.Owner[1] = id(2)
		})
		lose(1)
		time.Sleep(2 * time.Second)
		if got := a.calls()[3:]; len(got) != 0 {
			t.Errorf("it did %v with what is another's, want nothing", got)
		}
		a.leave()
	})
}

// TestOpeningEndsWhenThePartitionIsAnothers, and is tried again, after growing pauses, as long as it is not.
func TestOpeningEndsWhenThePartitionIsAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var at []time.Time
		a := w.host(1)
		a.onOpen = func(ctx context.Context, _ int) error {
			w.mu.Lock()
			at = append(at, time.Now())
			more := len(at) < 15
			w.mu.Unlock()
			if more {
				return errDown
			}
			<-ctx.Done()
			return ctx.Err()
		}
		if err := a.join(1); err != nil {
			t.Fatal(err)
		}
		w.until("it was tried 15 times", func() bool { return len(a.calls()) == 15 })
		synctest.Wait()
		w.mu.Lock()
		pauses := []time.Duration{}
		for i := range at[1:] {
			pauses = append(pauses, at[i+1].Sub(at[i]))
		}
		w.mu.Unlock()
		if !slices.IsSorted(pauses) || pauses[0] > 100*time.Millisecond || pauses[13] != 5*time.Second {
			t.Errorf("pauses are %v, want growing ones up to 5s", pauses)
		}
		w.put(func(m *Map) {
			m.Servers = append(m.Servers, Server{ID: id(2), Addr: "a:1"})
			m.Owner[0] = id(2)
		})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		a.m.mu.Lock()
		if len(a.m.parts) != 0 {
			t.Errorf("%d partitions are being opened, want 0", len(a.m.parts))
		}
		a.m.mu.Unlock()
		a.leave()
	})
}

// TestClosingIsBounded: when ctx ends what has not been handed over is closed, and the server leaves the map.
func TestClosingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start(1, 8)
		w.until("all is open", a.serves(0, 1, 2, 3, 4, 5, 6, 7))
		b := w.start(2, 8)
		w.until("half of it has moved", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		a.onPrepare = func(ctx context.Context, _ int) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			return ctx.Err()
		}
		a.onClose = a.onPrepare
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := a.m.Close(ctx); err != nil || time.Since(began) > 6*time.Second || len(a.parts) != 0 {
			t.Errorf("closing says %v after %v, and leaves %v", err, time.Since(began), a.parts)
		}
		if m := w.now(); len(m.Servers) != 1 || slices.ContainsFunc(m.Owner, func(id string) bool { return id != b.id }) {
			t.Errorf("the map is %+v, want that the other server has all", m)
		}
		w.until("the other one has all open", b.serves(0, 1, 2, 3, 4, 5, 6, 7))
		b.leave()
	})
}

// TestNobodyWaitsForARegisterThatIsAwayToLeave longer than for a server that does not beat.
func TestNobodyWaitsForARegisterThatIsAwayToLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.start(1, 4), w.start(2, 4)
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		a.setCut(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began, most := time.Now(), DefaultPatience+2*DefaultBeat
		if err := a.m.Close(ctx); err == nil || time.Since(began) > most {
			t.Errorf("closing says %v after %v, want an error within %v", err, time.Since(began), most)
		}
		w.until("the other one has all", b.serves(0, 1, 2, 3))
		b.leave()
	})
}

// TestARestartedServerKeepsWhatItHad if it is back before the others lose their patience.
func TestARestartedServerKeepsWhatItHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.start(1, 4), w.start(2, 4)
		w.until("it is balanced", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		before := w.now()
		a.kill()
		time.Sleep(2 * time.Second)
		a = w.start(1, 4)
		w.until("all is open", func() bool { return w.wrong(map[string]*host{a.id: a, b.id: b}) == "" })
		time.Sleep(time.Minute)
		if now := w.now(); now.Epoch != before.Epoch {
			t.Errorf("the map was %+v and is %+v", before, now)
		}
		a.leave()
		b.leave()
	})
}

// TestTheLastOnesLeaveTogether: nobody hands over to a server that leaves, too.
func TestTheLastOnesLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hosts := []*host{w.start(1, 6), w.start(2, 6), w.start(3, 6)}
		w.until("it is balanced", func() bool {
			return hosts[0].serves(4, 5)() && moves(w.now()) == 0
		})
		for _, h := range hosts {
			h.onPrepare = func(context.Context, int) error { // until all leave
				time.Sleep(3 * time.Second)
				return nil
			}
		}
		done := make(chan error)
		for _, h := range hosts {
			go func() { done <- h.m.Close(context.Background()) }()
		}
		for range hosts {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if m := w.now(); len(m.Servers) != 0 || len(w.open) != 0 {
			t.Errorf("the map is %+v, open are %s", m, fmt.Sprint(w.open))
		}
	})
}
