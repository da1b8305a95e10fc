package pages

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/s2"

	"polder/far"
)

const (
	// Size is the size of a page, in bytes.
	Size = 4096
	// MaxVolume is the size of the largest volume, in bytes.
	MaxVolume = 1 << 44
	// MaxRead is how many pages are read from far memory at a time.
	MaxRead = 64
)

// ErrRange: there is no such offset in the volume.
var ErrRange = errors.New("it is beyond the end of the volume")

// stripes is how many locks the pages share.
const stripes = 256

// Volume is memory in pages. It must not be used after its heap has been closed.
type Volume struct {
	of    *Volumes
	name  string
	again bool
	mark  atomic.Uint64
	size  int64
	pages *far.ByteMap
	kept  present
	locks [stripes]sync.Mutex // held by writers, for a page's entry and its bit

	batches sync.Pool // of *batch
	reads   atomic.Int64
	writes  atomic.Int64
}

// Size is the size of the volume, in bytes.
func (v *Volume) Size() int64 { return v.size }

// Stats are counts since the volume was made.
type Stats struct {
	Pages         int64 // that take memory at the moment
	Reads, Writes int64 // of pages
}

// Stats returns what the volume has done.
func (v *Volume) Stats() Stats {
	return Stats{Pages: v.kept.count.Load(), Reads: v.reads.Load(), Writes: v.writes.Load()}
}

// check returns an error if the range is not within the volume.
func (v *Volume) check(off, n int64) error {
	if off < 0 || n < 0 || off > v.size || n > v.size-off {
		return fmt.Errorf("cannot use %d bytes at offset %d of %d: %w", n, off, v.size, ErrRange)
	}
	return nil
}

