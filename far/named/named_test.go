package named_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"polder/far"
	"polder/far/copies"
	"polder/far/named"
)

// inVirtualTime runs fn with timers and owners that know only virtual time.
func inVirtualTime(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		defer named.SetClock(func() time.Duration { return time.Since(began) + time.Hour })()
		fn(t)
	})
}

// world is what outlives processes.
type world struct {
	reg         *register
	places      []*place
	checkpoints time.Duration // between two of a heap, 0 for none
}

func newWorld(places int) *world {
	w := &world{reg: new(register)}
	for i := range places {
		w.places = append(w.places, newPlace(fmt.Sprintf("node %d", i)))
	}
	return w
}

// check fails if a place was asked for something that nobody may ask for.
func (w *world) check(t *testing.T) {
	t.Helper()
	for _, p := range w.places {
		p.mu.Lock()
		if p.wrong != nil {
			t.Error(p.wrong)
		}
		p.mu.Unlock()
	}
}

// process has a heap open.
type process struct {
	wire  *wire
	o     *named.Owner
	store *named.Store
	heap  *far.Heap
	m     *far.ByteMap
}

// impatient is the patience of a process that takes the heap away from one that lives.
const impatient = time.Millisecond

// start opens the heap in a new process.
func (w *world) start(t *testing.T, cfg named.Config) *process {
	t.Helper()
	if cfg.Me == "" {
		cfg.Me = "a process"
	}
	to := &wire{register: w.reg}
	o, err := named.Own(t.Context(), to, cfg)
	if cfg.Patience == impatient && err != nil { // it came across a beat
		o, err = named.Own(t.Context(), to, cfg)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &process{wire: to, o: o}
	var places []copies.Place
	for _, pl := range w.places {
		places = append(places, pl.open())
	}
	if p.store, err = o.Store(copies.Config{Places: places}); err != nil {
		t.Fatal(err)
	}
	if p.heap, err = far.Open(t.Context(), p.store, far.Config{Local: far.MinLocal, CheckpointEvery: w.checkpoints}); err != nil {
		t.Fatal(err)
	}
	p.m = p.heap.NewByteMap("test")
	if err := o.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// close ends a process in good order.
func (p *process) close(t *testing.T) {
	t.Helper()
	if err := errors.Join(p.heap.Close(), p.store.Close(), p.o.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// bury ends what is left of a process that was superseded.
func (p *process) bury() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.heap.Close() // it cannot
	_ = p.store.Close()
	_ = p.o.Close(ctx)
}

// manifest returns what the register has.
func (w *world) manifest(t *testing.T) *named.Manifest {
	t.Helper()
	b, _, err := w.reg.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := named.DecodeManifest(b)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// repaired waits until every segment has its copies.
func (p *process) repaired(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.store.Stats().Endangered > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not repaired: %+v", p.store.Stats())
		}
	}
}

// trouble ends that of a place, if bad is one, and when all is repaired has another one lose what it has, or be away.
func (w *world) trouble(t *testing.T, p *process, r *rand.Rand, bad int) int {
	t.Helper()
	if bad >= 0 {
		w.places[bad].setDown(false)
	}
	p.repaired(t)
	bad = r.IntN(len(w.places))
	if r.IntN(2) == 0 {
		w.places[bad].kill()
	} else {
		w.places[bad].setDown(true)
	}
	return bad
}

func key(i int) []byte { return fmt.Appendf(nil, "key %d", i) }

// value is what the n-th change stores.
func value(n int) []byte {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	b := binary.LittleEndian.AppendUint64(nil, uint64(n))
	for range 50 + r.IntN(50) {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

func (p *process) set(t *testing.T, k, n int) {
	t.Helper()
	if err := p.m.Set(t.Context(), key(k), far.Entry{Value: value(n)}); err != nil {
		t.Fatalf("Set(%s): %v", key(k), err)
	}
}

// has checks that the keys from 0 on have been stored by the changes want.
func (p *process) has(t *testing.T, want []int) {
	t.Helper()
	for k, n := range want {
		e, err := p.m.Get(t.Context(), key(k), nil)
		if err != nil || !bytes.Equal(e.Value, value(n)) {
			t.Fatalf("Get(%s): %d bytes, %v, want those of change %d", key(k), len(e.Value), err, n)
		}
	}
}

// fill has n keys be stored by changes of their own.
func (p *process) fill(t *testing.T, n int) (want []int) {
	t.Helper()
	for k := range n {
		p.set(t, k, k)
		want = append(want, k)
	}
	return want
}

const many = 2000 // keys, of which most are far

// TestAHeapComesBackFromNodes after it was closed, and as its last checkpoint has it when its process has just stopped.
func TestAHeapComesBackFromNodes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(3)
		p := w.start(t, named.Config{})
		if !p.o.Fresh() {
			t.Error("a new heap is not fresh")
		}
		want := p.fill(t, many)
		p.close(t)

		began := time.Now()
		p = w.start(t, named.Config{})
		if took := time.Since(began); took > named.DefaultPatience/2 {
			t.Errorf("it took %v to open a heap that was closed", took)
		}
		p.has(t, want)
		if err := p.heap.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		for k := range 20 { // of which the next process knows nothing
			p.set(t, k, many+k)
		}
		next := w.start(t, named.Config{Me: "another process", Patience: impatient})
		next.has(t, want)
		w.check(t)
		p.bury()
		next.has(t, want)
		next.close(t)
	})
}

// TestAHeapIsClosedThoughItsRegisterIsAway: a checkpoint that cannot end holds Close up for as long as it may, and no longer.
func TestAHeapIsClosedThoughItsRegisterIsAway(t *testing.T) {
	for _, within := range []time.Duration{0, 7 * time.Second} {
		t.Run(fmt.Sprint(within), func(t *testing.T) { closeWithoutRegister(t, within) })
	}
}

func closeWithoutRegister(t *testing.T, within time.Duration) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		w.checkpoints = time.Second
		p := w.start(t, named.Config{})
		p.wire.cut.Store(true)
		p.set(t, 0, 0)
		time.Sleep(3 * w.checkpoints) // one is being taken
		closed := make(chan error, 1)
		began := time.Now()
		go func() {
			if within == 0 {
				closed <- p.heap.Close()
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			closed <- p.heap.CloseBy(ctx)
		}()
		select {
		case err := <-closed:
			if err == nil {
				t.Error("a checkpoint was taken that nobody can know of")
			}
			if took, most := time.Since(began), cmp.Or(within, time.Minute)+5*time.Second; took > most {
				t.Errorf("closed after %v, want at most %v", took, most)
			}
		case <-time.After(5 * time.Minute):
			t.Fatal("the heap is not closed within 5 minutes")
		}
		p.bury()
	})
}

