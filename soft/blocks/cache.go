package blocks

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"polder/soft"
	"polder/soft/internal/flight"
)

// Cache holds blocks of files. Its methods may be called by any number of goroutines.
type Cache struct {
	m       *soft.Map[blockKey, []byte]
	flights flight.Group[blockKey, []byte]
	account *soft.Account
	size    int
	direct  bool
	seeds   [2]maphash.Seed
	systems atomic.Uint64 // file systems so far
	buffers sync.Pool     // of blockRun aligned blocks
}

// Config says how files are cached. The zero value is fine.
type Config struct {
	// BlockSize is a multiple of 4096, at most 128 KiB. Default 16 KiB.
	BlockSize int

	// Buffered reads files through the kernel's page cache, which then caches them a second time. By default the
	// operating system's files are read by direct I/O where their file system has it.
	Buffered bool

	Priority soft.Priority
}

const directAlign = 4096

// maxBlock is the largest block.
const maxBlock = 128 << 10

// blockRun is how many blocks are read at once when several that follow each
// other are missing.
const blockRun = 16

type blockKey struct {
	file  [2]uint64
	block int64
}

// New makes a block cache.
func New(h *soft.Heap, cfg Config) (*Cache, error) {
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 16 << 10
	}
	if cfg.BlockSize < directAlign || cfg.BlockSize > maxBlock || cfg.BlockSize%directAlign != 0 {
		return nil, fmt.Errorf("cannot make a block cache with blocks of %d bytes: want a multiple of %d up to %d", cfg.BlockSize, directAlign, maxBlock)
	}
	m, err := soft.NewMap(h, soft.MapConfig[blockKey, []byte]{Priority: cfg.Priority})
	if err != nil {
		return nil, err
	}
	b := &Cache{m: m, size: cfg.BlockSize, direct: !cfg.Buffered, account: h.Account("blocks")}
	b.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	b.buffers.New = func() any { buf := alignedBuffer(blockRun * b.size); return &buf }
	return b, nil
}

// Close forgets every block.
func (b *Cache) Close() {
	b.flights.Close()
	b.m.Close()
	b.account.Close()
}

// identity names a file as it is now.
type identity struct {
	name string
	size int64
	time int64
}

func (b *Cache) fileOf(id identity) [2]uint64 {
	return [2]uint64{maphash.Comparable(b.seeds[0], id), maphash.Comparable(b.seeds[1], id)}
}

// ReaderAt returns a reader of size bytes of r that goes through the cache.
// The name and the version tell files apart: the same ones must always have
// the same contents.
func (b *Cache) ReaderAt(r io.ReaderAt, name string, version, size int64) *ReaderAt {
	return &ReaderAt{b: b, src: r, file: b.fileOf(identity{name, size, version}), size: size}
}

// ReaderAt reads a file through a block cache. It may be used by any number
// of goroutines, and its source must allow that too.
type ReaderAt struct {
	b    *Cache
	src  io.ReaderAt
	file [2]uint64
	size int64

	disk     *os.File    // src, if it is to be read by direct I/O
	once     sync.Once   // opens direct
	direct   *os.File    // disk opened for direct I/O by the first miss; nil if it cannot be
	buffered atomic.Bool // direct I/O has failed: src is read instead
	young    bool        // src has just changed: none of it is cached
	changed  func() bool // whether src no longer holds what it held when it was opened; nil if nobody can tell
}

var errNegative = errors.New("negative offset")

// ReadAt implements io.ReaderAt.
func (r *ReaderAt) ReadAt(p []byte, off int64) (int, error) {
	return r.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext is ReadAt for callers that may not want to wait.
func (r *ReaderAt) ReadAtContext(ctx context.Context, p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("cannot read at %d: %w", off, errNegative)
	}
	if off >= r.size {
		return 0, io.EOF
	}
	short := int64(len(p)) > r.size-off
	if short {
		p = p[:r.size-off]
	}
	if r.young {
		if err := r.readThrough(p, off); err != nil {
			return 0, err
		}
		n = len(p)
	}
	size := int64(r.b.size)
	for n < len(p) {
		block, skip := (off+int64(n))/size, (off+int64(n))%size
		want := min(len(p)-n, int(size-skip))
		if !r.cached(p[n:n+want], block, int(skip)) {
			last := (off + int64(len(p)) - 1) / size
			if err := r.fetch(ctx, p[n:], block, last, int(skip)); err != nil {
				return n, err
			}
			got := min(int64(len(p)-n), (min(last, block+blockRun-1)-block+1)*size-skip)
			n += int(got)
			continue
		}
		n += want
	}
	if short {
		return n, io.EOF
	}
	return n, nil
}

