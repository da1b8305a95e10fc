package region

import (
	"context"
	"errors"
	"fmt"
	"io"

	"polder/internal/fdpass"
	"polder/pages/internal/wire"
)

// The kinds of errors of regions.
var (
	ErrClosed  = errors.New("the region is closed")
	ErrRange   = errors.New("it is beyond the end of the region")
	ErrRefused = errors.New("the pager refuses")
	ErrLost    = errors.New("memory was lost")
	ErrFull    = errors.New("there is no far memory left")
	// ErrPinned: the range is too large to be pinned, or too much is pinned already.
	ErrPinned = errors.New("it is too much to be pinned: a quarter of the local memory may be")
)

// Access is what pinned memory is used for.
type Access uint32

// Reading and Writing. Memory that is pinned for reading must not be written to. Memory that is pinned for writing
// may also be read, and counts as changed.
const (
	Reading Access = 0
	Writing        = Access(wire.Write)
)

// Pinned is a part of a region that is local, and stays so.
type Pinned struct {
	r  *Region
	id uint64
	b  []byte
}

// Bytes is the memory. It must not be used after Unpin.
func (p *Pinned) Bytes() []byte { return p.b }

// Unpin lets go of the memory. Doing so twice is a no-op.
func (p *Pinned) Unpin() {
	if p.b != nil {
		p.r.unpin(p.id)
		p.b = nil
	}
}

// Pin brings n bytes at off into local memory, and keeps them there until Unpin. All pinned ranges together may have
// a quarter of the local memory, in whole pages; Pin fails with ErrPinned if it would be more.
func (r *Region) Pin(ctx context.Context, off, n int64, access Access) (*Pinned, error) {
	if err := r.check(off, n); err != nil {
		return nil, err
	}
	r.mu.Lock()
	sum := pagesOf(off, n)
	for _, p := range r.pins {
		if p.Flags&brief == 0 {
			sum += pagesOf(int64(p.Off), int64(p.N))
		}
	}
	r.mu.Unlock()
	if sum > r.cfg.Local/4 {
		return nil, fmt.Errorf("cannot pin %d bytes at offset %d: %w", n, off, ErrPinned)
	}
	return r.pin(ctx, off, n, uint32(access))
}

// brief is a flag of pins by Do. It is not sent to the pager.
const brief = 1 << 31

// pagesOf is the size in bytes of the pages that a range touches.
func pagesOf(off, n int64) int64 { return (off+n+pageSize-1)/pageSize*pageSize - off/pageSize*pageSize }

// Do calls f with n bytes at off, which are local, and stay local until f returns. All calls of ReadAt, WriteAt and
// Do that are under way share a quarter of the local memory. Do waits until its range fits, so f must not call any of
// them.
func (r *Region) Do(ctx context.Context, off, n int64, access Access, f func([]byte)) error {
	if err := r.check(off, n); err != nil {
		return err
	}
	size := pagesOf(off, n)
	if size > r.cfg.Local/4 {
		return fmt.Errorf("cannot pin %d bytes at offset %d: %w", n, off, ErrPinned)
	}
	if err := r.reserve(ctx, size); err != nil {
		return err
	}
	defer r.reserve(context.Background(), -size)
	p, err := r.pin(ctx, off, n, uint32(access)|brief)
	if err != nil {
		return err
	}
	defer p.Unpin()
	f(p.b)
	return nil
}

// reserve waits until n more bytes may be pinned, and counts them. With a negative n it gives -n bytes back.
func (r *Region) reserve(ctx context.Context, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n > 0 && r.short+n > r.cfg.Local/4 && !r.closed {
		freed := r.freed
		r.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
		}
		r.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	r.short += n
	if n < 0 && !r.closed {
		close(r.freed)
		r.freed = make(chan struct{})
	}
	return nil
}

// pin has the pager bring a range and keep it. If the pager goes meanwhile, pin asks the next one.
func (r *Region) pin(ctx context.Context, off, n int64, flags uint32) (*Pinned, error) {
	for {
		p, err := r.tryPin(ctx, off, n, flags)
		if !errors.Is(err, errGone) {
			if err != nil {
				err = fmt.Errorf("cannot use %d bytes at offset %d: %w", n, off, err)
			}
			return p, err
		}
	}
}

func (r *Region) tryPin(ctx context.Context, off, n int64, flags uint32) (*Pinned, error) {
	id, err := r.ask(ctx, wire.Request{Op: wire.OpPin, Flags: flags, Off: uint64(off), N: uint64(n)})
	if err != nil {
		return nil, err
	}
	return &Pinned{r, id, r.mem[off : off+n : off+n]}, nil
}

