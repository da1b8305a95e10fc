package far

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
)

// MaxBytes is the longest byte string that a Bytes holds.
const MaxBytes = 1 << 30

const (
	maxPiece    = 64 << 10 // most bytes of a piece
	piecesAhead = 16       // pieces that are fetched in one batch
)

// Bytes is a pointer to a byte string of any size up to MaxBytes, in local or far memory. A string that is longer
// than a piece, at most 64 KiB, is stored in pieces, each an object that is fetched and evacuated by itself. The
// words of the pieces lie in a row; each takes 8 bytes of local memory, and a row takes a multiple of 512 bytes. A
// string never changes. Replace puts another string in its place in one step, so that a reader sees the whole old
// string or the whole new one. A Bytes is a small value, all copies of which are the same pointer; the zero Bytes
// points to nothing.
//
// All methods may be called by any number of goroutines. They take no scope; Free must not be called while others use
// the Bytes.
type Bytes struct{ p Ptr[bytesHead] }

// bytesHead is the object that a Bytes points to. All heads have one size, so that Replace can overwrite a head with
// another.
type bytesHead struct {
	size  uint64 // of the string
	first uint64 // number of the word of the first piece; those of the others follow it; 0 if there are no pieces
	piece uint64 // bytes of each piece but the last
}

// pieces returns how many pieces the string has.
func (b bytesHead) pieces() int {
	if b.first == 0 {
		return 0
	}
	return int((b.size + b.piece - 1) / b.piece)
}

// bytesClasses are the classes of the objects that make up the byte strings of a heap.
type bytesClasses struct {
	heads  *Class[bytesHead]
	pieces *objects.Class
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
	pieces, err := h.objects.NewClass(objects.Config{Name: "pieces of byte strings"}, -1)
	if err != nil {
		return nil, err
	}
	c := &bytesClasses{heads, pieces}
	h.strings.Store(c)
	return c, nil
}

// bytesPiece is the size of a piece in bytes.
func (h *Heap) bytesPiece() int { return min(h.objects.MaxObject()&^7, maxPiece) }

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
		h.dropBytes(head)
		return Bytes{}, err
	}
	return Bytes{p}, nil
}

// putBytes stores the pieces of b, and returns a head that refers to them. If it fails, it has freed what it stored.
func (h *Heap) putBytes(ctx context.Context, c *bytesClasses, b []byte) (head bytesHead, err error) {
	if len(b) > MaxBytes {
		return head, fmt.Errorf("cannot store a string of %d bytes (at most %d): %w", len(b), MaxBytes, ErrTooLarge)
	}
	head = bytesHead{size: uint64(len(b)), piece: uint64(h.bytesPiece())}
	if len(b) == 0 {
		return head, nil
	}
	if len(b) <= int(head.piece) {
		err := h.untilRoom(ctx, func() error {
			w, err := h.objects.New(c.pieces, nil, len(b), 0, b)
			if err == nil {
				head.first = h.objects.Number(w)
			}
			return err
		})
		return head, err
	}
	err = h.untilRoom(ctx, func() error {
		n := (len(b)-1)/int(head.piece) + 1
		words, err := h.objects.Run(c.pieces, n) // zero until they are filled
		if err == nil {
			head.first = h.objects.Number(&words[0])
		}
		return err
	})
	for n := head.first; err == nil && len(b) > 0; n++ {
		part := b[:min(int(head.piece), len(b))]
		b = b[len(part):]
		err = h.untilRoom(ctx, func() error { return h.objects.Fill(ctx, n, c.pieces, part) })
	}
	if err != nil {
		h.dropBytes(head)
		return bytesHead{}, err
	}
	return head, nil
}

// untilRoom calls fn. Each time fn fails with heap.ErrNoRoom, it waits for room in local memory and calls fn again.
func (h *Heap) untilRoom(ctx context.Context, fn func() error) error {
	for {
		if err := fn(); err != heap.ErrNoRoom {
			return err
		}
		if err := h.core.RoomSoon(ctx); err != nil {
			return err
		}
	}
}

