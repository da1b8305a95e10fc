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

// A checkpoint is the state of a heap's maps at one moment: what the tables know, where the leaves are, and the
// entries that have no far copy yet. It is taken with the locks of all shards held, and so is consistent. It holds
// only what is in local memory, so its size depends on the budget and not on how much is far. It consists of
//
//	what bytemap.Maps.Freeze writes
//	u32 length of the program's own state, and the state
//	what objects.Space.Freeze writes, if there are objects that outlive the process
//
// Objects change under no lock of the heap's. So the evacuator pauses while a checkpoint with objects is taken, and
// the program has to hold off its own writes to the objects.

// Open opens the heap that store has kept, as it was at its last checkpoint, or makes a new heap if there is none.
// [Heap.NewByteMap] and [NewMap] give back the map that had the name. [NewClass] gives back a class with all its
// objects, and [NewArray] and [NewVector] give back an array or a vector, if their configurations say Keep.
// [Class.Named] gives back pointers by name, and [Ref]s in objects stay valid. Other pointers and structures are not
// part of a checkpoint. Config.Local may be another budget than before, unless it is so much smaller that large
// values were stored in longer pieces than it allows.
//
// A checkpoint has all maps as they are at one moment. The heap cannot keep the program from writing to objects
// meanwhile. So a program that writes to objects that are kept has to hold its writes off in the function that it
// gives to [Heap.KeepState]; or it lets no checkpoints be taken but its own, by [Heap.Checkpoint] and Close.
//
// The heap takes a checkpoint when it is closed, when [Heap.Checkpoint] is called, at intervals if
// [Config.CheckpointEvery] says so, and when far memory that waits for a checkpoint to be given back is needed or has
// become a large part of all.
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

// abandon gives back the resources of a heap that was not started.
func (h *Heap) abandon() error {
	unregister(h)
	return errors.Join(h.maps.Close(), h.objects.Close(), h.core.Unmap())
}

// load brings the heap to the state that store has kept.
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

// decode loads a checkpoint from d.
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

// State returns the program's own state in the checkpoint that the heap was opened with: see KeepState.
func (h *Heap) State() []byte { return h.state }

// State is what a program has kept with a checkpoint beside maps and objects.
type State struct {
	Bytes []byte
	Thaw  func()          // called as soon as maps and objects may change again; may be nil
	Kept  func(err error) // called when the checkpoint counts, or with why it does not; may be nil
}

// KeepState makes every checkpoint keep the State that state returns. The heap calls state right before it takes a
// checkpoint; from then until it calls Thaw, the maps, and the objects that are kept, must agree with State.Bytes.
// state may wait for locks that writers hold. Therefore, from now on, a write that finds the store full does not wait
// for a checkpoint, but fails at once: see AwaitRoom.
func (h *Heap) KeepState(state func() State) {
	select {
	case h.checkpoint <- struct{}{}:
	case <-h.core.Ctx.Done():
		return // there is no other checkpoint
	}
	defer func() { <-h.checkpoint }()
	h.stateOf = state
	h.core.Blocks.Store(true)
}

// Replays says whether the program is replaying a journal of its own, from before the heap was opened. Meanwhile no
// write is refused because the next checkpoint would not fit.
func (h *Heap) Replays(on bool) { h.core.Replays(on) }

// AwaitRoom waits, if the store is full, until cleaning and a checkpoint may have made room, and reports whether they
// have: then a write that failed with ErrStoreFull may be tried again. The caller must not hold locks for which the
// function given to KeepState waits.
func (h *Heap) AwaitRoom(ctx context.Context) bool { return h.core.AwaitRoom(ctx) == nil }

// LastCheckpoint is when the last checkpoint was taken; if there was none since, when the heap was opened.
func (h *Heap) LastCheckpoint() time.Time { return time.Unix(0, h.checkpointed.Load()) }

// CheckpointError is why the last checkpoint that the heap took by itself failed; nil if it succeeded.
func (h *Heap) CheckpointError() error {
	if err := h.checkpointErr.Load(); err != nil {
		return *err
	}
	return nil
}