// TestWhoWaitsForTheManifestSaysWhatDoesNotAnswer once, and goes on when it answers.
func TestWhoWaitsForTheManifestSaysWhatDoesNotAnswer(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var log strings.Builder
		reg := &silent{new(register), make(chan struct{})}
		got := make(chan *named.Owner, 1)
		go func() {
			o, err := named.Own(t.Context(), reg, named.Config{Me: "next", Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Error(err)
			}
			got <- o
		}()
		time.Sleep(3*named.DefaultPatience + time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "does not answer"); n != 1 || !strings.Contains(log.String(), errDown.Error()) {
			t.Errorf("it was said %d times that the register is %v, want once: %s", n, errDown, log.String())
		}
		close(reg.answers)
		o := <-got
		if n := strings.Count(log.String(), "answers"); n != 1 {
			t.Errorf("it was said %d times that it answers, want once: %s", n, log.String())
		}
		if err := o.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestOneProcessHasTheHeap: another one is refused as long as it lives, and when it does not, takes over.
func TestOneProcessHasTheHeap(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p := w.start(t, named.Config{Me: "10.0.0.1:6379"})
		want := p.fill(t, many)
		if err := p.heap.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		var owned *named.OwnedError
		if _, err := named.Own(t.Context(), w.reg, named.Config{Me: "another one"}); !errors.As(err, &owned) || owned.Owner != "10.0.0.1:6379" {
			t.Fatalf("Own of a heap that is in use: %v", err)
		}
		if !p.o.Shown(time.Second) {
			t.Fatal("the owner may show nothing")
		}
		// It is cut off from the register. It does not know when the other one takes over.
		p.wire.cut.Store(true)
		next := w.start(t, named.Config{Me: "another one"})
		next.has(t, want)
		if p.o.Shown(time.Second) {
			t.Error("an owner shows what it has after another one has taken over")
		}
		if err := p.heap.Checkpoint(t.Context()); err == nil {
			t.Error("an owner that was superseded has taken a checkpoint")
		}
		p.wire.cut.Store(false) // it can ask again
		select {
		case <-p.o.Superseded():
		case <-time.After(time.Minute):
			t.Error("an owner that was superseded is not told")
		}
		if p.o.Shown(time.Second) {
			t.Error("an owner shows what it has although it knows that there is another one")
		}
		p.wire.cut.Store(true) // what it knows it need not ask for again
		for range 16 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := p.o.Note(ctx); !errors.Is(err, named.ErrSuperseded) {
				t.Errorf("an owner that knows that it was superseded has tried for a minute to change the manifest: %v", err)
			}
			cancel()
		}
		p.wire.cut.Store(false)
		if err := p.o.Close(t.Context()); !errors.Is(err, named.ErrSuperseded) {
			t.Errorf("Close of an owner that was superseded: %v", err)
		}
		p.bury()
		next.has(t, want)
		next.close(t)
		w.check(t)
	})
}