// Read reads len(p) bytes at off into p. With far.NoWait it fails with far.ErrWouldBlock if some of them are far. It
// fails with a *far.LostError if one of the pages was lost. After any error the contents of p are undefined.
func (v *Volume) Read(ctx context.Context, p []byte, off int64) error {
	if err := v.check(off, int64(len(p))); err != nil {
		return err
	}
	b := v.batch()
	defer v.batches.Put(b)
	for len(p) > 0 {
		n := min(len(p), MaxRead*Size-int(off%Size))
		if err := b.read(ctx, p[:n], off); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// ReadPages reads the pages with these numbers, at most MaxRead, into p, one after the other. It fails as Read does.
func (v *Volume) ReadPages(ctx context.Context, numbers []int64, p []byte) error {
	b := v.batch()
	defer v.batches.Put(b)
	count := 0
	for i, page := range numbers {
		if err := v.check(page*Size, Size); err != nil {
			return err
		}
		count = b.want(count, page, p[i*Size:(i+1)*Size], 0)
	}
	return b.fetch(ctx, count)
}

// Write writes p at off. Readers may see parts of it before Write returns, and see all of it afterwards. After an
// error any part of p may have been written. It fails with far.ErrFull if there is no far memory for it.
func (v *Volume) Write(ctx context.Context, p []byte, off int64) error {
	if err := v.check(off, int64(len(p))); err != nil {
		return err
	}
	b := v.batch()
	defer v.batches.Put(b)
	for known := off; len(p) > 0; {
		if off >= known {
			known = b.look(ctx, off, off+int64(len(p)))
		}
		at := int(off % Size)
		n := min(len(p), Size-at)
		if err := v.write(ctx, b, p[:n], off/Size, at); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// WillWrite prepares for writes of the pages with these numbers, at most MaxRead, one by one. It reads what the
// writes must know of the entries that they replace, all at once, so that not every write has to wait for far memory.
// What WillWrite cannot read, the write reads itself.
func (v *Volume) WillWrite(ctx context.Context, numbers []int64) {
	b := v.batch()
	defer v.batches.Put(b)
	count := 0
	for _, page := range numbers {
		if v.kept.has(page) {
			b.key(count, page)
			count++
		}
	}
	b.replaces(ctx, count)
}

// write writes p, which lies within one page, at the offset at of that page.
func (v *Volume) write(ctx context.Context, b *batch, p []byte, page int64, at int) error {
	v.writes.Add(1)
	lock := &v.locks[page%stripes]
	if ctx != far.NoWait {
		lock.Lock()
	} else if !lock.TryLock() {
		return far.ErrWouldBlock
	}
	defer lock.Unlock()
	key := b.key(0, page)
	if len(p) < Size {
		whole := b.whole[:]
		clear(whole)
		if v.kept.has(page) {
			e, err := v.pages.Get(ctx, key, b.coded[:0])
			if err == nil {
				err = decode(whole, e.Value)
			}
			if err != nil && !errors.Is(err, far.ErrNotFound) {
				return v.failed("read", page, err)
			}
		}
		copy(whole[at:], p)
		p = whole
	}
	if bytes.Equal(p, zeros[:]) {
		return v.drop(ctx, key, page)
	}
	if v.of.compress {
		if coded := s2.Encode(b.coded[:], p); len(coded) <= Size-Size/8 {
			p = coded
		}
	}
	if err := v.pages.Set(ctx, key, far.Entry{Value: p}); err != nil {
		return v.failed("write", page, err)
	}
	v.kept.add(page)
	return nil
}

// drop makes a page read as zeros from now on, and take no memory.
//
// Preconditions: the lock of the page's stripe is held.
func (v *Volume) drop(ctx context.Context, key []byte, page int64) error {
	if !v.kept.has(page) {
		return nil
	}
	if _, err := v.pages.Delete(ctx, key); err != nil {
		return v.failed("discard", page, err)
	}
	v.kept.remove(page)
	return nil
}

func (v *Volume) failed(what string, page int64, err error) error {
	if err == far.ErrWouldBlock {
		return err
	}
	return fmt.Errorf("cannot %s page %d: %w", what, page, err)
}

// Lose makes reads of a page fail with a *far.LostError until all of the page is written. It is for a caller that
// knows that the volume has an older page than it should have.
func (v *Volume) Lose(ctx context.Context, page int64) error {
	if err := v.check(page*Size, Size); err != nil {
		return err
	}
	b := v.batch()
	defer v.batches.Put(b)
	lock := &v.locks[page%stripes]
	lock.Lock()
	defer lock.Unlock()
	if err := v.pages.Set(ctx, b.key(0, page), far.Entry{Value: lostEntry}); err != nil {
		return v.failed("write", page, err)
	}
	v.kept.add(page)
	return nil
}

// lostEntry is the entry of a page that was lost with the process that had it.
var lostEntry = []byte{0}

// decode sets page, of Size bytes, to the page of an entry, which is the page itself or, if it is shorter, its
// compressed form.
func decode(page, entry []byte) error {
	if len(entry) == Size {
		copy(page, entry)
		return nil
	}
	if bytes.Equal(entry, lostEntry) {
		return &far.LostError{Segment: "of a process that has died"}
	}
	if n, err := s2.DecodedLen(entry); err != nil || n != Size {
		return fmt.Errorf("its entry has %d bytes, which are no page: %w", len(entry), errors.Join(errCoded, err))
	}
	if _, err := s2.Decode(page[:Size], entry); err != nil {
		return fmt.Errorf("its entry has %d bytes, which are no page: %w", len(entry), errors.Join(errCoded, err))
	}
	return nil
}

var errCoded = errors.New("it was compressed in another way")

var zeros [Size]byte

// Discard makes n bytes at off read as zeros, and gives back the memory of the pages that lie wholly in that range.
func (v *Volume) Discard(ctx context.Context, off, n int64) error {
	if err := v.check(off, n); err != nil {
		return err
	}
	b := v.batch()
	defer v.batches.Put(b)
	for known, end := off, off+n; off < end; {
		page, at := off/Size, off%Size
		length := min(end-off, Size-at)
		if gap := v.kept.gap(page, (end+Size-1)/Size); gap > page {
			off = min(gap*Size, end) // zeros already
			continue
		}
		if off >= known {
			known = b.look(ctx, off, end)
		}
		if err := v.write(ctx, b, zeros[:length], page, int(at)); err != nil {
			return err
		}
		off += length
	}
	return nil
}

// Prefetch brings the far pages of n bytes at off into local memory, as far as there is room, and returns when they
// are there.
func (v *Volume) Prefetch(ctx context.Context, off, n int64) error {
	if err := v.check(off, n); err != nil {
		return err
	}
	b := v.batch()
	defer v.batches.Put(b)
	for page, end := off/Size, (off+n+Size-1)/Size; page < end; {
		count := 0
		for ; page < end && count < MaxRead; page++ {
			if v.kept.has(page) {
				b.key(count, page)
				count++
			}
		}
		if err := v.pages.Prefetch(ctx, b.keys[:count]...); err != nil {
			return fmt.Errorf("cannot prefetch: %w", err)
		}
	}
	return nil
}

// Extent returns how many bytes from off on, but no further than end, are of the same kind: in pages that take memory
// (memory is true), or in pages that take none and read as zeros.
func (v *Volume) Extent(off, end int64) (n int64, memory bool) {
	end = min(end, v.size)
	if off < 0 || off >= end {
		return 0, false
	}
	page, last := off/Size, (end+Size-1)/Size
	to := v.kept.gap(page, last)
	if memory = to == page; memory {
		for to++; to < last && v.kept.has(to); to++ {
		}
	}
	return min(to*Size, end) - off, memory
}

// maxCoded is how many bytes the compressed form of a page may need.
const maxCoded = Size + 64

// batch is what a call needs to read pages, or to write one.
type batch struct {
	v       *Volume
	whole   [Size]byte
	coded   [maxCoded]byte   // a compressed page
	numbers [MaxRead][8]byte // the bytes of keys
	keys    [MaxRead][]byte
	answer  func(i int, e far.Entry, err error) // answered, made a func once for all

	// For each key of a read:
	of   [MaxRead]int64  // its page
	to   [MaxRead][]byte // where the wanted part of it goes
	from [MaxRead]int    // where in the page that part begins
	part [Size]byte      // a compressed page of which only a part is wanted
	err  error
}

func (v *Volume) batch() *batch {
	if b, _ := v.batches.Get().(*batch); b != nil {
		return b
	}
	b := &batch{v: v}
	b.answer = b.answered
	for i := range b.keys {
		b.keys[i] = b.numbers[i][:]
	}
	return b
}

// key sets the i-th key to that of a page, and returns it.
func (b *batch) key(i int, page int64) []byte {
	binary.BigEndian.PutUint64(b.numbers[i][:], uint64(page))
	return b.keys[i]
}

// look does what WillWrite does, for the pages from off to end, as far as there is room for their keys. It returns
// the offset that it has come to.
func (b *batch) look(ctx context.Context, off, end int64) int64 {
	kept, last := &b.v.kept, (end+Size-1)/Size
	count, page := 0, kept.gap(off/Size, last)
	for ; page < last && count < MaxRead; page = kept.gap(page+1, last) { // pages of zeros have no entry
		b.key(count, page)
		count++
	}
	b.replaces(ctx, count)
	return page * Size
}

// replaces reads what has to be known of the entries of the first count keys before they are replaced. For a single
// page it leaves that to the write.
func (b *batch) replaces(ctx context.Context, count int) {
	if count > 1 && ctx != far.NoWait {
		_ = b.v.pages.FetchHeads(ctx, b.keys[:count])
	}
}

// read reads p, which lies within at most MaxRead pages.
func (b *batch) read(ctx context.Context, p []byte, off int64) error {
	count := 0
	for page := off / Size; len(p) > 0; page++ {
		at := int(off - page*Size)
		n := min(Size-at, len(p))
		count = b.want(count, page, p[:n], at)
		p, off = p[n:], off+int64(n)
	}
	return b.fetch(ctx, count)
}

// want adds page to the batch, to be copied from its offset from on into to. count is how many keys the batch has;
// want returns how many it has now.
func (b *batch) want(count int, page int64, to []byte, from int) int {
	b.v.reads.Add(1)
	if !b.v.kept.has(page) {
		clear(to)
		return count
	}
	b.key(count, page)
	b.of[count], b.to[count], b.from[count] = page, to, from
	return count + 1
}

// fetch reads the pages of the first count keys.
func (b *batch) fetch(ctx context.Context, count int) error {
	defer clear(b.to[:count])
	b.err = nil
	switch {
	case count == 0:
	case count == 1:
		e, err := b.v.pages.Get(ctx, b.keys[0], b.whole[:0])
		b.answered(0, e, err)
	default:
		b.v.pages.GetMany(ctx, b.keys[:count], b.answer)
	}
	return b.err
}

// answered copies the wanted part out of the page of the i-th key.
func (b *batch) answered(i int, e far.Entry, err error) {
	switch {
	case err == nil && len(e.Value) == Size:
		copy(b.to[i], e.Value[b.from[i]:])
	case err == nil:
		to := b.to[i]
		if len(to) < Size {
			to = b.part[:]
		}
		if err = decode(to, e.Value); err == nil && len(b.to[i]) < Size {
			copy(b.to[i], to[b.from[i]:])
		}
		if err != nil && b.err == nil {
			b.err = b.v.failed("read", b.of[i], err)
		}
	case errors.Is(err, far.ErrNotFound): // it has been discarded in the meantime
		clear(b.to[i])
	case b.err == nil:
		b.err = b.v.failed("read", b.of[i], err)
	}
}

// present is the set of pages that have an entry.
type present struct {
	count  atomic.Int64
	chunks []atomic.Pointer[chunk]
}

// chunk is the bits of 128 MiB.
type chunk [chunkPages / 64]atomic.Uint64

const chunkPages = 1 << 15

func newPresent(pages int64) present {
	return present{chunks: make([]atomic.Pointer[chunk], (pages+chunkPages-1)/chunkPages)}
}

func (p *present) has(page int64) bool {
	c := p.chunks[page/chunkPages].Load()
	return c != nil && c[page%chunkPages/64].Load()&(1<<(page%64)) != 0
}

// add notes that a page has an entry.
func (p *present) add(page int64) {
	at := &p.chunks[page/chunkPages]
	c := at.Load()
	if c == nil {
		at.CompareAndSwap(nil, new(chunk))
		c = at.Load()
	}
	if bit := uint64(1) << (page % 64); c[page%chunkPages/64].Or(bit)&bit == 0 {
		p.count.Add(1)
	}
}

// remove notes that a page, which had an entry, has none any more.
func (p *present) remove(page int64) {
	c := p.chunks[page/chunkPages].Load()
	c[page%chunkPages/64].And(^(uint64(1) << (page % 64)))
	p.count.Add(-1)
}

// gap returns the first page from page on that has an entry, or end if there is none before it.
func (p *present) gap(page, end int64) int64 {
	for page < end {
		c := p.chunks[page/chunkPages].Load()
		if c == nil {
			page = (page/chunkPages + 1) * chunkPages
			continue
		}
		if word := c[page%chunkPages/64].Load() >> (page % 64); word != 0 {
			return min(page+int64(bits.TrailingZeros64(word)), end)
		}
		page = (page/64 + 1) * 64
	}
	return end
}
