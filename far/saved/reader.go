package saved

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

// DamagedError says what is wrong with a file, and where.
type DamagedError struct {
	Off  int64 // where the part begins
	Part int   // its number, from 1
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("part %d, at byte %d: %v", e.Part, e.Off, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

var (
	// ErrNewer says that the file is of a newer format.
	ErrNewer = errors.New("a newer polder has written it")
	// ErrCut says that the file ends before its last part.
	ErrCut = errors.New("it ends here, before it is complete")

	errNone = errors.New("it is no snapshot of a heap")
)

// Reader reads a snapshot from the front to the back. It checks what each part says of itself, and that parts follow
// each other as they have to. The caller checks the rest.
type Reader struct {
	in   *bufio.Reader
	sum  hash.Hash // of all in front of the next part or, at the end, of the last part
	off  int64     // where that part begins
	n    int       // parts in front of that part
	head [HeaderSize]byte
	body []byte

	heap    uint64
	segment int
	have    map[uint64]uint64 // bytes of each segment that were read, by position
	ofLast  uint64            // number of the last checkpoint
	last    uint64            // bytes of it that were read
	rooted  bool              // the last part was a root
	ended   bool
}

// NewReader reads the beginning of a snapshot.
func NewReader(r io.Reader) (*Reader, error) {
	in := &Reader{in: bufio.NewReaderSize(r, 256<<10), sum: sha256.New(), have: map[uint64]uint64{}}
	b := make([]byte, 8)
	if n, err := io.ReadFull(in.in, b); err != nil && bytes.HasPrefix(AppendMagic(nil), b[:n]) {
		return nil, &DamagedError{int64(n), 1, cut(err)}
	} else if err != nil && !isEnd(err) {
		return nil, err
	}
	got := binary.LittleEndian.Uint64(b)
	switch {
	case got>>8 != magic>>8:
		return nil, errNone
	case got&0xff > Version:
		return nil, fmt.Errorf("%w: it is of version %d of the format, and this polder knows version %d", ErrNewer, got&0xff, Version)
	case got != magic:
		return nil, fmt.Errorf("it is of version %d of the format, which there never was", got&0xff)
	}
	in.sum.Write(b)
	in.off = 8
	p, err := in.Next()
	if err != nil {
		return nil, err
	}
	if p.Kind != Start {
		return nil, &DamagedError{8, 1, errors.New("it is not the first one of a snapshot")}
	}
	return in, nil
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func cut(err error) error {
	if isEnd(err) {
		return ErrCut
	}
	return err
}

// Heap is the number of the heap, and SegmentSize how long its segments are.
func (r *Reader) Heap() uint64     { return r.heap }
func (r *Reader) SegmentSize() int { return r.segment }

// Offset is where the next part begins or, at the end, where the last part begins. Parts is how many parts are in
// front of it.
func (r *Reader) Offset() int64 { return r.off }
func (r *Reader) Parts() int    { return r.n }

// Have is how many bytes of each segment were read, by the position of the segment. The map stays the reader's.
func (r *Reader) Have() map[uint64]uint64 { return r.have }

// Next returns the next part, whose body is valid until Next is called again. Behind the last part, which has to be
// the end of what is read, it returns io.EOF. Damage is a *DamagedError; other errors are those of reading.
func (r *Reader) Next() (p Part, err error) {
	if r.ended {
		if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
			if err == nil {
				err = r.damaged(errors.New("something follows the last part"))
			}
			return p, err
		}
		return p, io.EOF
	}
	p, err = r.read()
	if err == nil {
		err = r.follows(&p)
	}
	switch {
	case err != nil && isEnd(err):
		return p, r.damaged(ErrCut)
	case err != nil:
		return p, err
	}
	if p.Kind != End {
		r.sum.Write(r.head[:])
		r.sum.Write(p.Body)
		r.off += int64(p.Size())
		r.n++
	}
	return p, nil
}

func (r *Reader) damaged(err error) error { return &DamagedError{r.off, r.n + 1, err} }

// read reads a part.
func (r *Reader) read() (Part, error) {
	if _, err := io.ReadFull(r.in, r.head[:]); err != nil {
		return Part{}, err
	}
	p, n, sum, err := decodeHeader(r.head[:])
	if err != nil {
		return p, r.damaged(err)
	}
	if cap(r.body) < n {
		r.body = make([]byte, n)
	}
	p.Body = r.body[:n]
	if _, err := io.ReadFull(r.in, p.Body); err != nil {
		return p, err
	}
	if got := crc32.Checksum(p.Body, castagnoli); got != sum {
		return p, r.damaged(fmt.Errorf("CRC32C of its body is %08x, want %08x", got, sum))
	}
	return p, nil
}

// follows checks that p may come next.
func (r *Reader) follows(p *Part) error {
	bad := func(format string, args ...any) error { return r.damaged(fmt.Errorf(format, args...)) }
	if (p.Kind == Start) != (r.n == 0) {
		return bad("it is not where the first part of a snapshot has to be")
	}
	switch p.Kind {
	case Start:
		if len(p.Body) != 8 || p.Off != 0 {
			return bad("%d bytes at %d, want 8 at 0", len(p.Body), p.Off)
		}
		size := binary.LittleEndian.Uint64(p.Body)
		if size == 0 || size > 1<<40 || size&(size-1) != 0 {
			return bad("segments of %d bytes, want a power of two", size)
		}
		r.heap, r.segment = p.Of, int(size)
	case Segment:
		if have := r.have[p.Of]; p.Off != have || len(p.Body) == 0 || p.Off+uint64(len(p.Body)) > uint64(r.segment) {
			return bad("%d bytes at %d of a segment of %d bytes, of which there are %d before", len(p.Body), p.Off, r.segment, have)
		}
		r.have[p.Of] += uint64(len(p.Body))
	case Checkpoint:
		if p.Off == 0 {
			r.ofLast, r.last = p.Of, 0
		}
		if p.Of != r.ofLast || p.Off != r.last || len(p.Body) == 0 {
			return bad("%d bytes at %d of checkpoint %x, and there are %d of %x before", len(p.Body), p.Off, p.Of, r.last, r.ofLast)
		}
		r.last += uint64(len(p.Body))
	case Root:
		if p.Of != r.ofLast || p.Off != 0 {
			return bad("the root of checkpoint %x behind checkpoint %x", p.Of, r.ofLast)
		}
	case End:
		if !r.rooted {
			return bad("it is the last one, and no root comes before it")
		}
		if err := r.end(p); err != nil {
			return r.damaged(err)
		}
		r.ended = true
	}
	r.rooted = p.Kind == Root
	return nil
}

const endSize = 8 + 8 + sha256.Size

// AppendEnd appends the last part of a snapshot of a heap. Before it there were so many parts and bytes; sum is the
// SHA-256 of these.
func AppendEnd(b []byte, heap uint64, parts int, bytes int64, sum []byte) []byte {
	body := binary.LittleEndian.AppendUint64(nil, uint64(parts))
	body = binary.LittleEndian.AppendUint64(body, uint64(bytes))
	return Append(b, Part{Kind: End, Of: heap, Body: append(body, sum...)})
}

// end checks the last part.
func (r *Reader) end(p *Part) error {
	if len(p.Body) != endSize || p.Of != r.heap || p.Off != 0 {
		return fmt.Errorf("it is the last one of another heap, or of another length: %d bytes at %d", len(p.Body), p.Off)
	}
	if parts, n := binary.LittleEndian.Uint64(p.Body), binary.LittleEndian.Uint64(p.Body[8:]); parts != uint64(r.n) || n != uint64(r.off) {
		return fmt.Errorf("there are to be %d parts of %d bytes before it, and there are %d of %d", parts, n, r.n, r.off)
	}
	if sum := r.sum.Sum(nil); !bytes.Equal(sum, p.Body[16:]) {
		return fmt.Errorf("the SHA-256 of all before it is %x, want %x", sum, p.Body[16:])
	}
	return nil
}