// TestAManifestThatHasNotChangedIsNotDecoded by its owner, who asks for it several times a second.
func TestAManifestThatHasNotChangedIsNotDecoded(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		reg := new(countedRegister)
		o, err := named.Own(t.Context(), reg, named.Config{Me: "me", Beat: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		reg.mu.Lock()
		value := reg.value
		reg.value = []byte("no manifest, which nobody finds out while the version is the same")
		reg.mu.Unlock()
		before := reg.reads.Load()
		time.Sleep(10 * time.Second)
		if n := reg.reads.Load() - before; n < 50 || !o.Shown(0) {
			t.Errorf("the manifest was read %d times, and the owner has evidence: %v; want some 80 times, and some", n, o.Shown(0))
		}
		reg.mu.Lock()
		reg.value = value
		reg.mu.Unlock()
		if err := o.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAHeapThatIsGivenUpIsTakenAtOnce by a process that has waited for it for a while: within an eighth of that while. One that waits for long asks seldom.
func TestAHeapThatIsGivenUpIsTakenAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		reg := new(countedRegister)
		first, err := named.Own(t.Context(), reg, named.Config{Me: "first"})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		owned := make(chan *named.Owner)
		go func() {
			o, err := named.Own(t.Context(), reg, named.Config{Me: "next", Standby: true})
			if err != nil {
				t.Error(err)
			}
			owned <- o
		}()
		const gone = 45 * time.Millisecond
		time.Sleep(gone)
		if err := first.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := <-owned
		if late := time.Since(began) - gone; late > gone/8+2*time.Millisecond {
			t.Errorf("it was taken %v after it had been given up, want at most %v", late, gone/8+2*time.Millisecond)
		}
		go func() {
			o, err := named.Own(t.Context(), reg, named.Config{Me: "third", Standby: true})
			if err != nil {
				t.Error(err)
			}
			owned <- o
		}()
		time.Sleep(time.Minute)
		before := reg.reads.Load()
		time.Sleep(time.Minute)
		if n := reg.reads.Load() - before; n > 15*60 {
			t.Errorf("an owner and one that waits for long have read the manifest %d times in a minute, want some 4 and 8 times a second", n)
		}
		if err := next.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := (<-owned).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// countedRegister counts reads.
type countedRegister struct {
	register
	reads atomic.Int64
}

func (r *countedRegister) Read(ctx context.Context) ([]byte, uint64, error) {
	r.reads.Add(1)
	return r.register.Read(ctx)
}

// TestNobodyShowsWhatIsOld: until the last moment at which the one owner shows something, the next one is not ready.
func TestNobodyShowsWhatIsOld(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p := w.start(t, named.Config{Lease: 10 * time.Second, Beat: 100 * time.Second})
		time.Sleep(3 * time.Second) // evidence is renewed
		o, err := named.Own(t.Context(), w.reg, named.Config{Me: "next", Patience: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		p.wire.cut.Store(true)
		ready := make(chan error, 1)
		go func() { ready <- o.Ready(t.Context()) }()
		shown := 0
		for p.o.Shown(0) {
			select {
			case err := <-ready:
				t.Fatalf("another owner is ready (%v) while this one shows what it has", err)
			default:
			}
			shown++
			time.Sleep(10 * time.Millisecond)
		}
		if shown == 0 {
			t.Error("the owner has shown nothing")
		}
		if err := <-ready; err != nil {
			t.Error(err)
		}
		p.wire.cut.Store(false)
		p.bury()
		if err := o.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestWhoGivesAHeapUpLeavesNoLeaseBehind: if an owner gives the heap up soon after it has taken it over, the next one is not
// ready either while the owner that was superseded still shows something.
func TestWhoGivesAHeapUpLeavesNoLeaseBehind(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p := w.start(t, named.Config{Lease: 10 * time.Second, Beat: 100 * time.Second})
		time.Sleep(3 * time.Second) // evidence is renewed
		short, err := named.Own(t.Context(), w.reg, named.Config{Me: "for a short time", Patience: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		p.wire.cut.Store(true)
		ready := make(chan error, 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := short.Close(t.Context()); err != nil {
				t.Error(err)
			}
			o, err := named.Own(t.Context(), w.reg, named.Config{Me: "next"})
			if err != nil {
				t.Error(err)
				return
			}
			ready <- o.Ready(t.Context())
			if err := o.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		shown := 0
		for p.o.Shown(0) {
			select {
			case err := <-ready:
				t.Fatalf("another owner is ready (%v) while one before it shows what it has", err)
			default:
			}
			shown++
			time.Sleep(10 * time.Millisecond)
		}
		if shown == 0 {
			t.Error("the owner has shown nothing")
		}
		if err := <-ready; err != nil {
			t.Error(err)
		}
		wg.Wait() // it closes the heap, in the test's time
		p.wire.cut.Store(false)
		p.bury()
	})
}

// TestTheLongerLeaseCounts: an owner without a lease dies soon after it has taken the heap over, and the next one waits nevertheless for the lease
// of the owner that was superseded. Afterwards there is none to be waited for.
func TestTheLongerLeaseCounts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p := w.start(t, named.Config{Lease: 10 * time.Second, Beat: 100 * time.Second})
		time.Sleep(3 * time.Second) // evidence is renewed
		dies := &wire{register: w.reg}
		second, err := named.Own(t.Context(), dies, named.Config{Me: "second", Fenced: true, Patience: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		p.wire.cut.Store(true)
		dies.cut.Store(true)
		third, err := named.Own(t.Context(), w.reg, named.Config{Me: "third", Fenced: true, Patience: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ready := make(chan error, 1)
		go func() { ready <- third.Ready(t.Context()) }()
		for p.o.Shown(0) {
			select {
			case err := <-ready:
				t.Fatalf("another owner is ready (%v) while one before it shows what it has", err)
			default:
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := <-ready; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * named.DefaultBeat)
		b, _, _ := w.reg.Read(t.Context())
		if m, err := named.DecodeManifest(b); err != nil || m.Lease != 0 {
			t.Errorf("the manifest has a lease of %v, %v, want none: the owner uses none, and that of the one before is over", m.Lease, err)
		}
		p.bury()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = second.Close(ended)
		if err := third.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCopiesThatHaveMovedAreFound by the next process, although no checkpoint has been taken since.
func TestCopiesThatHaveMovedAreFound(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(3)
		p := w.start(t, named.Config{})
		want := p.fill(t, many)
		if err := p.heap.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{0, 1} { // each segment loses both of the copies that the checkpoint knows
			w.places[i].kill()
			p.repaired(t)
		}
		next := w.start(t, named.Config{Me: "next", Patience: impatient})
		next.has(t, want)
		w.check(t)
		p.bury()
		next.close(t)
	})
}

// TestCopiesThatHaveMovedAreFoundAtTheSecondTry to open a heap, of which the first one has kept the root again.
func TestCopiesThatHaveMovedAreFoundAtTheSecondTry(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(3)
		p := w.start(t, named.Config{})
		p.fill(t, 10)
		const moved = 7
		if err := p.o.Moved(t.Context(), moved, func() string { return "segment 7 at node 0/1" }); err != nil {
			t.Fatal(err)
		}
		o, err := named.Own(t.Context(), w.reg, named.Config{Me: "next", Patience: impatient})
		if err != nil {
			t.Fatal(err)
		}
		p.bury()
		for try := range 3 {
			st, err := o.Store(copies.Config{Places: []copies.Place{w.places[0].open(), w.places[1].open()}})
			if err != nil {
				t.Fatal(err)
			}
			root, err := st.Root(t.Context())
			if err == nil {
				err = st.SetRoot(t.Context(), root)
			}
			if err = errors.Join(err, st.Close()); err != nil {
				t.Fatal(err)
			}
			b, _, _ := w.reg.Read(t.Context())
			if m, err := named.DecodeManifest(b); err != nil || m.Moved[moved] == "" {
				t.Fatalf("after try %d to open the heap the manifest does not know any more where a copy has moved: %v, %v", try, m, err)
			}
		}
		if err := o.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestAManifestThatGetsLongWaitsForACheckpoint, which the heap then takes by itself.
func TestAManifestThatGetsLongWaitsForACheckpoint(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(2)
		p := w.start(t, named.Config{})
		want := p.fill(t, 100)
		r := rand.New(rand.NewPCG(1, 2))
		done := make(chan error)
		go func() {
			for n := range uint64(200) {
				name := fmt.Sprintf("segment %d at ", n+1)
				for range 50 {
					name += fmt.Sprint(r.Uint64())
				}
				if err := p.o.Moved(t.Context(), n+1, func() string { return name }); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		p.has(t, want)
		p.close(t)
	})
}

// TestFaultsOfAllKinds: places die and are cut off, the register loses answers, processes are superseded or closed; each
// process finds what the last checkpoint has, or what was there after some later change.
func TestFaultsOfAllKinds(t *testing.T) {
	seeds := 3
	if os.Getenv("TEST_SOAK") != "" {
		seeds = 1000
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) { faults(t, uint64(seed)) })
		})
	}
}

func faults(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(3, seed))
	w := newWorld(4)
	w.reg.r = rand.New(rand.NewPCG(4, seed))
	const keys = 500
	p := w.start(t, named.Config{})
	var log []int // the key of each change
	safe := 0     // how many changes the last checkpoint has
	bad := -1     // the place that has trouble
	for range 60 {
		switch r.IntN(10) {
		default:
			for range 20 + r.IntN(150) {
				k := r.IntN(keys)
				p.set(t, k, len(log))
				log = append(log, k)
			}
		case 5:
			if err := p.heap.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			safe = len(log)
		case 6, 7: // one place at a time has trouble
			bad = w.trouble(t, p, r, bad)
			time.Sleep(time.Duration(r.Int64N(int64(8 * time.Second))))
		case 8, 9:
			if r.IntN(2) == 0 {
				p.close(t)
				safe = len(log)
				p = w.start(t, named.Config{})
			} else {
				old := p
				p = w.start(t, named.Config{Patience: impatient})
				old.bury()
			}
			log = found(t, p, log, safe, keys)
			safe = len(log) // opening it again without a checkpoint finds the same
			if err := p.heap.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.check(t)
	p.close(t)
}

// found returns those changes of log that p has, of which it must have the first ones, at least so many as are safe.
func found(t *testing.T, p *process, log []int, safe, keys int) []int {
	t.Helper()
	last := -1
	for k := range keys {
		e, err := p.m.Get(t.Context(), key(k), nil)
		if err != nil && !errors.Is(err, far.ErrNotFound) {
			t.Fatalf("Get(%s): %v", key(k), err)
		}
		if err == nil {
			last = max(last, int(binary.LittleEndian.Uint64(e.Value)))
		}
	}
	if last+1 < safe {
		t.Fatalf("the last change that is there is %d, want %d at least", last, safe-1)
	}
	log = log[:last+1]
	want := make([]int, keys)
	for k := range want {
		want[k] = -1
	}
	for n, k := range log {
		want[k] = n
	}
	for k, n := range want {
		e, err := p.m.Get(t.Context(), key(k), nil)
		switch {
		case n < 0 && !errors.Is(err, far.ErrNotFound):
			t.Fatalf("Get(%s): %v, want that it is not there, after %d changes", key(k), err, len(log))
		case n >= 0 && (err != nil || !bytes.Equal(e.Value, value(n))):
			t.Fatalf("Get(%s): %d bytes, %v, want those of change %d of %d", key(k), len(e.Value), err, n, len(log))
		}
	}
	return log
}

// TestConfigurationsThatAreRefused says what is wrong.
func TestConfigurationsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		cfg  named.Config
		want string
	}{
		{named.Config{}, "Config.Me is empty"},
		{named.Config{Me: "x", Lease: time.Hour}, "a lease of 1h0m0s"},
		{named.Config{Me: "x", Beat: -1}, "want times above 0"},
	} {
		if _, err := named.Own(t.Context(), new(register), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Own(%+v): %v, want %q", c.cfg, err, c.want)
		}
	}
	if _, err := named.Own(t.Context(), &register{value: []byte("something else, of somebody"), version: 3}, named.Config{Me: "x"}); err == nil {
		t.Error("a register that has something else was taken for a manifest")
	}
}
