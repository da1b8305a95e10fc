package saved

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"polder/far/farlog"
	"polder/far/record"
	"polder/far/store"
)

// checkpointNumber is what a snapshot calls the checkpoint of a root.
func checkpointNumber(r *record.Root) uint64 { return binary.LittleEndian.Uint64(r.Sum[:]) }

// Contents is what a snapshot has.
type Contents struct {
	Heap        uint64 // number of the heap
	SegmentSize int
	Segments    int   // that the checkpoint needs
	Bytes       int64 // of those segments
	Checkpoint  int64 // bytes of the checkpoint
	Size        int64 // bytes of the snapshot

	needed map[uint64]bool // positions of the segments
}

// Check reads all of a snapshot and checks it. Damage is a *DamagedError.
func Check(ctx context.Context, r io.Reader) (*Contents, error) {
	c := &Contents{needed: map[uint64]bool{}}
	n, err := readSnapshot(ctx, r, func(int) error { return nil }, func(Part) error { return nil })
	if err != nil {
		return nil, err
	}
	for _, k := range n.list {
		c.needed[k.Position] = true
		c.Bytes += int64(k.Written)
	}
	c.Heap, c.SegmentSize, c.Segments, c.Checkpoint, c.Size = n.root.Heap, n.size, len(n.list), int64(len(n.checkpoint)), n.bytes
	return c, nil
}

// readings is what was read of a snapshot, without the segments.
type readings struct {
	root       *record.Root
	checkpoint []byte
	list       []farlog.Kept
	size       int
	bytes      int64
}

// readSnapshot reads a snapshot. It calls start with the size of segments, and segment with each part of a segment.
// It checks everything else itself.
func readSnapshot(ctx context.Context, r io.Reader, start func(size int) error, segment func(p Part) error) (*readings, error) {
	in, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	n := &readings{size: in.SegmentSize()}
	if err := start(n.size); err != nil {
		return nil, err
	}
	number := uint64(0)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		at, part := in.Offset(), in.Parts()+1
		p, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch p.Kind {
		case Segment:
			err = segment(p)
		case Checkpoint:
			if p.Off == 0 {
				n.checkpoint = n.checkpoint[:0]
			}
			n.checkpoint, number = append(n.checkpoint, p.Body...), p.Of
		case Root:
			if n.root, err = record.DecodeRoot(p.Body); err == nil {
				err = n.check(in, number)
			}
			if err != nil {
				err = &DamagedError{Off: at, Part: part, Err: err}
			}
		}
		if err != nil {
			return nil, err
		}
	}
	n.bytes = in.Offset()
	return n, nil
}

// check checks a root that was read, and the checkpoint and the segments that it needs.
func (n *readings) check(in *Reader, number uint64) error {
	switch r := n.root; {
	case r.Heap != in.Heap() || checkpointNumber(r) != number || len(r.Parts) > 0:
		return errors.New("it is the root of something else")
	case r.Length != uint64(len(n.checkpoint)) || r.Sum != sha256.Sum256(n.checkpoint):
		return fmt.Errorf("the %d bytes of its checkpoint are not those that were written", len(n.checkpoint))
	}
	d := &record.Decoder{B: n.checkpoint}
	d.Bytes(listAt)
	list, err := farlog.ListedSegments(d, n.root.Heap)
	if err != nil {
		return err
	}
	for _, k := range list {
		if has := in.Have()[k.Position]; has < uint64(k.Written) {
			return fmt.Errorf("of segment %d there are %d bytes, want %d", k.ID, has, k.Written)
		}
	}
	n.list = list
	return nil
}

// ErrKept says that the store keeps a heap already.
var ErrKept = errors.New("there is a heap already")

