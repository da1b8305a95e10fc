package far

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"polder/far/bytemap"
	"polder/far/heap"
	"polder/far/record"
	"polder/far/saved"
	"polder/far/store"
	"polder/internal/arena"
)

// A checkpoint is what the maps of a heap are at one moment: what tables know, where leaves are, and those
// entries that have no far copy yet. It is taken with the locks of all shards held, and so is whole; since it is
// of what is in local memory, its size depends on the budget and not on what is far. It is
//
//	what bytemap.Maps.Freeze says
//	u32 length of the program's own state, and that
//	what objects.Space.Freeze says, if there are objects that outlive the process
//
// Objects change under no lock of the heap's. So the evacuator does nothing while a checkpoint with objects is taken; and who writes
// to them has to be held off by the program.

// Open opens the heap that store has kept, with its maps as they were at its last checkpoint, or makes
// a new one if there is none: [Heap.NewByteMap] and [NewMap] give the map back that had the name, and [NewClass], [NewArray] and [NewVector] the
// class, with all its objects, and the array or vector, where their configurations say Keep. [Class.Named] gives pointers back by name; [Ref]s in objects
// stay what they are. Other pointers and structures are no part of a checkpoint. Local may be another budget than before, unless it is so much smaller that
// large values were stored in longer pieces.
//
// A checkpoint has maps as they are at one moment. The bytes of objects the heap cannot hold still: a program that writes to objects that are kept
// holds that off in what it gives to [Heap.KeepState], or takes no other checkpoints than its own, with [Heap.Checkpoint] and Close.
//
// The heap takes a checkpoint when it is closed, when [Heap.Checkpoint] is called, every so often if
// [Config.CheckpointEvery] says so, and when what it would give back is needed.
func Open(ctx context.Context, store store.Keeper, cfg Config) (*Heap, error) {
	lay, err := layoutFor(store, &cfg)
	if err != nil {
		return nil, err
	}
	return open(ctx, store, cfg, lay)
}

func open(ctx context.Context, store store.Keeper, cfg Config, lay layout) (*Heap, error) {
	h, err := prepare(store, cfg, lay)
	if err != nil {
		return nil, err
	}
	if err := h.load(ctx, store); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the heap: %w", err), h.abandon())
	}
	h.checkpointed.Store(time.Now().UnixNano())
	h.start()
	h.core.Wg.Go(h.checkpoints)
	return h, nil
}

// abandon gives back what a heap has that was not started.
func (h *Heap) abandon() error {
	unregister(h)
	return errors.Join(h.maps.Close(), h.objects.Close(), h.core.Unmap())
}

// load makes the heap what store has kept.
func (h *Heap) load(ctx context.Context, store store.Keeper) error {
	root, b, err := h.core.Far.OpenKeeper(ctx, store)
	if err != nil {
		return err
	}
	if root == nil {
		h.core.Far.SetSecrets(h.maps.NewSecrets())
		if err := h.core.Far.Reopened(ctx); err != nil {
			return err
		}
		return h.core.FirstReserve(ctx)
	}
	h.maps.SetSecrets(root.Seed, root.Key)
	if len(b) > 0 {
		d := &record.Decoder{B: b}
		if err := h.decode(ctx, d); err != nil {
			return fmt.Errorf("its checkpoint: %w", err)
		}
		if len(d.B) > 0 {
			return fmt.Errorf("its checkpoint: %d bytes follow it", len(d.B))
		}
	}
	if err := h.core.Far.Reopened(ctx); err != nil {
		return err
	}
	return h.core.FirstReserve(ctx)
}

// decode takes a checkpoint from d.
func (h *Heap) decode(ctx context.Context, d *record.Decoder) error {
	if err := h.maps.Load(ctx, d); err != nil {
		return err
	}
	h.state = append([]byte(nil), d.Bytes(int(d.U32()))...)
	if d.Err != nil || len(d.B) == 0 {
		return d.Err
	}
	if err := h.objects.Load(ctx, d); err != nil {
		return fmt.Errorf("objects: %w", err)
	}
	return nil
}

// Kept reports whether the heap was made by Open, and so outlives its process.
func (h *Heap) Kept() bool { return h.core.Far.Keeps() }

// State is what the program that has closed the heap has had kept with its last checkpoint, see KeepState.
func (h *Heap) State() []byte { return h.state }

// State is what a program keeps with a checkpoint beside maps.
type State struct {
	Bytes []byte
	Thaw  func()          // called as soon as maps may change again; nil if there is nothing to do
	Kept  func(err error) // called when the checkpoint counts, or err says why it does not; nil if there is nothing to do
}

