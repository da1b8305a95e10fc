package soft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"polder/internal/hostmem"
)

// Config says how much memory a heap may take and from whom.
type Config struct {
	// Budget is how many bytes of soft memory the heap may use while no
	// coordinator tells it otherwise. It is rounded down to segments of 2 MiB
	// and must be from MinBudget to MaxBudget. Default 64 MiB.
	Budget int64

	// Max bounds what a coordinator can grant: it is the address space that is
	// reserved, which costs nothing until it is used. Default: Budget without
	// a coordinator, the machine's memory with one.
	Max int64

	// Coordinator is the path of the coordinator's socket; FindCoordinator
	// finds the usual one. Empty: the heap works alone. If nobody listens
	// there, the heap works alone until somebody does, and the log says so.
	Coordinator string

	// Name is what the coordinator calls this heap in its reports. Default:
	// the program's name.
	Name string

	// Weight is the importance of this heap beside the others, as nice is
	// for processor time. Default 1. A coordinator may ignore it.
	Weight float64

	// Utility, if set, is what the heap reports as its performance (the more,
	// the better) in place of the time spent rebuilding. A coordinator compares it
	// with the seconds of rebuilding that other heaps save in each second: scale it so.
	// It is called about once a second and must not block.
	Utility func() float64

	// Workers, if set, is how many requests the program works on at a time.
	// With it the coordinator can tell what memory does to throughput, not
	// only how much rebuilding it saves.
	Workers int

	// Logger receives what the operator should know. Default: slog.Default.
	Logger *slog.Logger
}

// MinBudget is the least budget of a heap: some segments are open, up to one for each appender, and some must be left
// to evict. Where there are as many appenders as that, the heap seals segments before they are full.
const MinBudget = minSegments * SegmentSize

// MaxBudget is the most memory of a heap: a pointer has no bits for more segments.
const MaxBudget = maxSegments * SegmentSize

const minSegments = 8

// MaxName is how many bytes a heap's name may have.
const MaxName = 64

// Heap is the soft memory of a process. Its methods may be called by any
// number of goroutines. A heap serves many containers, and gives its memory
// to whichever of them uses it most.
type Heap struct {
	*store
	cfg    Config
	log    *slog.Logger
	ghosts ghosts
	curve  sampler
	count  counters

	live []atomic.Uint64 // the account of each segment, a live

	owners owners
	larges larges

	append  []appender // each append uses its processor's
	survive appender   // for what the evacuator saves; under evac.mu
	evac    evacuator

	mu   sync.Mutex // leaf: no other lock is taken under it
	list segmentList

	closing  context.CancelFunc
	closed   atomic.Bool
	done     sync.WaitGroup
	client   *client // nil without a coordinator
	accounts accounts
}

// ErrClosed is what a closed heap answers.
var ErrClosed = errors.New("the heap is closed")

// Open makes a heap. It fails if the configuration is wrong or the address
// space cannot be had; a coordinator that does not answer is no failure.
func Open(cfg Config) (*Heap, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("cannot open a heap: %w", err)
	}
	s, err := newStore(int(cfg.Max/SegmentSize), cfg.Coordinator != "")
	if err != nil {
		return nil, fmt.Errorf("cannot open a heap: %w", err)
	}
	return newHeap(cfg, s), nil
}

// newHeap makes a heap of a complete configuration and its memory.
func newHeap(cfg Config, s *store) *Heap {
	h := &Heap{store: s, cfg: cfg, log: cfg.Logger}
	h.live = make([]atomic.Uint64, s.n)
	h.curve.count = &h.count
	h.list.init(s.n, int(cfg.Budget/SegmentSize))
	h.ghosts.init(int(cfg.Max / 512))
	if cfg.Coordinator != "" { // nobody else asks for the curve
		h.curve.init(cfg.Max)
	}
	h.append = make([]appender, appenders())
	h.larges.init(h)
	for i := range int(cfg.Budget / SegmentSize) {
		s.ctl.Grant(uint32(i))
		h.list.free = append(h.list.free, uint32(i))
	}
	runtime.AddCleanup(h, func(s *store) { _ = s.close() }, s)

	ctx, cancel := context.WithCancel(context.Background())
	h.closing = cancel
	h.evac.init(h)
	if cfg.Coordinator != "" {
		h.client = newClient(h)
		h.done.Go(func() { h.client.run(ctx) })
	}
	h.done.Go(func() { h.evac.run(ctx) })
	return h
}

