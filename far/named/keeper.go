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
	tail   []store.Segment // segments of an earlier owner's log; read by OpenLog, dropped by Begin
	rooted bool            // SetRoot has succeeded in this Store
	poor   atomic.Bool     // the log has no segment left, and gets none because the places are full
}

var (
	_ store.Keeper = (*Store)(nil)
	_ store.Mirror = (*Store)(nil)
)

// Store opens the heap's store over the places of cfg; it sets cfg.Keep. Close it when the heap has been closed.
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

// moves are copies that have moved, and whose new places the manifest is to have.
type moves struct {
	mu      sync.Mutex
	waiting map[uint64]func() string // names that the manifest does not have yet, by segment number; guarded by mu
	asked   uint64                   // how many moves were put there; guarded by mu
	done    uint64                   // up to which of them the manifest has; guarded by mu
	rooted  chan struct{}            // closed and replaced with each new root; guarded by mu

	roots atomic.Int64     // how many roots this owner has kept
	since map[uint64]int64 // for each segment in Moved, what roots was then; guarded by Owner.changing
	long  atomic.Bool      // the manifest is too long, or soon will be
}

func (m *moves) init() {
	m.waiting, m.since, m.rooted = map[uint64]func() string{}, map[uint64]int64{}, make(chan struct{})
}

// rootsToForget is after how many roots Manifest.Moved can forget a segment. A checkpoint that is under way when a
// copy moves may have collected the old name before, and keep its root afterwards; the next checkpoint collects the
// new name.
const rootsToForget = 2

// moved writes into the manifest where the copies of a segment lie now. Calls that come while another one waits share
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

// mostWithMoves is how long moves may make the manifest if its root has n bytes, so that there is always room for the
// longest root.
func mostWithMoves(n int) int { return holder.MaxValue - (record.MaxRoot - n) - 1<<10 }

// flush writes all waiting moves into the manifest. o.changing must be held.
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

// SetRoot implements store.Keeper. Everything that was written to segments is in all their copies by then, so there
// is nothing else to wait for.
func (s *Store) SetRoot(ctx context.Context, root []byte) error {
	o, v := s.o, &s.o.moves
	if len(root) > record.MaxRoot {
		return fmt.Errorf("a root of %d bytes, at most %d are kept", len(root), record.MaxRoot)
	}
	if err := o.begin(ctx); err != nil {
		return fmt.Errorf("cannot keep the root: %w", err)
	}
	defer o.end()
	// The first root that an owner keeps still has the previous owner's names; the second one has names of its own.
	n := v.roots.Load()
	if n == 0 || s.rooted { // otherwise an earlier try to open the heap has kept the first root already
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

// Prune implements store.Keeper. It does not give back the log's segments.
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

// Needs reports whether the log has no segment left and can get none because the store is full: the heap then has to
// make room.
func (s *Store) Needs() bool { return s.poor.Load() }

// Wants implements store.Keeper.
func (s *Store) Wants() bool { return s.o.moves.long.Load() }