// KeepState has each checkpoint keep what state returns, which is called right before: what is in maps, and in objects that are kept, has to agree
// with it until Thaw is called. It may wait for locks that are held by those who write: so a write that finds the store full waits for no
// checkpoint from then on, and fails at once: see AwaitRoom.
func (h *Heap) KeepState(state func() State) {
	h.checkpoint <- struct{}{}
	defer func() { <-h.checkpoint }()
	h.stateOf = state
	h.core.Blocks.Store(true)
}

// AwaitRoom waits, if the store is full, for the room that cleaning and a checkpoint make, and reports whether there is some: then a write that has
// failed with ErrStoreFull may be tried again. The caller has no locks that KeepState's function waits for.
func (h *Heap) AwaitRoom(ctx context.Context) bool { return h.core.AwaitRoom(ctx) == nil }

// LastCheckpoint is when the last checkpoint was taken, or the heap was opened.
func (h *Heap) LastCheckpoint() time.Time { return time.Unix(0, h.checkpointed.Load()) }

// CheckpointError is why the last checkpoint that was due could not be taken, nil if it was.
func (h *Heap) CheckpointError() error {
	if err := h.checkpointErr.Load(); err != nil {
		return *err
	}
	return nil
}

// Checkpoint has the heap be, when it is opened again, as it is at some moment while Checkpoint runs. A transaction
// that has not ended by then has changed nothing. It takes memory for as long, about two thirds of what indexes have
// and what was written last; and calls on maps are held up while that is copied. One runs at a time: others wait for it, until their ctx ends.
func (h *Heap) Checkpoint(ctx context.Context) error {
	if !h.core.Far.Keeps() {
		return errors.New("cannot take a checkpoint: the heap's store keeps nothing: see far.Open")
	}
	select {
	case h.checkpoint <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("cannot take a checkpoint: another one has not ended: %w", context.Cause(ctx))
	}
	defer func() { <-h.checkpoint }()
	changes := h.maps.Changes() // or more
	size, began, objects := int64(0), time.Now(), h.objects.Keeps()
	for {
		need, err := size, h.core.WriteBack(ctx, objects)
		switch {
		case err == nil:
			need, err = h.tryCheckpoint(ctx, size)
		case !errors.Is(err, store.ErrSealed): // else it goes on in another segment
			return fmt.Errorf("cannot take a checkpoint: cannot write back what is local: %w", err)
		}
		if err == nil {
			h.checkpointed.Store(time.Now().UnixNano())
			h.checkpointAt.Store(changes)
			return nil
		}
		scarce := errors.Is(err, errNoMemory) && time.Since(began) < heap.StoreTimeout // the evacuator makes some
		if scarce && errors.Is(err, ErrMetadataFull) {
			smaller, _ := h.maps.Halve(ctx) // or ctx has ended, or the heap, which is seen below
			scarce = smaller || h.core.Dirty() > h.Local()/dirtyShare
		}
		if err != bytemap.ErrBusy && err != bytemap.ErrGrown && !errors.Is(err, store.ErrSealed) && !scarce {
			return err
		}
		if size = need; !errors.Is(err, store.ErrSealed) {
			// What has changed is in the checkpoint, if there is memory: written back once more, as much could have changed by the end of that.
			objects = scarce && h.objects.Keeps()
		}
		h.maps.Settle()
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("cannot take a checkpoint: %w: %w", err, context.Cause(ctx))
		case <-h.core.Ctx.Done():
			return heap.ErrClosed
		}
	}
}

const (
	dirtyShare      = 32          // the part of the budget that may have no far copy when a checkpoint is taken, if there is little memory for it
	memoryWait      = time.Second // how long one try of a checkpoint waits for memory, if it has objects
	leastCheckpoint = 64 << 10    // room for what every checkpoint has
)

var errNoMemory = errors.New("no memory for a checkpoint")

