package saved

import (
	"context"
	"errors"
	"fmt"
	"io"

	"polder/far/farlog"
	"polder/far/record"
)

// Snapshot is what a heap was at one moment, to be read while the heap goes on. It is a checkpoint that is pinned:
// what the checkpoint refers to is not given back meanwhile, unless far memory is full; then Next fails with
// ErrOvertaken. It has one user.
//
// Why a pin, rather than a copy that notices when something is gone: a heap that changes cleans its segments all the
// time, and without a pin the same would be copied in vain again and again. Why the pin breaks when far memory is
// full: a server must not refuse writes because somebody copies its heap. Whoever copies it then begins again with a
// newer checkpoint, and keeps all that they have of segments: segments do not change.
type Snapshot struct {
	pin   *farlog.Pinned
	heap  uint64
	size  int // of a segment
	have  map[uint64]uint64
	list  []farlog.Kept
	at    int // index in list of the segment to be read
	off   int // where to go on in that segment
	left  int64
	rest  *farlog.Stretches
	sent  uint64 // bytes of the checkpoint that Next has returned
	state progress
	mem   []byte
	buf   []byte
}

type progress uint8

const (
	atStart progress = iota
	inSegments
	inCheckpoint
	atEnd
)

// ErrOvertaken says that far memory was full, and that memory which the snapshot needs was given to those who write.
// A newer snapshot can be taken.
var ErrOvertaken = farlog.ErrPinBroken

// readBytes is how many bytes of a segment are read at a time, or more if a record is longer.
const readBytes = 256 << 10

// NewSnapshot returns a snapshot of the pinned checkpoint of a heap with segments of size bytes. Have says how many
// bytes of each segment, by its position, the reader has already from an earlier snapshot of the heap; the snapshot
// leaves these out. Close ends the pin, and so does NewSnapshot if it fails.
func NewSnapshot(ctx context.Context, pin *farlog.Pinned, size int, have map[uint64]uint64) (*Snapshot, error) {
	s := &Snapshot{pin: pin, heap: pin.Root.Heap, size: size, have: have, mem: make([]byte, min(readBytes, size))}
	if err := s.begin(ctx); err != nil {
		pin.Unpin()
		return nil, fmt.Errorf("cannot read the checkpoint: %w", err)
	}
	return s, nil
}

// listAt is where in a checkpoint the list of segments begins, behind what package far puts in front of it.
const listAt = 4 + 4 + 8 + 8

// begin reads the list of segments.
func (s *Snapshot) begin(ctx context.Context) (err error) {
	var b []byte
	in := s.pin.Checkpoint()
	for tried := 0; ; {
		more, err := in.Next(ctx)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		b = append(b, more...)
		if whole := errors.Is(err, io.EOF); whole || len(b) >= 2*tried {
			d := &record.Decoder{B: b}
			d.Bytes(listAt)
			s.list, err = s.pin.Segments(d)
			if whole && err != nil {
				return err
			}
			if err == nil {
				break
			}
			tried = len(b)
		}
	}
	for i := range s.list {
		s.left += int64(s.list[i].Written) - int64(s.begun(&s.list[i]))
	}
	s.left += int64(s.pin.Root.Length)
	return nil
}

// begun is how many bytes of a segment are left out, since the reader has them.
func (s *Snapshot) begun(k *farlog.Kept) int { return int(min(s.have[k.Position], uint64(k.Written))) }

// Heap is the number of the heap. No other heap has the same number, except those that were loaded from a snapshot of
// it.
func (s *Snapshot) Heap() uint64 { return s.heap }

// Left is how many bytes of segments and of the checkpoint are yet to come.
func (s *Snapshot) Left() int64 { return s.left }

// Next returns the next part of the snapshot, encoded as the package's page says. It is valid until Next is called
// again. Behind the root, Next returns io.EOF.
func (s *Snapshot) Next(ctx context.Context) (b []byte, err error) {
	switch s.state {
	case atStart:
		s.buf = AppendStart(s.buf[:0], s.heap, s.size)
		s.state = inSegments
		return s.buf, nil
	case inSegments:
		for ; s.at < len(s.list); s.at++ {
			k := &s.list[s.at]
			if s.off = max(s.off, s.begun(k)); s.off < k.Written {
				return s.nextOf(ctx, k)
			}
			s.off = 0
		}
		s.rest, s.state = s.pin.Checkpoint(), inCheckpoint
		fallthrough
	case inCheckpoint:
		b, err := s.rest.Next(ctx)
		if err == nil {
			s.buf = Append(s.buf[:0], Part{Kind: Checkpoint, Of: s.number(), Off: s.sent, Body: b})
			s.sent += uint64(len(b))
			s.left -= int64(len(b))
			return s.buf, nil
		}
		if !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("cannot read the checkpoint: %w", err)
		}
		root := s.pin.Root
		root.Parts = nil
		s.buf = Append(s.buf[:0], Part{Kind: Root, Of: s.number(), Body: root.Encode()})
		s.state = atEnd
		return s.buf, nil
	}
	return nil, io.EOF
}

// nextOf returns the next part of a segment.
func (s *Snapshot) nextOf(ctx context.Context, k *farlog.Kept) (b []byte, err error) {
	b, s.mem, err = s.pin.ReadRecords(ctx, k, s.off, s.mem)
	if err != nil {
		return nil, err
	}
	s.buf = Append(s.buf[:0], Part{Kind: Segment, Of: k.Position, Off: uint64(s.off), Body: b})
	s.off += len(b)
	s.left -= int64(len(b))
	return s.buf, nil
}

// number is the number of the checkpoint.
func (s *Snapshot) number() uint64 { return checkpointNumber(&s.pin.Root) }

// Held is how many bytes of memory of this process the snapshot takes.
func (s *Snapshot) Held() int { return len(s.mem) + cap(s.buf) + 64*len(s.list) + 32*len(s.have) }

// Close ends the snapshot. Closing twice is a no-op.
func (s *Snapshot) Close() { s.pin.Unpin() }
