package farlog

import (
	"context"
	"encoding/binary"
	"fmt"

	"polder/far/record"
	"polder/far/store"
)

// ListedSegments reads from d the list of segments that AppendSegments has written for a heap. The bytes may be
// anything.
func ListedSegments(d *record.Decoder, heap uint64) ([]Kept, error) { return readSegments(d, heap) }

// Restore makes what keeper keeps a heap that can be opened, from a checkpoint and from segments of keeper that have
// been written anew. What AppendSegments has written begins at offset at of the checkpoint. For each segment that is
// listed there, segs has the segment that takes its place, in the same order. Nothing counts before Restore has
// returned nil.
func Restore(ctx context.Context, keeper store.Keeper, root *record.Root, checkpoint []byte, at int, segs []store.Segment) error {
	f := new(Log)
	f.Init(keeper, func() {})
	f.heap = root.Heap
	k := &f.keeping
	k.keeper, k.due, k.root = keeper, make(chan struct{}, 1), *root
	b, age, err := renameSegments(checkpoint, at, segs)
	if err != nil {
		return err
	}
	// The parts of the new checkpoint take positions that no segment of the heap has, as those of the old one did.
	f.age.Store(age)
	free, err := f.Commit(ctx, b, segs, 0, 0)
	for _, s := range free { // parts that could not be written to; who opens the heap gives back what is left
		_ = s.Free(ctx)
	}
	return err
}

// renameSegments returns the checkpoint with the names of segs in its list of segments, and the position of the
// segment that was opened last before the checkpoint.
func renameSegments(checkpoint []byte, at int, segs []store.Segment) (b []byte, age uint64, err error) {
	if at > len(checkpoint) {
		return nil, 0, fmt.Errorf("a checkpoint of %d bytes", len(checkpoint))
	}
	d := &record.Decoder{B: checkpoint[at:]}
	version := d.U64()
	age = d.U64()
	if n := d.U32(); d.Err == nil && int(n) != len(segs) {
		return nil, 0, fmt.Errorf("the checkpoint lists %d segments, and there are %d", n, len(segs))
	}
	b = make([]byte, 0, len(checkpoint)+64*len(segs))
	b = append(b, checkpoint[:at]...)
	b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, version), age)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(segs)))
	for _, s := range segs {
		b = append(b, d.Bytes(listEntry-2)...)
		d.Bytes(int(d.U16()))
		name := s.Name()
		b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
	}
	return append(b, d.B...), age, d.Err
}