// Restore makes st keep the heap of a snapshot, so that far.Open finds it; st must keep no heap yet. If needed, which
// is what Check has returned for the same snapshot, is not nil, Restore writes only the segments that the checkpoint
// needs. If Restore fails, st keeps nothing, unless the error is that of st.SetRoot; what was written is given back
// if that is possible.
func Restore(ctx context.Context, st store.Keeper, r io.Reader, needed *Contents) (err error) {
	if root, err := st.Root(ctx); err != nil || root != nil {
		return cmp.Or(err, ErrKept)
	}
	segs := restoring{st: st, all: map[uint64]*restored{}, spare: map[store.Segment]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, segs.free(context.WithoutCancel(ctx)))
		}
	}()
	n, err := readSnapshot(ctx, r, func(size int) error {
		if size != st.SegmentSize() {
			return &SegmentSizeError{size, st.SegmentSize()}
		}
		return nil
	}, func(p Part) error {
		if needed != nil && !needed.needed[p.Of] {
			return nil
		}
		return segs.write(ctx, p)
	})
	if err != nil {
		return err
	}
	var list []store.Segment
	for _, k := range n.list {
		s := segs.all[k.Position]
		if s == nil {
			if k.Written > 0 {
				return fmt.Errorf("the snapshot is another one than before: segment %d is missing", k.ID)
			}
			if s, err = segs.add(ctx, k.Position); err != nil {
				return err
			}
		}
		list = append(list, s.Segment)
		delete(segs.all, k.Position)
	}
	if err := segs.free(ctx); err != nil { // what no checkpoint needs
		return err
	}
	return farlog.Restore(ctx, st, n.root, n.checkpoint, listAt, list)
}

// SegmentSizeError says that a heap with segments of one size cannot lie in segments of another: a reference to an
// object says in which segment the object is, and where in the segment.
type SegmentSizeError struct{ Want, Has int }

func (e *SegmentSizeError) Error() string {
	return fmt.Sprintf("its segments are of %d bytes, and far memory lends such of %d", e.Want, e.Has)
}

// restoring is the segments that are being written anew.
type restoring struct {
	st    store.Keeper
	all   map[uint64]*restored   // by their position
	spare map[store.Segment]bool // segments that take no more, and that were copied to others
}

type restored struct {
	store.Segment
	n int // how many bytes were written
}

func (r *restoring) add(ctx context.Context, position uint64) (*restored, error) {
	ctx, cancel := context.WithTimeout(ctx, store.Timeout)
	defer cancel()
	seg, err := r.st.Alloc(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot borrow far memory: %w", err)
	}
	s := &restored{Segment: seg}
	r.all[position] = s
	return s, nil
}

// mostTries is how many segments are tried, one after the other, for the same bytes.
const mostTries = 4

// write writes a part of a segment.
func (r *restoring) write(ctx context.Context, p Part) (err error) {
	s := r.all[p.Of]
	if s == nil {
		if s, err = r.add(ctx, p.Of); err != nil {
			return err
		}
	}
	for try := 1; ; try++ {
		if err = writeWithin(ctx, s, p.Body); err == nil {
			s.n += len(p.Body)
			return nil
		}
		if !errors.Is(err, store.ErrSealed) || try == mostTries {
			return fmt.Errorf("cannot write to %s: %w", s.Name(), err)
		}
		if s, err = r.move(ctx, p.Of, s); err != nil {
			return err
		}
	}
}

// move copies what was written to from, which takes no more since one of its copies was late, to another segment.
func (r *restoring) move(ctx context.Context, position uint64, from *restored) (*restored, error) {
	ops := []store.ReadOp{{Seg: from.Segment, Buf: make([]byte, from.n), Bulk: true}}
	if from.n > 0 {
		r.st.Read(ctx, ops)
	}
	r.spare[from.Segment] = true
	delete(r.all, position)
	if ops[0].Err != nil {
		return nil, ops[0].Err
	}
	for try := 1; ; try++ {
		to, err := r.add(ctx, position)
		if err != nil || from.n == 0 {
			return to, err
		}
		if err = writeWithin(ctx, to, ops[0].Buf); err == nil {
			to.n = from.n
			return to, nil
		}
		if !errors.Is(err, store.ErrSealed) || try == mostTries {
			return nil, fmt.Errorf("cannot write to %s: %w", to.Name(), err)
		}
		r.spare[to.Segment] = true
	}
}

func writeWithin(ctx context.Context, s *restored, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, store.Timeout)
	defer cancel()
	return s.Write(ctx, b, s.n)
}

// free gives all segments back.
func (r *restoring) free(ctx context.Context) error {
	var errs []error
	give := func(s store.Segment) {
		ctx, cancel := context.WithTimeout(ctx, store.Timeout)
		defer cancel()
		errs = append(errs, s.Free(ctx))
	}
	for _, s := range r.all {
		give(s)
	}
	for s := range r.spare {
		give(s)
	}
	clear(r.all)
	clear(r.spare)
	return errors.Join(errs...)
}
