package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"polder/holder"
)

// world is a register and the processes that use it, in the virtual time of a synctest bubble. If rng is set then what they do takes a while, and some of it fails.
type world struct {
	t   *testing.T
	rng *rand.Rand // guarded by mu

	mu      sync.Mutex
	value   []byte              // guarded by mu
	version uint64              // guarded by mu
	open    map[int]*host       // who has a partition open, as package far/named sees it; guarded by mu
	load    func(p int) float64 // how much of a second partition p takes, set before anybody joins; nil if nobody says it
}

func newWorld(t *testing.T) *world { return &world{t: t, open: map[int]*host{}} }

// chance is true n times of a hundred if there are faults.
func (w *world) chance(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng != nil && w.rng.IntN(100) < n
}

// late waits for up to most if there are faults, and reports whether ctx has not ended.
func (w *world) late(ctx context.Context, most time.Duration) bool {
	if w.rng == nil {
		return ctx.Err() == nil
	}
	w.mu.Lock()
	d := time.Millisecond + time.Duration(w.rng.Int64N(int64(most)))
	w.mu.Unlock()
	return sleep(ctx, d)
}

// now is the map in the register.
func (w *world) now() *Map {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, err := Decode(w.value)
	if err != nil {
		w.t.Fatalf("the register has no map: %v", err)
	}
	return m
}

// put replaces the map in the register.
func (w *world) put(f func(m *Map)) {
	m := w.now()
	f(m)
	m.Epoch++
	w.mu.Lock()
	defer w.mu.Unlock()
	w.value, w.version = m.Encode(), w.version+1
}

// until waits until cond holds.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	for range 3 * 60 * 20 {
		if cond() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.t.Fatalf("not within three minutes: %s; the map is %+v", what, w.now())
}

// What a process has of a partition, if anything.
type having int

const (
	serving having = iota + 1
	fenced         // another one has opened it
	lost           // it was closed because of that, and Lost is being called
)

// host is a process. It is a holder.Register, too: its way to the one of the world.
type host struct {
	w     *world
	id    string
	m     *Member
	ready chan struct{} // closed when m is set

	// Guarded by world.mu.
	cut   bool // the register cannot be reached
	deaf  bool // the register can be read only
	late  bool // others are always faster to change the register
	dead  bool
	old   bool // it is of a version that knows nothing of loads; set before it joins
	parts map[int]having
	since map[int]time.Time // when partitions were opened
	log   []string          // what was called
	told  []*Map            // to Changed

	// Called, if they are set, by the functions of the same name; onExpect when open begins, before the partition is this process's.
	onExpect  func(p int)
	onOpen    func(ctx context.Context, p int) error
	onPrepare func(ctx context.Context, p int) error
	onClose   func(ctx context.Context, p int) error
}

var errDown = errors.New("down")

func (w *world) host(n int) *host {
	return &host{w: w, id: id(n), parts: map[int]having{}, since: map[int]time.Time{}, ready: make(chan struct{})}
}

// join has a process join, with a beat of a second and a patience of four.
func (h *host) join(partitions int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg := Config{
		Register: h, ID: h.id, Addr: "10.0.0.1:6379", Partitions: partitions,
		Open: h.open, Prepare: h.prepare, Close: h.close,
		Changed: func(m *Map) {
			h.w.mu.Lock()
			defer h.w.mu.Unlock()
			if n := len(h.told); n > 0 {
				was := h.told[n-1]
				if was.Epoch > m.Epoch || was.Epoch == m.Epoch && (!was.sameOwners(m) || slices.Equal(was.Next, m.Next)) {
					h.w.t.Errorf("Changed is called with %+v after %+v", m, was)
				}
			}
			h.told = append(h.told, m)
		},
	}
	if h.w.load != nil && !h.old {
		cfg.Spent = h.spent
	}
	m, err := Join(ctx, cfg)
	h.m = m
	close(h.ready)
	return err
}

func (w *world) start(n, partitions int) *host {
	w.t.Helper()
	h := w.host(n)
	if err := h.join(partitions); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// leave ends a process as it should be.
func (h *host) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := h.m.Close(ctx); err != nil {
		h.w.t.Errorf("%s cannot leave: %v", h.id, err)
	}
}

// kill ends a process at once.
func (h *host) kill() {
	h.w.mu.Lock()
	h.cut, h.dead = true, true
	for p, owner := range h.w.open {
		if owner == h {
			delete(h.w.open, p)
		}
	}
	h.w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.m.Close(ctx); err == nil {
		h.w.t.Error("a dead process has left the map")
	}
}

func (h *host) setCut(cut bool) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.cut = cut
}

// reach goes to the register, or says why that is not possible.
func (h *host) reach(ctx context.Context) error {
	if !h.w.late(ctx, 40*time.Millisecond) {
		return ctx.Err()
	}
	h.w.mu.Lock()
	cut := h.cut
	h.w.mu.Unlock()
	if cut && h.w.chance(50) {
		<-ctx.Done()
	}
	if cut {
		return errDown
	}
	return nil
}

func (h *host) Read(ctx context.Context) ([]byte, uint64, error) {
	if err := h.reach(ctx); err != nil {
		return nil, 0, err
	}
	h.w.mu.Lock()
	b, version := slices.Clone(h.w.value), h.w.version
	h.w.mu.Unlock()
	if !h.w.late(ctx, 40*time.Millisecond) {
		return nil, 0, ctx.Err()
	}
	return b, version, nil
}

