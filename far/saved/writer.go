package saved

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Writer writes a snapshot from parts that somebody else makes: a new one, or the rest of one that was begun. It has
// one user.
type Writer struct {
	w     io.Writer
	sum   hash.Hash
	off   int64
	n     int
	heap  uint64
	size  []byte // the body of the first part
	have  map[uint64]uint64
	root  bool
	wrote int64
}

// NewWriter begins a snapshot.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w, sum: sha256.New(), have: map[uint64]uint64{}}
}

// Continue reads what there is of a snapshot, and returns a Writer that goes on behind the last whole part, at
// Offset; or, if the snapshot has its last part, in place of that. What is there may be damaged or cut off. If it is
// of another format, Continue fails.
func Continue(r io.Reader, w io.Writer) (*Writer, error) {
	in, err := NewReader(r)
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		return NewWriter(w), nil // not even the first part is whole
	}
	if err != nil {
		return nil, err
	}
	size := append([]byte(nil), in.body...)
	for err == nil && !in.ended { // after a last part, another checkpoint takes its place
		_, err = in.Next()
	}
	if err != nil && !errors.As(err, &damaged) {
		return nil, err
	}
	return &Writer{w: w, sum: in.sum, off: in.off, n: in.n, heap: in.heap, size: size, have: in.have}, nil
}

// Offset is where the next part goes.
func (w *Writer) Offset() int64 { return w.off }

// Wrote is how many bytes this Writer has written.
func (w *Writer) Wrote() int64 { return w.wrote }

// Have is how many bytes of each segment the snapshot has, by the position of the segment. The map stays the
// writer's.
func (w *Writer) Have() map[uint64]uint64 { return w.have }

// Add checks and writes the parts in b, each of which has to be whole. If the snapshot is continued, its first part
// is there already: Add only checks that the first part in b is of the same heap.
func (w *Writer) Add(b []byte) error {
	for len(b) > 0 {
		p, rest, err := Decode(b)
		if err != nil {
			return fmt.Errorf("what came is no part of a snapshot: %w", err)
		}
		if err := w.add(p, b[:len(b)-len(rest)]); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (w *Writer) add(p Part, raw []byte) error {
	switch {
	case p.Kind == Start && w.n > 0:
		if p.Of != w.heap || string(p.Body) != string(w.size) {
			return ErrAnother
		}
		return nil
	case p.Kind == Start:
		w.heap, w.size = p.Of, append([]byte(nil), p.Body...)
		if err := w.write(AppendMagic(nil)); err != nil {
			return err
		}
	case w.n == 0 || p.Kind == End || p.Kind == Segment && p.Off != w.have[p.Of]:
		return fmt.Errorf("what came is not what follows: kind %d, %d bytes at %d", p.Kind, len(p.Body), p.Off)
	}
	if err := w.write(raw); err != nil {
		return err
	}
	w.n++
	if w.root = p.Kind == Root; p.Kind == Segment {
		w.have[p.Of] += uint64(len(p.Body))
	}
	return nil
}

// ErrAnother says that a snapshot was begun of another heap.
var ErrAnother = errors.New("it is of another heap")

func (w *Writer) write(b []byte) error {
	n, err := w.w.Write(b)
	w.wrote += int64(n)
	if err != nil {
		return err
	}
	w.sum.Write(b)
	w.off += int64(len(b))
	return nil
}

// End writes the last part.
func (w *Writer) End() error {
	if !w.root {
		return errors.New("the snapshot has no root yet")
	}
	return w.write(AppendEnd(nil, w.heap, w.n, w.off, w.sum.Sum(nil)))
}