func (c *Config) complete() error {
	if c.Budget == 0 {
		c.Budget = 64 << 20
	}
	if c.Budget < MinBudget {
		return fmt.Errorf("the budget is %d bytes: want at least %d", c.Budget, int64(MinBudget))
	}
	if c.Budget > MaxBudget {
		return fmt.Errorf("the budget is %d bytes: want at most %d", c.Budget, int64(MaxBudget))
	}
	c.Budget = c.Budget / SegmentSize * SegmentSize
	if c.Max == 0 {
		c.Max = c.Budget
		if c.Coordinator != "" {
			c.Max = max(c.Budget, totalMemory())
		}
	}
	if c.Max < c.Budget {
		return fmt.Errorf("the maximum is %d bytes: want at least the budget, %d", c.Max, c.Budget)
	}
	c.Max = min(c.Max, MaxBudget) / SegmentSize * SegmentSize
	if c.Weight == 0 {
		c.Weight = 1
	}
	if !(c.Weight > 0) || c.Weight > 1e6 {
		return fmt.Errorf("the weight is %v: want more than 0 and at most a million", c.Weight)
	}
	if c.Workers < 0 {
		return fmt.Errorf("the number of workers is %d: want at least 0", c.Workers)
	}
	if c.Name == "" {
		c.Name = programName()
	}
	if len(c.Name) > MaxName {
		return fmt.Errorf("the name is %d bytes long: want at most %d", len(c.Name), MaxName)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// totalMemory returns how much memory there is for this process, in bytes: that
// of the host, or of a control group.
func totalMemory() int64 {
	m, err := hostmem.Host{}.Read()
	if err != nil {
		return 0
	}
	return m.Total
}

func programName() string {
	name := filepath.Base(os.Args[0])
	return name[:min(len(name), 64)]
}

// Close gives the memory back and ends the heap's goroutines. Reads that are
// under way, and all that come later, miss; writes fail with ErrClosed.
// Closing twice is a no-op.
func (h *Heap) Close() error {
	if h.closed.Swap(true) {
		return nil
	}
	h.closing()
	h.done.Wait()
	var errs []error
	for seg := range uint32(h.n) {
		if h.ctl.Revoke(seg) {
			errs = append(errs, h.discard(seg))
		}
	}
	return errors.Join(errs...)
}

// SetBudget changes what a heap without a coordinator may use. To shrink, it
// evicts what is least used, and returns when the memory is given back.
func (h *Heap) SetBudget(bytes int64) error {
	if bytes < MinBudget || bytes > h.cfg.Max {
		return fmt.Errorf("cannot set a budget of %d bytes: want %d to %d", bytes, int64(MinBudget), h.cfg.Max)
	}
	if h.client != nil {
		return errors.New("cannot set a budget: the coordinator does")
	}
	if h.closed.Load() {
		return ErrClosed
	}
	return h.resize(int(bytes / SegmentSize))
}

// Coordinator is the path of the coordinator's socket, as it was configured.
func (h *Heap) Coordinator() string { return h.cfg.Coordinator }

// Budget returns how many bytes the heap may use now.
func (h *Heap) Budget() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return int64(h.list.granted()) * SegmentSize
}

// appenders is how many logs are written at once: enough that processors
// seldom meet, few enough that half-filled segments do not matter.
func appenders() int {
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < 16 {
		n *= 2
	}
	return n
}
