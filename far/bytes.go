package far

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"sync"
)

// MaxBytes is the longest byte string that a Bytes holds.
const MaxBytes = 1 << 30

// Bytes is a pointer to a byte string of any size up to MaxBytes, in local or
// far memory. A string that is longer than a piece, at most 64 KiB, is stored in
// pieces, each an object that is fetched and evacuated by itself, and a list of
// them. Strings do not change: Replace puts another one in its place, at once,
// so that whoever reads sees one or the other, whole. A Bytes is a small value, all
// copies of which are the same pointer; the zero Bytes points to nothing.
//
// All methods may be called by any number of goroutines. They take no scope;
// Free must not be called while others use the Bytes.
type Bytes struct{ p Ptr[bytesHead] }

// bytesHead is the object that a Bytes points to. It is of one size, so that
// another one can be written over it.
type bytesHead struct {
	size  uint64 // of the string
	root  uint64 // word of the only piece, or of the list of them
	depth uint32 // of lists above the pieces
	piece uint32 // bytes of every piece but the last
}

// bytesClasses are the classes that the byte strings of a heap have.
type bytesClasses struct {
	heads  *Class[bytesHead]
	pieces *class
}

func (h *Heap) bytesClasses() (*bytesClasses, error) {
	if c := h.strings.Load(); c != nil {
		return c, nil
	}
	h.defaults.mu.Lock()
	defer h.defaults.mu.Unlock()
	if c := h.strings.Load(); c != nil {
		return c, nil
	}
	heads, err := NewClass[bytesHead](h, ClassConfig{Name: "byte strings"})
	if err != nil {
		return nil, err
	}
	pieces, err := h.newClass(ClassConfig{Name: "pieces of byte strings"}, -1)
	if err != nil {
		return nil, err
	}
	c := &bytesClasses{heads, pieces}
	h.strings.Store(c)
	return c, nil
}

// bytesPiece is the size of a piece in bytes.
func (h *Heap) bytesPiece() int { return min(h.maxObject&^7, maxPiece) }

// NewBytes makes a byte string that is a copy of b. It waits for local memory
// within ctx, and so must not be called in a scope.
func NewBytes(ctx context.Context, h *Heap, b []byte) (Bytes, error) {
	c, err := h.bytesClasses()
	if err != nil {
		return Bytes{}, err
	}
	head, err := h.putBytes(ctx, c, b)
	if err != nil {
		return Bytes{}, err
	}
	p, err := c.heads.New(ctx, head)
	if err != nil {
		h.dropBytes(ctx, head)
		return Bytes{}, err
	}
	return Bytes{p}, nil
}

// putBytes stores the pieces of b.
func (h *Heap) putBytes(ctx context.Context, c *bytesClasses, b []byte) (bytesHead, error) {
	head := bytesHead{size: uint64(len(b)), piece: uint32(h.bytesPiece())}
	if len(b) > MaxBytes {
		return head, fmt.Errorf("cannot store a string of %d bytes (at most %d): %w", len(b), MaxBytes, ErrTooLarge)
	}
	if len(b) == 0 {
		return head, nil
	}
	level := make([]uint64, 0, (len(b)-1)/int(head.piece)+1)
	fail := func(err error) (bytesHead, error) {
		for _, n := range level {
			h.free(h.words.at(n))
		}
		return bytesHead{}, err
	}
	for at := 0; at < len(b); at += int(head.piece) {
		n, err := h.putPiece(ctx, c, b[at:min(at+int(head.piece), len(b))])
		if err != nil {
			return fail(err)
		}
		level = append(level, n)
	}
	for len(level) > 1 {
		fan := int(head.piece) / 8
		var above []uint64
		for at := 0; at < len(level); at += fan {
			part := level[at:min(at+fan, len(level))]
			list := make([]byte, 0, 8*len(part))
			for _, n := range part {
				list = binary.LittleEndian.AppendUint64(list, n)
			}
			n, err := h.putPiece(ctx, c, list)
			if err != nil {
				for _, n := range above {
					h.dropList(ctx, n, 1)
				}
				level = level[at:]
				return fail(err)
			}
			above = append(above, n)
		}
		level = above
		head.depth++
	}
	head.root = level[0]
	return head, nil
}

