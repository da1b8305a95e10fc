package named

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/far/copies"
	"polder/far/record"
	"polder/far/store"
	"polder/holder"
)

// Store is a store.Keeper: copies at places that keep what they lend, and a root in the register of the heap's owner.
type Store struct {
	*copies.Store
	o      *Owner
	tail   []store.Segment // segments of the log of earlier owners, until Begin
	rooted bool            // this Store has kept a root
	poor   atomic.Bool     // the log has no segment left, and gets none since the places are full
}

var (
	_ store.Keeper = (*Store)(nil)
	_ store.Mirror = (*Store)(nil)
)

// Store opens the heap's store over the places of cfg, whose Keep it sets. Close it when the heap has been closed.
func (o *Owner) Store(cfg copies.Config) (*Store, error) {
	cfg.Process = o.proc
	cfg.Keep = &copies.Keep{Epoch: o.epoch, Names: o.first.clone().Moved, Moved: o.moved}
	c, err := copies.Open(cfg)
	if err != nil {
		return nil, err
	}
	o.copies.Store(int64(cfg.Copies))
	return &Store{Store: c, o: o}, nil
}

// moves are the segments whose copies have moved, as far as the manifest says where they lie now, or is to say so.
type moves struct {
	mu      sync.Mutex
	waiting map[uint64]func() string // present names by the numbers of segments, for the next change; guarded by mu
	asked   uint64                   // how often a name was put there; guarded by mu
	done    uint64                   // the value of asked up to which the manifest has the names; guarded by mu
	rooted  chan struct{}            // closed and replaced with each new root; guarded by mu

	roots atomic.Int64     // how many roots there were
	since map[uint64]int64 // for each segment in the manifest, what roots was then; guarded by Owner.changing
	long  atomic.Bool      // the manifest is too long, or soon will be
}

func (m *moves) init() {
	m.waiting, m.since, m.rooted = map[uint64]func() string{}, map[uint64]int64{}, make(chan struct{})
}

// rootsToForget is how many roots after a move the manifest forgets it. The checkpoint of the first of these roots
// may have asked for the segments' names before the move, although it became the root after it. The checkpoint of the
// second has asked for them after the move.
const rootsToForget = 2

// moved makes the manifest say where the copies of a segment lie now. Calls that come while another is waiting share
// one change.
func (o *Owner) moved(ctx context.Context, number uint64, name func() string) error {
	v := &o.moves
	v.mu.Lock()
	v.waiting[number] = name
	v.asked++
	mine := v.asked
	v.mu.Unlock()
	for {
		if err := o.begin(ctx); err != nil {
			return err
		}
		v.mu.Lock()
		done, rooted := v.done >= mine, v.rooted
		v.mu.Unlock()
		var err error
		if !done {
			err = o.flush(ctx)
		}
		o.end()
		if !errors.Is(err, errLong) {
			return err
		}
		switch o.proc.Wait(nil, rooted, o.superseded, ctx.Done()) { // the next root makes the manifest shorter
		case 1:
			return ErrSuperseded
		case 2:
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// mostWithMoves is how long the manifest may become by moves and the log if its root has n bytes: there is always
// room for the longest root.
func mostWithMoves(n int) int { return holder.MaxValue - (record.MaxRoot - n) - 1<<10 }

// flush writes the waiting names into the manifest. o.changing must be held.
func (o *Owner) flush(ctx context.Context) error {
	v := &o.moves
	v.mu.Lock()
	names, upTo := v.waiting, v.asked
	v.waiting = map[uint64]func() string{}
	v.mu.Unlock()
	err := o.change(ctx, mostWithMoves(len(o.m.Root)), func(m *Manifest) error {
		for n, name := range names {
			m.Moved[n] = name()
		}
		for i := range m.Tail {
			if name := names[m.Tail[i].Number]; name != nil {
				m.Tail[i].Name = name()
			}
		}
		return nil
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.long.Store(v.long.Load() || errors.Is(err, errLong))
		for n, name := range names {
			if v.waiting[n] == nil {
				v.waiting[n] = name
			}
		}
		return err
	}
	for n := range names {
		v.since[n] = v.roots.Load()
	}
	v.done = max(v.done, upTo)
	return nil
}

// Root implements store.Keeper.
func (s *Store) Root(context.Context) ([]byte, error) { return s.o.first.Root, nil }

// SetRoot implements store.Keeper. A write to a segment has returned only when all copies have it, so nothing else
// has to be kept first.
func (s *Store) SetRoot(ctx context.Context, root []byte) error {
	o, v := s.o, &s.o.moves
	if len(root) > record.MaxRoot {
		return fmt.Errorf("a root of %d bytes, at most %d are kept", len(root), record.MaxRoot)
	}
	if err := o.begin(ctx); err != nil {
		return fmt.Errorf("cannot keep the root: %w", err)
	}
	defer o.end()
	// An owner's first root refers to the checkpoint of the owner before it. Its second root has a checkpoint of its
	// own, with names of its own.
	n := v.roots.Load()
	if n == 0 || s.rooted { // else an earlier attempt to open the heap has kept the first root
		n++
	}
	var old []uint64
	err := o.change(ctx, holder.MaxValue, func(m *Manifest) error {
		m.Root, old = root, old[:0]
		for number := range m.Moved {
			if n-v.since[number] >= rootsToForget {
				delete(m.Moved, number)
				old = append(old, number)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot keep the root: %w", err)
	}
	s.rooted = true
	v.roots.Store(n)
	for _, number := range old {
		delete(v.since, number)
	}
	v.long.Store(len(o.m.Moved) > 0 && len(o.m.Encode()) > mostWithMoves(len(root))/2)
	v.mu.Lock()
	close(v.rooted)
	v.rooted = make(chan struct{})
	v.mu.Unlock()
	if n == rootsToForget {
		s.Renamed()
	}
	return nil
}

// Prune implements store.Keeper. It reopens the segments of the log first, so these are not given back.
func (s *Store) Prune(ctx context.Context) error {
	for _, t := range s.o.first.Tail {
		seg, err := s.Reopen(ctx, t.Name)
		var lost *store.LostError
		switch {
		case errors.As(err, &lost):
			s.o.cfg.Logger.Error("a segment of the log is lost, and what was in it: all its copies are", "segment", t.Name)
		case err != nil:
			return fmt.Errorf("cannot open the log: %w", err)
		default:
			s.tail = append(s.tail, seg)
		}
	}
	return s.Store.Prune(ctx)
}

// Needs reports whether the log needs one of the segments that the heap keeps for its next checkpoint.
func (s *Store) Needs() bool { return s.poor.Load() }

// Wants implements store.Keeper.
func (s *Store) Wants() bool { return s.o.moves.long.Load() }