// Checkpoint takes a checkpoint: when the heap is opened again, it will be as it is at some moment while Checkpoint
// runs. A transaction that has not ended by that moment has changed nothing. Checkpoint takes memory while it runs,
// about two thirds of what indexes take and of what was written last, and entries go far if there is no other memory
// for it; calls on maps are held up while that is copied. One checkpoint runs at a time: other calls wait for it, until
// their ctx ends. Close waits for calls of Checkpoint, as long as it may, and those that come later end with ErrClosed.
func (h *Heap) Checkpoint(ctx context.Context) error {
	if !h.core.Far.Keeps() {
		return errors.New("cannot take a checkpoint: the heap's store keeps nothing: see far.Open")
	}
	select {
	case h.checkpoint <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("cannot take a checkpoint: another one has not ended: %w", context.Cause(ctx))
	case <-h.core.Ctx.Done():
		return heap.ErrClosed
	}
	defer func() { <-h.checkpoint }()
	changes := h.maps.Changes() // the checkpoint may have more
	size, began, objects := int64(0), time.Now(), h.objects.Keeps()
	held, tight := int64(0), false // memory that entries have made room for, and that the checkpoint takes
	defer func() { h.core.Logs.ShrinkIndex(heap.Checkpoint, held) }()
	for {
		need, err := size, h.core.WriteBack(ctx, objects)
		switch {
		case err == nil || errors.Is(err, ErrStoreFull): // what could not be written is a part of the checkpoint
			unwritten := err
			need, err = h.tryCheckpoint(ctx, size, held, tight)
			if unwritten != nil && err == bytemap.ErrGrown && time.Since(began) >= heap.StoreTimeout {
				return fmt.Errorf("cannot take a checkpoint: cannot write back what is local: %w", unwritten)
			}
		case !errors.Is(err, store.ErrSealed): // if it is ErrSealed, writing back goes on in another segment
			return fmt.Errorf("cannot take a checkpoint: cannot write back what is local: %w", err)
		}
		if err == nil {
			h.checkpointed.Store(time.Now().UnixNano())
			h.checkpointAt.Store(changes)
			if h.core.InVain() { // the index may have the room that is lacking
				h.maps.CleanLeaves()
			}
			return nil
		}
		scarce := errors.Is(err, errNoMemory) && time.Since(began) < heap.StoreTimeout // the evacuator makes some
		if scarce && errors.Is(err, ErrMetadataFull) {
			smaller, _ := h.maps.Halve(ctx) // it fails if ctx or the heap has ended; the select below sees that
			if !smaller {                   // the words of local entries do not go far before these entries
				if n := h.core.Logs.IndexRoom(); n > 0 && h.core.GrowIndex(heap.Checkpoint, n, memoryWait) == nil {
					held += n
					smaller, _ = h.maps.Halve(ctx)
				}
			}
			scarce = smaller || !tight || h.core.Dirty() > h.Local()/dirtyShare
			tight = true
		}
		if err != bytemap.ErrBusy && err != bytemap.ErrGrown && !errors.Is(err, store.ErrSealed) && !scarce {
			return err
		}
		if size = need; !errors.Is(err, store.ErrSealed) {
			// Objects that have changed since are in the checkpoint, if there is memory for them. To write them back
			// once more would not help: as many could have changed by the end of that.
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
	// dirtyShare: when memory is too short for a checkpoint, it is tried again after writing back if more than a
	// dirtyShare-th of the budget has no far copy.
	dirtyShare      = 32
	memoryWait      = time.Second // how long one try of a checkpoint waits for memory, if the checkpoint has objects
	leastCheckpoint = 64 << 10    // room for what every checkpoint has
)

var errNoMemory = errors.New("no memory for a checkpoint")

// tryCheckpoint tries once to take a checkpoint, with at least size bytes of memory, of which the caller holds some, and
// some to spare unless memory is tight. If that was too little, it fails with bytemap.ErrGrown and returns how much it
// needs, or 0 if it does not know.
func (h *Heap) tryCheckpoint(ctx context.Context, size, held int64, tight bool) (int64, error) {
	_, _, least, err := h.maps.Freeze(nil, leastCheckpoint)
	if err != bytemap.ErrGrown {
		return 0, err
	}
	objects := h.objects.Keeps()
	if objects {
		least += h.core.Logs.Of(heap.Words)
	}
	more := size > least // the last try needed more than a checkpoint takes now
	if size = max(size, least); !tight {
		size += size / 8
	}
	size = (size + int64(arena.PageSize)) &^ int64(arena.PageSize-1)
	wait := heap.HoldFor
	if objects {
		wait = memoryWait
	}
	extra := max(0, size-held)
	err = h.core.GrowIndex(heap.Checkpoint, extra, wait)
	if err != nil && !objects && !errors.Is(err, ErrMetadataFull) && (more || h.core.Dirty() > h.Local()/dirtyShare) {
		return 0, bytemap.ErrGrown // the next try writes back first, and then needs less
	} else if err != nil {
		return 0, fmt.Errorf("%w of %d bytes: %w", errNoMemory, size, err)
	}
	defer h.core.Logs.ShrinkIndex(heap.Checkpoint, extra)
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

// freeze writes a checkpoint to mem. If mem is too small, it fails with bytemap.ErrGrown and returns how much is
// needed.
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
	if b, need = h.objects.Freeze(b); need > 0 { // after the maps, whose part says what lives in far memory
		return nil, nil, used + need, bytemap.ErrGrown
	}
	return b, segs, 0, nil
}

// checkpointTick is how often the heap looks whether a checkpoint is due.
const checkpointTick = 100 * time.Millisecond

// checkpoints takes checkpoints when they are due. After a failure it waits 2 s before the next try, and twice as
// long after each further failure, up to 30 s.
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
		changed := h.objects.Keeps() || h.maps.Changes() != h.checkpointAt.Load() // nobody counts changes of objects
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

// LackingError says that a snapshot would lack entries or objects that were lost.
type LackingError struct{ Entries int } // how many entries and objects, at least

func (e *LackingError) Error() string {
	return fmt.Sprintf("at least %d entries or objects were lost with a node, and a copy would lack them", e.Entries)
}

// Lacking returns a *LackingError if entries of maps are lost that nobody has set or deleted since, or if objects
// were lost when the last checkpoint was taken. Otherwise it returns nil.
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

// Snapshot takes a checkpoint and pins it, to be copied to a file: see package saved, which also makes a heap from
// such a file. have says, by the position of a segment, how many bytes of it the reader has from an earlier snapshot
// of the heap; the snapshot leaves these out. The caller has to close the snapshot.
func (h *Heap) Snapshot(ctx context.Context, have map[uint64]uint64) (*saved.Snapshot, error) {
	if err := h.Checkpoint(ctx); err != nil {
		return nil, err
	}
	if err := h.Lacking(); err != nil {
		return nil, err
	}
	pin := h.core.Far.Pin() // pins this checkpoint, or one that was taken since
	if pin == nil {
		return nil, errors.New("BUG: a checkpoint was taken, and there is none")
	}
	return saved.NewSnapshot(ctx, pin, h.core.Far.SegSize, have)
}