// blockLen is how long a block is: all but a file's last are full.
func (r *ReaderAt) blockLen(block int64) int {
	return int(min(r.size-block*int64(r.b.size), int64(r.b.size)))
}

// cached copies a part of a block, if it is there.
func (r *ReaderAt) cached(p []byte, block int64, skip int) bool {
	got, ok := r.b.m.AppendPart(p[:0:len(p)], blockKey{r.file, block}, skip, len(p))
	if ok {
		r.b.account.Hit()
	}
	return ok && len(got) == len(p)
}

// fetch reads the blocks first to last, but at most blockRun of them, and copies them to p, from the byte skip of the
// first on. It waits for blocks that somebody else is reading.
func (r *ReaderAt) fetch(ctx context.Context, p []byte, first, last int64, skip int) error {
	b := r.b
	last = min(last, first+blockRun-1)
	keys := make([]blockKey, last-first+1)
	for i := range keys {
		keys[i] = blockKey{r.file, first + int64(i)}
	}
	mine, others := b.flights.Claim(ctx, keys)
	defer b.flights.GiveUp(keys, mine)
	var vals [blockRun][]byte
	for i, c := range mine { // has it been stored between our look and our turn?
		if c == nil {
			continue
		}
		look := b.m.AppendPart
		if i == 0 { // ReadAt has just missed it
			look = b.m.AppendAgain
		}
		if v, ok := look(nil, keys[i], 0, b.size); ok && len(v) == r.blockLen(first+int64(i)) {
			b.flights.End(keys[i], c, func() ([]byte, error) { return v, nil })
			vals[i], mine[i] = v, nil
		}
	}
	var failed error
	for i := 0; i < len(keys); {
		if mine[i] == nil {
			i++
			continue
		}
		j := i
		for j < len(keys) && mine[j] != nil {
			j++
		}
		r.fill(first+int64(i), keys[i:j], mine[i:j])
		for k := i; k < j; k++ {
			vals[k] = mine[k].Val
			failed = errors.Join(failed, mine[k].Err)
		}
		i = j
	}
	for i, c := range others {
		if c != nil {
			v, err := b.flights.Wait(ctx, keys[i], c)
			vals[i] = v
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return failed
	}
	for _, v := range vals[:len(keys)] {
		p = p[copy(p, v[min(skip, len(v)):]):]
		skip = 0
	}
	return nil
}

// fill reads adjacent blocks in one go and ends their flights.
func (r *ReaderAt) fill(first int64, keys []blockKey, calls []*flight.Call[[]byte]) {
	b := r.b
	buf := b.buffers.Get().(*[]byte)
	defer b.buffers.Put(buf)
	start := time.Now()
	off := first * int64(b.size)
	want := int(min(int64(len(keys)*b.size), r.size-off))
	err := r.readSource((*buf)[:len(keys)*b.size], want, off)
	took := time.Since(start)
	b.account.Rebuilt(took, len(keys))
	each := took / time.Duration(len(keys))
	for i, c := range calls {
		b.flights.End(keys[i], c, func() ([]byte, error) {
			if err != nil {
				return nil, err
			}
			n := r.blockLen(first + int64(i))
			v := append([]byte(nil), (*buf)[i*b.size:i*b.size+n]...)
			_ = b.m.SetCost(keys[i], v, each) // if memory is short, it is not kept
			return v, nil
		})
	}
}

// readSource reads want bytes; the buffer has room for whole blocks, as direct
// I/O needs it.
func (r *ReaderAt) readSource(buf []byte, want int, off int64) error {
	r.once.Do(func() {
		if r.disk != nil {
			r.direct = openDirect(r.disk)
		}
	})
	if r.direct != nil && !r.buffered.Load() {
		n, err := r.direct.ReadAt(buf, off)
		if n >= want && (r.changed == nil || !r.changed()) {
			return nil
		}
		r.buffered.Store(err != nil && !errors.Is(err, io.EOF))
	}
	return r.readThrough(buf[:want], off)
}

// readThrough fills buf from the source as it is.
func (r *ReaderAt) readThrough(buf []byte, off int64) error {
	n, err := r.src.ReadAt(buf, off)
	if r.changed != nil && r.changed() {
		err = ErrChanged
	}
	switch {
	case err == ErrChanged:
	case n == len(buf):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF // it has become shorter
	}
	return fmt.Errorf("cannot read %d bytes at %d: %w", len(buf), off, err)
}