// Sync makes what is in the region now outlive its process, and also the pager if the pager's heap is kept. Whoever
// maps the name again gets that, or what was written to a page later. Of memory that is written to during the call,
// any part may be old or new. Sync is for regions with a name.
func (r *Region) Sync(ctx context.Context) error {
	for {
		_, err := r.ask(ctx, wire.Request{Op: wire.OpSync})
		if !errors.Is(err, errGone) {
			if err != nil {
				err = fmt.Errorf("cannot sync region %q: %w", r.cfg.Name, err)
			}
			return err
		}
	}
}

// ask sends a request to the pager, once there is one, waits for the answer, and returns the request's ID.
func (r *Region) ask(ctx context.Context, request wire.Request) (uint64, error) {
	r.mu.Lock()
	for r.conn == nil && r.ended == nil && !r.closed {
		waiting := r.waiting
		r.mu.Unlock()
		select {
		case <-waiting:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		r.mu.Lock()
	}
	if r.closed || r.ended != nil {
		defer r.mu.Unlock()
		if r.closed {
			return 0, ErrClosed
		}
		return 0, r.ended
	}
	r.next++
	request.ID = r.next
	conn, call := r.conn, call{request, make(chan error, 1)}
	r.calls[request.ID] = call
	r.mu.Unlock()
	if err := r.send(conn, request); err != nil {
		_ = conn.Close() // serve answers the call then
	}
	select {
	case err := <-call.answer:
		return request.ID, err
	case <-ctx.Done():
		r.mu.Lock()
		delete(r.calls, request.ID) // if the range is pinned after all, replies unpins it
		r.mu.Unlock()
		select {
		case err := <-call.answer:
			if err == nil && request.Op == wire.OpPin {
				r.unpin(request.ID)
			}
		default:
		}
		return 0, context.Cause(ctx)
	}
}

// unpin forgets a pin and tells the pager.
func (r *Region) unpin(id uint64) {
	r.mu.Lock()
	delete(r.pins, id)
	conn := r.conn
	r.mu.Unlock()
	if conn != nil && r.send(conn, wire.Request{ID: id, Op: wire.OpUnpin}) != nil {
		_ = conn.Close()
	}
}

func (r *Region) send(conn *fdpass.Conn, request wire.Request) error {
	request.Flags &^= brief
	r.sending.Lock()
	defer r.sending.Unlock()
	return conn.Send(request.Append(make([]byte, 0, 32)))
}

func (r *Region) check(off, n int64) error {
	if off < 0 || n <= 0 || off > r.size || n > r.size-off {
		return fmt.Errorf("cannot use %d bytes at offset %d of %d: %w", n, off, r.size, ErrRange)
	}
	return nil
}

// piece is how much ReadAt and WriteAt pin at a time.
func (r *Region) piece() int64 { return min(r.cfg.Local/16, 512<<10) }

// ReadAt implements io.ReaderAt.
func (r *Region) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.pieces(p, off, Reading, func(part, memory []byte) { copy(part, memory) })
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// WriteAt implements io.WriterAt.
func (r *Region) WriteAt(p []byte, off int64) (int, error) {
	n, err := r.pieces(p, off, Writing, func(part, memory []byte) { copy(memory, part) })
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// pieces calls f with one part of p after the other, and with the memory at the same place.
func (r *Region) pieces(p []byte, off int64, access Access, f func(part, memory []byte)) (n int, err error) {
	if off < 0 || off > r.size {
		return 0, fmt.Errorf("cannot use offset %d of %d: %w", off, r.size, ErrRange)
	}
	for p = p[:min(int64(len(p)), r.size-off)]; n < len(p); {
		part := p[n:min(len(p), n+int(r.piece()))]
		if err := r.Do(context.Background(), off+int64(n), int64(len(part)), access, func(b []byte) { f(part, b) }); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Prefetch asks the pager to bring n bytes at off into local memory, as far as there is room. It does not wait for
// that.
func (r *Region) Prefetch(off, n int64) error {
	if err := r.check(off, n); err != nil {
		return err
	}
	r.mu.Lock()
	conn := r.conn
	r.next++
	id := r.next
	r.mu.Unlock()
	if conn == nil {
		return nil
	}
	return r.send(conn, wire.Request{ID: id, Op: wire.OpPrefetch, Off: uint64(off), N: uint64(n)})
}

// Bytes is the region's memory. Any byte of it may be used at any time. An access to a page that is not local costs
// as much as bringing the page, and the thread waits for that in the kernel, together with its processor (P): no
// other goroutine runs on that P, and a garbage collection waits, too, with everybody who waits for the collection.
// So GOMAXPROCS has to be larger than the number of goroutines that use Bytes at a time.
//
// No access waits longer than the pager's --op-timeout or, if the pager has gone, than Config.Timeout. Then it fails
// with SIGBUS, which ends a Go program unless the goroutine has called debug.SetPanicOnFault.
func (r *Region) Bytes() []byte { return r.mem }