// tryCheckpoint is one try, with at least so many bytes of memory. It returns how many it should have been.
func (h *Heap) tryCheckpoint(ctx context.Context, size int64) (int64, error) {
	_, _, least, err := h.maps.Freeze(nil, leastCheckpoint)
	if err != bytemap.ErrGrown {
		return 0, err
	}
	objects := h.objects.Keeps()
	if objects {
		least += h.core.Logs.Of(heap.Words)
	}
	more := size > least // than it takes now
	size = max(size, least) * 9 / 8
	size = (size + int64(arena.PageSize)) &^ int64(arena.PageSize-1)
	wait := heap.HoldFor
	if objects {
		wait = memoryWait
	}
	err = h.core.GrowIndex(heap.Checkpoint, size, wait)
	if err != nil && !objects && !errors.Is(err, ErrMetadataFull) && (more || h.core.Dirty() > h.Local()/dirtyShare) {
		return 0, bytemap.ErrGrown // which becomes less when it is written back
	} else if err != nil {
		return 0, fmt.Errorf("%w of %d bytes: %w", errNoMemory, size, err)
	}
	defer h.core.Logs.ShrinkIndex(heap.Checkpoint, size)
	mem, err := arena.Anonymous(int(size), false)
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	h.core.Far.Hold()
	state := h.stateOf()
	b, segs, need, err := h.freeze(ctx, mem.Bytes(), state.Bytes)
	if state.Thaw != nil {
		state.Thaw()
	}
	if err != nil {
		h.core.Far.Unhold()
	} else {
		err = h.core.Commit(ctx, b, segs)
	}
	if state.Kept != nil {
		state.Kept(err)
	}
	return need, err
}

// freeze puts a checkpoint into mem. If that is too small it fails with bytemap.ErrGrown, and says how much it has to be.
func (h *Heap) freeze(ctx context.Context, mem, state []byte) (b []byte, segs []store.Segment, need int64, err error) {
	keeps := h.objects.Keeps()
	if keeps {
		resume, err := h.core.Pause(ctx)
		if err != nil {
			return nil, nil, 0, err
		}
		defer resume()
	}
	if b, segs, need, err = h.maps.Freeze(mem, len(state)); err != nil {
		return nil, nil, need, err
	}
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(state))), state...)
	if !keeps {
		return b, segs, 0, nil
	}
	used := int64(len(b))
	if b, need = h.objects.Freeze(b); need > 0 { // behind maps, who say what lives in far memory: see there
		return nil, nil, used + need, bytemap.ErrGrown
	}
	return b, segs, 0, nil
}

// checkpointTick is how often is looked whether a checkpoint is due.
const checkpointTick = 100 * time.Millisecond

// checkpoints takes checkpoints when they are due. If one fails, it is tried again after as long as between two.
func (h *Heap) checkpoints() {
	tick := time.NewTicker(checkpointTick)
	defer tick.Stop()
	pause, next := time.Second, time.Now()
	for {
		select {
		case <-h.core.Ctx.Done():
			return
		case <-tick.C:
		case <-h.core.Far.Due():
		}
		now := time.Now()
		last := time.Unix(0, h.checkpointed.Load())
		changed := h.objects.Keeps() || h.maps.Changes() != h.checkpointAt.Load() // of objects nobody is told
		due := h.every > 0 && now.Sub(last) >= h.every && changed || h.core.Far.Starved()
		if !due || now.Before(next) {
			continue
		}
		if err := h.Checkpoint(h.core.Ctx); err != nil {
			h.checkpointErr.Store(&err)
			pause = min(2*pause, 30*time.Second)
			next = time.Now().Add(pause)
			continue
		}
		h.checkpointErr.Store(nil)
		pause = time.Second
	}
}

// LackingError says that a snapshot would lack something.
type LackingError struct{ Entries int } // of maps, or objects

func (e *LackingError) Error() string {
	return fmt.Sprintf("at least %d entries or objects were lost with a node, and a copy would lack them", e.Entries)
}

// Lacking is a *LackingError if entries of the heap are lost, and nobody has set or deleted them since, or objects were at the last checkpoint.
func (h *Heap) Lacking() error {
	st := h.Stats()
	n := st.Uncounted + h.objects.Lacks()
	for _, m := range st.Maps {
		n += m.LostNow
	}
	if n > 0 {
		return &LackingError{n}
	}
	return nil
}

// Snapshot takes a checkpoint and pins it, to be copied to a file: see package saved, which also makes a heap of such a
// file. Of segments, whose positions are the keys of have, it leaves out so many bytes, which whoever reads has by an earlier
// snapshot of the heap. Close it.
func (h *Heap) Snapshot(ctx context.Context, have map[uint64]uint64) (*saved.Snapshot, error) {
	if err := h.Checkpoint(ctx); err != nil {
		return nil, err
	}
	if err := h.Lacking(); err != nil {
		return nil, err
	}
	pin := h.core.Far.Pin() // of this checkpoint, or of one that is younger still
	if pin == nil {
		return nil, errors.New("BUG: a checkpoint was taken, and there is none")
	}
	return saved.NewSnapshot(ctx, pin, h.core.Far.SegSize, have)
}
