package region

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/internal/scheme"
	"polder/pages/internal/uffd"
	"polder/pages/internal/wire"
)

const (
	pageSize   = 4096
	minLocal   = 256 << 10
	firstPause = 10 * time.Millisecond // between attempts to reach a pager
	lastPause  = 500 * time.Millisecond
)

// Config configures a region.
type Config struct {
	// Local is how many bytes of the region may be in local memory at a time: a multiple of 4 KiB, at least 256 KiB.
	// The default is an eighth of the size.
	Local int64
	// Timeout is how long the region waits for another pager when its pager has gone. After that, memory that is not
	// local is lost. The default is 10 s.
	Timeout time.Duration
	// Name, of at most 200 bytes, makes the region's contents outlive its process, with the pager: whoever maps as
	// many bytes with the same name gets them. Only one process at a time can have a name. If the pager's heap is
	// kept (polder pager --heap), what Sync has written outlives the pager, too. Without a name the region ends with
	// its process.
	Name string
}

// Region is memory that is larger than its local part. Any number of goroutines may use it.
type Region struct {
	path   string
	cfg    Config
	size   int64
	mem    []byte
	memory *arena.Memfd
	table  *arena.Memfd
	fd     *uffd.FD
	kernel bool
	again  bool
	run    sync.WaitGroup

	sending sync.Mutex // of requests

	done chan struct{} // closed by Close

	mu      sync.Mutex
	conn    *fdpass.Conn            // nil while there is no pager; guarded by mu
	waiting chan struct{}           // closed when conn is set again, or the region ends; guarded by mu
	calls   map[uint64]call         // requests that are not answered yet, by ID; guarded by mu
	pins    map[uint64]wire.Request // by ID; guarded by mu
	short   int64                   // bytes that Do has pinned or is about to pin; guarded by mu
	freed   chan struct{}           // closed, and replaced, when short becomes less; guarded by mu
	next    uint64                  // ID; guarded by mu
	closed  bool                    // guarded by mu
	ended   error                   // why the region cannot be used any more; guarded by mu
}

// call is a request that is not answered yet.
type call struct {
	wire.Request
	answer chan error // capacity 1
}

// Supported returns an error if this process cannot have regions: its kernel may be too old, or forbid it.
func Supported() error {
	fd, _, err := uffd.Open()
	if err == nil {
		fd.Close()
	}
	return err
}