func (h *host) Swap(ctx context.Context, version uint64, value []byte) (uint64, error) {
	if err := h.reach(ctx); err != nil {
		return 0, err
	}
	if h.old {
		m, err := Decode(value)
		if err != nil {
			h.w.t.Errorf("%s writes what is no map: %v", h.id, err)
			return 0, err
		}
		clear(m.Load)
		for i := range m.Servers {
			m.Servers[i].Extra, m.Servers[i].Expects = 0, 0
		}
		value = m.Encode()
	}
	h.w.mu.Lock()
	deaf, late := h.deaf, h.late
	h.w.mu.Unlock()
	switch {
	case deaf:
		return 0, errDown
	case late:
		return 0, holder.ErrChanged
	}
	unheard, never := h.w.chance(10), h.w.chance(50)
	h.w.mu.Lock()
	switch {
	case unheard && never:
	case version != h.w.version:
		h.w.mu.Unlock()
		return 0, holder.ErrChanged
	default:
		h.w.value, h.w.version = slices.Clone(value), version+1
	}
	h.w.mu.Unlock()
	if !h.w.late(ctx, 40*time.Millisecond) || unheard {
		return 0, fmt.Errorf("no answer: %w", holder.ErrUnknown)
	}
	return version + 1, nil
}

func (h *host) Close() error { panic("the register is closed, which is the caller's") }

// did notes that a function was called. w.mu is held.
func (h *host) did(what string, p int) { h.log = append(h.log, fmt.Sprintf("%s %d", what, p)) }

// calls are those of functions so far.
func (h *host) calls() []string {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return slices.Clone(h.log)
}

// spent is how much time went into a partition since it was opened.
func (h *host) spent(p int) time.Duration {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return time.Duration(h.w.load(p) * float64(time.Since(h.since[p])))
}

// has is what the process has of a partition.
func (h *host) has(p int) having {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.parts[p]
}

// comes waits until a partition is this process's, and whoever has it open gives it up, or has not been heard of for a while.
func (h *host) comes(ctx context.Context, p int, mine <-chan struct{}) error {
	select {
	case <-mine:
	case <-ctx.Done():
		return ctx.Err()
	}
	for began := time.Now(); time.Since(began) < DefaultPatience; {
		h.w.mu.Lock()
		other := h.w.open[p]
		lives := other != nil && other != h && !other.dead && !other.cut
		h.w.mu.Unlock()
		if !lives {
			break
		}
		if !sleep(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

func (h *host) open(ctx context.Context, p int, mine <-chan struct{}) error {
	if h.onExpect != nil {
		h.onExpect(p)
	}
	if err := h.comes(ctx, p, mine); err != nil {
		return err
	}
	h.w.mu.Lock()
	if have := h.parts[p]; have == serving || have == fenced {
		h.w.t.Errorf("%s opens partition %d, which it has open", h.id, p)
	}
	h.did("open", p)
	h.w.mu.Unlock()
	if h.onOpen != nil {
		if err := h.onOpen(ctx, p); err != nil {
			return err
		}
	}
	if inTime := h.w.late(ctx, 300*time.Millisecond); !inTime && h.w.chance(50) {
		return ctx.Err()
	}
	if h.w.chance(15) {
		return errDown
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.dead {
		return errDown
	}
	if other := h.w.open[p]; other != nil && other != h && other.parts[p] == serving {
		other.parts[p] = fenced
		go other.superseded(p)
	}
	h.parts[p], h.w.open[p], h.since[p] = serving, h, time.Now()
	return nil
}

// superseded closes a partition, after a while, that another process has opened.
func (h *host) superseded(p int) {
	<-h.ready
	h.w.late(context.Background(), 2*time.Second)
	h.w.mu.Lock()
	is := h.parts[p] == fenced && !h.dead
	if is {
		h.parts[p] = lost
	}
	h.w.mu.Unlock()
	if is {
		h.m.Lost(p)
	}
}

func (h *host) prepare(ctx context.Context, p int) error {
	h.w.mu.Lock()
	if have := h.parts[p]; have == 0 && !h.dead {
		h.w.t.Errorf("%s prepares partition %d, which it does not serve", h.id, p)
	}
	h.did("prepare", p)
	h.w.mu.Unlock()
	if h.onPrepare != nil {
		return h.onPrepare(ctx, p)
	}
	h.w.late(ctx, 500*time.Millisecond)
	return ctx.Err()
}

func (h *host) close(ctx context.Context, p int) error {
	h.w.mu.Lock()
	if h.parts[p] == 0 {
		h.w.t.Errorf("%s closes partition %d, which it does not have open", h.id, p)
	}
	h.did("close", p)
	h.w.mu.Unlock()
	h.w.late(ctx, 100*time.Millisecond)
	h.w.mu.Lock()
	delete(h.parts, p)
	if h.w.open[p] == h {
		delete(h.w.open, p)
	}
	h.w.mu.Unlock()
	switch {
	case h.onClose != nil:
		return h.onClose(ctx, p)
	case h.w.chance(10):
		return errDown
	}
	return nil
}