// Replace makes the string a copy of b. For readers it is one step. If it fails, the string is what it was.
func (s Bytes) Replace(ctx context.Context, b []byte) error {
	h := heapOf(s.p.word())
	if h == nil {
		return heap.ErrClosed
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
	var free bytesHead // the head whose pieces nobody reads any more
	err = h.core.One(ctx, func(sc *heap.Scope) {
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
	h.dropBytes(free)
	return err
}

const heldParts = 64

// heldBytes is one of the heldParts parts of the table of strings that are being read. The word of a string's Bytes
// decides which part has the string. Nobody waits with mu held.
type heldBytes struct {
	mu sync.Mutex
	by map[uint64]*heldString // by bytesHead.first, under mu
	_  [48]byte
}

type heldString struct {
	readers int
	retired *bytesHead // if not nil, the last reader frees its pieces
}

func (h *Heap) holding(p *uint64) *heldBytes {
	return &h.held[h.objects.Number(p)*0x9e3779b97f4a7c15>>58%heldParts]
}

// retire returns head if nobody reads the string, so that the caller can free its pieces at once. Otherwise it leaves
// freeing them to the last reader, and returns an empty head. hb.mu must be held.
func (hb *heldBytes) retire(head bytesHead) bytesHead {
	if hs := hb.by[head.first]; hs != nil && head.first != 0 {
		hs.retired = &head
		return bytesHead{}
	}
	return head
}

// Append appends the string to dst.
func (s Bytes) Append(ctx context.Context, dst []byte) ([]byte, error) {
	start := len(dst)
	var failed error
	s.pieces(ctx, 0, func(piece []byte, err error) bool {
		dst, failed = append(dst, piece...), err
		return err == nil
	})
	if failed != nil {
		return dst[:start], failed
	}
	return dst, nil
}

// Len is the length of the string in bytes.
func (s Bytes) Len(ctx context.Context) (int, error) {
	head, err := s.p.Load(ctx)
	return int(head.size), err
}

// hold returns the head of s. The pieces that the head refers to are not freed until release is called.
func (s Bytes) hold(ctx context.Context) (head bytesHead, err error) {
	h := heapOf(s.p.word())
	if h == nil {
		return head, heap.ErrClosed
	}
	err = h.core.One(ctx, func(sc *heap.Scope) {
		if o := s.p.Deref(sc); o != nil {
			part := h.holding(s.p.word())
			part.mu.Lock()
			if head = *o; head.first != 0 {
				hs := part.by[head.first]
				if hs == nil {
					if part.by == nil {
						part.by = map[uint64]*heldString{}
					}
					hs = &heldString{}
					part.by[head.first] = hs
				}
				hs.readers++
			}
			part.mu.Unlock()
		}
	})
	return head, err
}

// release ends what hold began. If the string has been replaced or freed meanwhile and nobody else reads it, release
// frees its pieces.
func (s Bytes) release(h *Heap, head bytesHead) {
	if head.first == 0 {
		return
	}
	part := h.holding(s.p.word())
	part.mu.Lock()
	hs := part.by[head.first]
	hs.readers--
	last := hs.readers == 0
	if last {
		delete(part.by, head.first)
	}
	part.mu.Unlock()
	if last && hs.retired != nil {
		h.dropBytes(*hs.retired)
	}
}

// ReadAt reads len(p) bytes of the string from offset off on, with the results of an io.ReaderAt.
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

// pieces calls yield with the bytes of each piece of the string from offset off on, which are valid during the call.
// It fetches pieces that are far in batches of piecesAhead. An error is passed to yield, and ends the iteration. The
// pieces are all of the string that s had when pieces was called, even if it is replaced meanwhile.
func (s Bytes) pieces(ctx context.Context, off int64, yield func([]byte, error) bool) {
	h := heapOf(s.p.word())
	if h == nil {
		yield(nil, heap.ErrClosed)
		return
	}
	head, err := s.hold(ctx)
	if err != nil {
		yield(nil, err)
		return
	}
	defer s.release(h, head)
	if off >= int64(head.size) {
		return
	}
	var buf []byte
	var refs [piecesAhead]uint64
	n := head.pieces()
	first := int(off / int64(head.piece))
	skip := int(off % int64(head.piece))
	for i := first; i < n; i++ {
		if (i-first)%piecesAhead == 0 {
			few := refs[:min(piecesAhead, n-i)]
			for j := range few {
				few[j] = head.first + uint64(i+j)
			}
			// An error is ignored here: copyObject comes upon it when it reads the piece.
			_ = h.objects.Prefetch(ctx, few)
		}
		b, err := h.copyObject(ctx, head.first+uint64(i), buf[:0])
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

// copyObject appends to dst the data of the object whose word has number n.
func (h *Heap) copyObject(ctx context.Context, n uint64, dst []byte) ([]byte, error) {
	start := len(dst)
	err := h.core.One(ctx, func(s *heap.Scope) {
		o, err := h.objects.Deref(s, h.objects.At(n), 0)
		if err != nil {
			h.core.Fail(s, err)
			return
		}
		dst = append(dst[:start], o[object.Header:object.Header+object.HeadLen(o.Head())]...)
	})
	return dst, err
}

// Free frees the string and the pointer. If the head of the string is far and cannot be read, Free fails and frees
// nothing; but if the head is lost, it frees the pointer and fails, and the string's pieces stay until the heap is
// closed.
func (s Bytes) Free(ctx context.Context) error {
	h := heapOf(s.p.word())
	if h == nil {
		return heap.ErrClosed
	}
	head, err := s.p.Load(ctx)
	var lost *heap.LostError
	if errors.As(err, &lost) {
		s.p.Free()
	}
	if err != nil {
		return fmt.Errorf("cannot free a string: %w", err)
	}
	part := h.holding(s.p.word())
	part.mu.Lock()
	head = part.retire(head)
	part.mu.Unlock()
	s.p.Free()
	h.dropBytes(head)
	return nil
}

// IsNil reports whether s points to nothing.
func (s Bytes) IsNil() bool { return s.p.IsNil() }

// Ref returns s in a form that may be part of a far object.
func (s Bytes) Ref() BytesRef { return BytesRef{s.p.Ref()} }

// BytesRef is a Bytes in a form that may be part of a far object.
type BytesRef struct{ r Ref[bytesHead] }

// Bytes returns the Bytes of heap h that r refers to.
func (r BytesRef) Bytes(h *Heap) Bytes { return Bytes{r.r.Ptr(h)} }

// dropBytes frees the pieces of head.
func (h *Heap) dropBytes(head bytesHead) {
	for i := range head.pieces() {
		h.objects.Free(h.objects.At(head.first + uint64(i)))
	}
}