func (h *Heap) putPiece(ctx context.Context, c *bytesClasses, b []byte) (uint64, error) {
	for {
		w, err := h.newObject(c.pieces, nil, len(b), 0, b)
		if err == nil {
			return h.words.number(w), nil
		}
		if err != errNoRoom {
			return 0, err
		}
		if err := h.roomSoon(ctx); err != nil {
			return 0, err
		}
	}
}

// Replace makes the string a copy of b, in one step for whoever reads it. If it
// fails, the string is what it was.
func (s Bytes) Replace(ctx context.Context, b []byte) error {
	h := heapOf(s.p.word())
	if h == nil {
		return ErrClosed
	}
	c, err := h.bytesClasses()
	if err != nil {
		return err
	}
	head, err := h.putBytes(ctx, c, b)
	if err != nil {
		return err
	}
	swapped := false
	var free bytesHead // what nobody reads any more
	err = h.one(ctx, func(sc *Scope) {
		if o := s.p.DerefMut(sc); o != nil {
			part := h.holding(s.p.word())
			part.mu.Lock()
			free = part.retire(*o)
			*o = head
			part.mu.Unlock()
			swapped = true
		}
	})
	if !swapped {
		free = head
	}
	return errOr(err, h.dropBytes(ctx, free))
}

// heldBytes is strings that are being read, in parts by the word of their
// pointer. Nobody waits with mu held.
type heldBytes struct {
	mu sync.Mutex
	by map[uint64]*heldString // by root, under mu
	_  [48]byte
}

type heldString struct {
	readers int
	retired *bytesHead // to be freed by the last reader, if not nil
}

func (h *Heap) holding(p *uint64) *heldBytes {
	return &h.held[h.words.number(p)*0x9e3779b97f4a7c15>>58%fetchParts]
}

// retire returns head if it can be freed at once, and leaves it to the last
// reader if there are some. hb.mu must be held.
func (hb *heldBytes) retire(head bytesHead) bytesHead {
	if hs := hb.by[head.root]; hs != nil && head.root != 0 {
		hs.retired = &head
		return bytesHead{}
	}
	return head
}

// Append appends the string to dst.
func (s Bytes) Append(ctx context.Context, dst []byte) ([]byte, error) {
	start := len(dst)
	for piece, err := range s.Pieces(ctx) {
		if err != nil {
			return dst[:start], err
		}
		dst = append(dst, piece...)
	}
	return dst, nil
}

// Len is the length of the string in bytes.
func (s Bytes) Len(ctx context.Context) (int, error) {
	head, err := s.p.Load(ctx)
	return int(head.size), err
}

// hold returns the head of s, of which nothing is freed until release.
func (s Bytes) hold(ctx context.Context) (head bytesHead, err error) {
	h := heapOf(s.p.word())
	if h == nil {
		return head, ErrClosed
	}
	err = h.one(ctx, func(sc *Scope) {
		if o := s.p.Deref(sc); o != nil {
			part := h.holding(s.p.word())
			part.mu.Lock()
			if head = *o; head.root != 0 {
				hs := part.by[head.root]
				if hs == nil {
					if part.by == nil {
						part.by = map[uint64]*heldString{}
					}
					hs = &heldString{}
					part.by[head.root] = hs
				}
				hs.readers++
			}
			part.mu.Unlock()
		}
	})
	return head, err
}

// release ends what hold began. It frees the string if it has been replaced and
// nobody else reads it.
func (s Bytes) release(h *Heap, head bytesHead) {
	if head.root == 0 {
		return
	}
	part := h.holding(s.p.word())
	part.mu.Lock()
	hs := part.by[head.root]
	hs.readers--
	last := hs.readers == 0
	if last {
		delete(part.by, head.root)
	}
	part.mu.Unlock()
	if last && hs.retired != nil {
		// Whoever reads is not to blame if it cannot be freed: see dropBytes.
		_ = h.dropBytes(context.Background(), *hs.retired)
	}
}

// Pieces iterates over the string, a piece at a time, which is valid during the
// step only. Pieces that are far are fetched some at a time. An error ends it.
// The string is that of the first step, whatever replaces it meanwhile.
func (s Bytes) Pieces(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s.pieces(ctx, 0, yield)
	}
}