// Map makes a region of size bytes, which read as zeros unless cfg.Name had contents. pager is the address that the
// region's pager listens at, unix:PATH. ctx bounds Map itself only.
func Map(ctx context.Context, pager string, size int64, cfg Config) (*Region, error) {
	path, ok := strings.CutPrefix(pager, scheme.Unix)
	if !ok {
		return nil, fmt.Errorf("cannot map memory: the pager's address is %q: expected unix:PATH", pager)
	}
	if size <= 0 || size%pageSize != 0 {
		return nil, fmt.Errorf("cannot map %d bytes: expected a multiple of %d", size, pageSize)
	}
	if cfg.Local == 0 {
		cfg.Local = max(size/8/pageSize*pageSize, minLocal)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if len(cfg.Name) > wire.MaxName {
		return nil, fmt.Errorf("cannot map memory: its name has %d bytes, want at most %d", len(cfg.Name), wire.MaxName)
	}
	if cfg.Local < minLocal || cfg.Local%pageSize != 0 || cfg.Timeout < 0 {
		return nil, fmt.Errorf("cannot map memory with %d bytes local and a timeout of %v: expected a multiple of %d, at least %d, and no negative time", cfg.Local, cfg.Timeout, pageSize, minLocal)
	}
	r := &Region{
		path: path, cfg: cfg, size: size, done: make(chan struct{}), waiting: make(chan struct{}), freed: make(chan struct{}),
		calls: map[uint64]call{}, pins: map[uint64]wire.Request{},
	}
	conn, err := r.make(ctx)
	if err != nil {
		r.release()
		return nil, fmt.Errorf("cannot map memory of the pager at %s: %w", pager, err)
	}
	r.run.Go(func() { r.serve(conn) })
	return r, nil
}

// make makes the mapping, and asks a pager to serve it.
func (r *Region) make(ctx context.Context) (_ *fdpass.Conn, err error) {
	if r.memory, err = newSealed("polder-region", int(r.size)); err != nil {
		return nil, err
	}
	if r.table, err = newSealed("polder-region-table", wire.TableSize(uint64(r.size))); err != nil {
		return nil, err
	}
	if r.fd, r.kernel, err = uffd.Open(); err != nil {
		return nil, err
	}
	if r.mem, err = unix.Mmap(int(r.memory.File().Fd()), 0, int(r.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		return nil, err
	}
	// A child would see zeros instead of asking the pager, and the parent would then see those zeros, too.
	if err := unix.Madvise(r.mem, unix.MADV_DONTFORK); err != nil {
		return nil, err
	}
	_ = unix.Madvise(r.mem, unix.MADV_NOHUGEPAGE) // it fails if the kernel has no huge pages
	if err := r.fd.Register(r.mem); err != nil {
		return nil, err
	}
	return r.attach(ctx, false)
}

func newSealed(name string, size int) (*arena.Memfd, error) {
	m, err := arena.NewMemfd(name, size)
	if err != nil {
		return nil, err
	}
	if err := m.SealForGood(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// attach asks a pager to serve the mapping.
func (r *Region) attach(ctx context.Context, resume bool) (*fdpass.Conn, error) {
	conn, err := fdpass.DialContext(ctx, r.path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = r.greet(conn, resume)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = conn.Close()
		return nil, ErrClosed
	}
	r.conn = conn
	close(r.waiting)
	return conn, nil
}

func (r *Region) greet(conn *fdpass.Conn, resume bool) error {
	_ = conn.SetDeadline(time.Now().Add(r.cfg.Timeout))
	a := wire.Attach{Size: uint64(r.size), Local: uint64(min(r.cfg.Local, max(r.size, minLocal))), Base: uffd.Addr(r.mem), Resume: resume, Name: r.cfg.Name}
	r.mu.Lock()
	for _, p := range r.pins {
		p.Flags &^= brief
		a.Pins = append(a.Pins, p)
	}
	r.mu.Unlock()
	if err := conn.SendFDs(a.Append(nil), r.memory.File(), r.table.File(), r.fd.File()); err != nil {
		return err
	}
	b, err := conn.Recv()
	if errors.Is(err, io.EOF) {
		return errors.New("it has closed the connection")
	}
	if err != nil {
		return err
	}
	defer conn.Done()
	reply, err := wire.ParseReply(b)
	if err != nil {
		return err
	}
	if !resume {
		r.again = reply.Status == wire.OK && reply.Text == wire.Again
	}
	return errors.Join(failure(reply), conn.SetDeadline(time.Time{}))
}

// Remove makes a pager give back what it has under a name. No process may have the name mapped.
func Remove(ctx context.Context, pager, name string) error {
	path, ok := strings.CutPrefix(pager, scheme.Unix)
	if !ok || name == "" || len(name) > wire.MaxName {
		return fmt.Errorf("cannot remove region %q of the pager at %q: expected unix:PATH, and a name of 1 to %d bytes", name, pager, wire.MaxName)
	}
	reply, err := remove(ctx, path, name)
	if err = errors.Join(err, failure(reply)); err != nil {
		return fmt.Errorf("cannot remove region %q of the pager at %s: %w", name, pager, err)
	}
	return nil
}

func remove(ctx context.Context, path, name string) (wire.Reply, error) {
	conn, err := fdpass.DialContext(ctx, path)
	if err != nil {
		return wire.Reply{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SendFDs(wire.Attach{Remove: true, Name: name}.Append(nil)); err != nil {
		return wire.Reply{}, err
	}
	b, err := conn.Recv()
	if err != nil {
		return wire.Reply{}, err
	}
	defer conn.Done()
	return wire.ParseReply(b)
}

// failure is the error that a pager's reply reports, or nil.
func failure(r wire.Reply) error {
	switch r.Status {
	case wire.OK:
		return nil
	case wire.Refused:
		return fmt.Errorf("%w: %s", ErrRefused, strings.TrimPrefix(r.Text, "refused: "))
	case wire.Lost:
		return fmt.Errorf("%w: %s", ErrLost, r.Text)
	case wire.Full:
		return fmt.Errorf("%w: %s", ErrFull, r.Text)
	default:
		return errors.New(r.Text)
	}
}

// serve takes replies until the region is closed. When the pager goes, serve finds another one.
func (r *Region) serve(conn *fdpass.Conn) {
	for conn != nil {
		err := r.replies(conn)
		_ = conn.Close()
		r.mu.Lock()
		r.conn, r.waiting = nil, make(chan struct{})
		for id, call := range r.calls { // their callers ask again
			call.answer <- errGone
			delete(r.calls, id)
		}
		closed := r.closed
		r.mu.Unlock()
		if closed {
			break
		}
		conn = r.another(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		close(r.waiting)
	}
}

// errGone: the pager has gone before it answered.
var errGone = errors.New("the pager has gone")

// replies takes a pager's replies, until it is gone.
func (r *Region) replies(conn *fdpass.Conn) error {
	for {
		b, err := conn.Recv()
		if err != nil {
			return err
		}
		reply, err := wire.ParseReply(b)
		conn.Done()
		if err != nil {
			return err
		}
		r.mu.Lock()
		call, ok := r.calls[reply.ID] // false if the caller has stopped waiting
		delete(r.calls, reply.ID)
		if ok && reply.Status == wire.OK && call.Op == wire.OpPin {
			r.pins[reply.ID] = call.Request
		}
		if ok {
			call.answer <- failure(reply)
		}
		r.mu.Unlock()
		if !ok && reply.Status == wire.OK {
			if err := r.send(conn, wire.Request{ID: reply.ID, Op: wire.OpUnpin}); err != nil {
				return err
			}
		}
	}
}

// another waits for another pager. If none comes in time, accesses to memory that is not local fail from then on.
func (r *Region) another(why error) *fdpass.Conn {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Timeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		conn, err := r.attach(ctx, true)
		if err == nil {
			return conn
		}
		if errors.Is(err, ErrClosed) {
			return nil
		}
		if ctx.Err() != nil {
			r.mu.Lock()
			r.ended = fmt.Errorf("%w: there is no pager any more: %w: %w", ErrLost, why, err)
			r.mu.Unlock()
			r.poison()
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-r.done:
			timer.Stop()
			return nil
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// poison makes accesses to memory that is not local fail instead of waiting for ever.
func (r *Region) poison() {
	base, fd := uffd.Addr(r.mem), int(r.memory.File().Fd())
	// Local memory can be written to from now on; pages elsewhere that are still marked as protected could not be
	// poisoned.
	_ = r.fd.Protect(base, uint64(r.size), false)
	for off := int64(0); off < r.size; {
		hole, err := unix.Seek(fd, off, unix.SEEK_HOLE)
		if err != nil || hole >= r.size {
			break
		}
		if off, err = unix.Seek(fd, hole, unix.SEEK_DATA); err != nil {
			off = r.size
		}
		_ = r.fd.Poison(base+uint64(hole), uint64(off-hole))
	}
	_ = r.fd.Wake(base, uint64(r.size))
}

// Size is how many bytes the region has.
func (r *Region) Size() int64 { return r.size }

// Resident is how many bytes of the region are in local memory at the moment.
func (r *Region) Resident() int64 {
	var st unix.Stat_t
	if err := unix.Fstat(int(r.memory.File().Fd()), &st); err != nil {
		return 0
	}
	return st.Blocks * 512
}

// Again reports whether the region was there already, with the contents that an earlier process left in it.
func (r *Region) Again() bool { return r.again }

// KernelFaults reports whether system calls may be given memory of the region that is not pinned. If not, they fail
// with EFAULT where it is not local: that is so if the process may neither trace others (CAP_SYS_PTRACE) nor open
// /dev/userfaultfd.
func (r *Region) KernelFaults() bool { return r.kernel }

// Close gives the region back. Its memory must not be used any more. Closing twice is a no-op.
func (r *Region) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	if r.conn != nil {
		_ = r.conn.Close()
	}
	close(r.done)
	close(r.freed)
	r.mu.Unlock()
	r.run.Wait()
	r.release()
	return nil
}

func (r *Region) release() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
	}
	if r.fd != nil {
		r.fd.Close()
	}
	for _, m := range []*arena.Memfd{r.memory, r.table} {
		if m != nil {
			_ = m.Close()
		}
	}
}

var _ io.ReaderAt = (*Region)(nil)
var _ io.WriterAt = (*Region)(nil)