// ReadAt reads len(p) bytes of the string from off on, as io.ReaderAt says.
func (s Bytes) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("cannot read at offset %d of a string: negative", off)
	}
	n := 0
	var failed error
	s.pieces(ctx, off, func(b []byte, err error) bool {
		failed = err
		n += copy(p[n:], b)
		return err == nil && n < len(p)
	})
	if failed == nil && n < len(p) {
		failed = io.EOF
	}
	return n, failed
}

// pieces calls yield with the pieces of the string from off on.
func (s Bytes) pieces(ctx context.Context, off int64, yield func([]byte, error) bool) {
	h := heapOf(s.p.word())
	if h == nil {
		yield(nil, ErrClosed)
		return
	}
	head, err := s.hold(ctx)
	if err != nil {
		yield(nil, err)
		return
	}
	defer s.release(h, head)
	if head.root == 0 || off >= int64(head.size) {
		return
	}
	list := []uint64{head.root}
	for range head.depth {
		var below []uint64
		for _, n := range list {
			b, err := h.copyObject(ctx, n, nil)
			if err != nil {
				yield(nil, err)
				return
			}
			for ; len(b) >= 8; b = b[8:] {
				below = append(below, binary.LittleEndian.Uint64(b))
			}
		}
		list = below
	}
	var buf []byte
	first := int(off / int64(head.piece))
	skip := int(off % int64(head.piece))
	for i := first; i < len(list); i++ {
		if (i-first)%ahead == 0 {
			refs := make([]AnyRef, 0, ahead)
			for _, n := range list[i:min(i+ahead, len(list))] {
				refs = append(refs, AnyRef{n})
			}
			// What cannot be fetched now, whoever reads it is told.
			_ = h.Prefetch(ctx, refs, false)
		}
		b, err := h.copyObject(ctx, list[i], buf[:0])
		if err != nil {
			yield(nil, err)
			return
		}
		buf = b
		if skip > len(b) {
			skip = len(b)
		}
		if !yield(b[skip:], nil) {
			return
		}
		skip = 0
	}
}

// copyObject appends the data of the object of word n to dst.
func (h *Heap) copyObject(ctx context.Context, n uint64, dst []byte) ([]byte, error) {
	start := len(dst)
	err := h.one(ctx, func(s *Scope) {
		o, err := h.deref(s, h.words.at(n), 0)
		if err != nil {
			s.fail(err)
			return
		}
		dst = append(dst[:start], o[objectHeader:objectHeader+headLen(o.head())]...)
	})
	return dst, err
}

// Free frees the string and the pointer.
func (s Bytes) Free(ctx context.Context) error {
	h := heapOf(s.p.word())
	if h == nil {
		return ErrClosed
	}
	head, err := s.p.Load(ctx)
	if err != nil {
		return fmt.Errorf("cannot free a string: %w", err)
	}
	part := h.holding(s.p.word())
	part.mu.Lock()
	head = part.retire(head)
	part.mu.Unlock()
	s.p.Free()
	return h.dropBytes(ctx, head)
}

// IsNil reports whether s points to nothing.
func (s Bytes) IsNil() bool { return s.p.IsNil() }

// Ref returns s in a form that may be part of a far object.
func (s Bytes) Ref() BytesRef { return BytesRef{s.p.Ref()} }

// BytesRef is a Bytes that may be part of a far object.
type BytesRef struct{ r Ref[bytesHead] }

// Bytes returns the byte string that r is on its heap.
func (r BytesRef) Bytes(h *Heap) Bytes { return Bytes{r.r.Ptr(h)} }

// dropBytes frees what head refers to. If its list cannot be read, the pieces
// stay until the heap is closed.
func (h *Heap) dropBytes(ctx context.Context, head bytesHead) error {
	if head.root == 0 {
		return nil
	}
	return h.dropList(ctx, head.root, int(head.depth))
}

// dropList frees the list of word n, and what is below it.
func (h *Heap) dropList(ctx context.Context, n uint64, depth int) error {
	var err error
	if depth > 0 {
		var b []byte
		if b, err = h.copyObject(ctx, n, nil); err == nil {
			for ; len(b) >= 8; b = b[8:] {
				err = errOr(err, h.dropList(ctx, binary.LittleEndian.Uint64(b), depth-1))
			}
		}
	}
	h.free(h.words.at(n))
	return err
}
