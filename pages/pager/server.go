package pager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/accept"
	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/internal/ratelog"
	"polder/pages"
	"polder/pages/internal/uffd"
	"polder/pages/internal/wire"
)

const handshakeTime = 10 * time.Second

// MinLocal is the least memory of a mapping, in bytes.
const MinLocal = 256 << 10

// Config says what clients may have. Volumes, Size and Frames are required.
type Config struct {
	Volumes     *pages.Volumes
	Size        int64         // bytes that all mappings may have
	Frames      int64         // bytes of them that may be in memory at a time
	MaxMappings int           // most mappings at a time; 16 if it is 0
	Timeout     time.Duration // how long an access waits for far memory before it fails; 10 s if it is 0
	Logger      *slog.Logger  // slog.Default if it is nil
}

// Server serves the faults of mappings.
type Server struct {
	cfg     Config
	gate    *accept.Gate
	watcher *fdpass.Watcher
	ctx     context.Context // parent of those of the mappings
	end     context.CancelCauseFunc
	done    sync.WaitGroup // mappings
	buffers sync.Pool      // of *[pages.MaxRead * pages.Size]byte

	mu       sync.Mutex
	closed   bool                           // guarded by mu
	lis      map[*net.UnixListener]struct{} // guarded by mu
	mappings int                            // guarded by mu
	size     int64                          // bytes of all mappings and regions; guarded by mu
	frames   int64                          // bytes that mappings may have in memory; guarded by mu
	made     int                            // mappings since the start; guarded by mu
	named    map[string]*named              // regions that outlive their clients; guarded by mu

	stats counters
}

// counters count since the server was made.
type counters struct {
	faults, writes, ahead, evicted, poisoned, refused atomic.Int64
	places, drops, protects                           atomic.Int64 // system calls, each for pages in a row
}

// ErrClosed is why mappings end when the server is closed.
var ErrClosed = errors.New("the pager is closed")

// New makes a server, which serves nobody yet.
func New(cfg Config) (*Server, error) {
	if cfg.Volumes == nil || cfg.Size <= 0 || cfg.Frames <= 0 {
		return nil, errors.New("cannot make a pager: volumes, a size and memory for frames are needed")
	}
	if cfg.MaxMappings == 0 {
		cfg.MaxMappings = 16
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.MaxMappings < 0 || cfg.Timeout < 0 {
		return nil, errors.New("cannot make a pager: a limit is negative")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = ratelog.Bound(cfg.Logger)
	watcher, err := fdpass.NewWatcher()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, gate: accept.NewGate(cfg.Logger, handshakeTime), watcher: watcher, lis: map[*net.UnixListener]struct{}{}, named: map[string]*named{}}
	s.buffers.New = func() any { return new([pages.MaxRead * pages.Size]byte) }
	s.ctx, s.end = context.WithCancelCause(context.Background())
	if err := s.loadNamed(); err != nil {
		s.gate.Close()
		s.end(err)
		watcher.Close()
		return nil, err
	}
	return s, nil
}

// Serve serves lis, of the network "unixpacket", and closes it. It returns nil after Close,
// which may come first.
func (s *Server) Serve(lis *net.UnixListener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return lis.Close()
	}
	s.lis[lis] = struct{}{}
	s.mu.Unlock()
	err := accept.Each(s.cfg.Logger, lis.AcceptUnix, func(sock *net.UnixConn) {
		s.gate.Go(sock, func(v *accept.Visitor) error { return s.enter(sock, v) })
	})
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return errors.Join(fmt.Errorf("cannot accept: %w", err), lis.Close())
}

// enter takes a client's memory over, and serves it in a goroutine of its own.
func (s *Server) enter(sock *net.UnixConn, v *accept.Visitor) error {
	conn, err := fdpass.New(sock)
	if err != nil {
		return err
	}
	b, files, err := conn.RecvFDs()
	if err != nil {
		return err
	}
	a, err := wire.ParseAttach(b)
	want := wire.Files
	if a.Remove {
		want = 0
	}
	if err == nil && len(files) != want {
		err = fmt.Errorf("it passes %d descriptors, want %d", len(files), want)
	}
	if err != nil {
		fdpass.CloseAll(files)
		return err
	}
	if a.Remove {
		if err := s.remove(a.Name); err != nil {
			return s.refuse(conn, err)
		}
		return errors.Join(conn.Send(replyTo(0, nil).Append(nil)), conn.Close())
	}
	number, region, err := s.admit(a)
	if err != nil {
		fdpass.CloseAll(files)
		return s.refuse(conn, err)
	}
	m, err := s.newMapping(conn, a, region, files, number)
	if err != nil {
		fdpass.CloseAll(files)
		s.leave(a, region, nil)
		return s.refuse(conn, err)
	}
	s.mu.Lock()
	if err = ErrClosed; !s.closed {
		if err = v.Enter(); err == nil {
			s.done.Go(func() {
				why := m.run(a)
				s.leave(a, region, m.unwritten)
				s.cfg.Logger.Info("a mapping has ended", "mapping", number, "why", why)
			})
		}
	}
	s.mu.Unlock()
	if err != nil {
		m.end(err)
		m.close()
		s.leave(a, region, nil)
	}
	return err
}

// refuse tells a client why it is not served.
func (s *Server) refuse(conn *fdpass.Conn, why error) error {
	s.stats.refused.Add(1)
	return errors.Join(why, conn.TrySend(replyTo(0, fmt.Errorf("%w: %w", errRefused, why)).Append(nil)))
}

// admit counts a mapping in if there is room for it, and returns its number and the region that it names, nil if it
// names none.
func (s *Server) admit(a wire.Attach) (int, *named, error) {
	if err := fits(a); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	region, err := s.find(a)
	if err != nil {
		return 0, nil, err
	}
	size, local := int64(a.Size), int64(a.Local)
	switch {
	case s.closed:
		return 0, nil, ErrClosed
	case s.mappings >= s.cfg.MaxMappings:
		return 0, nil, fmt.Errorf("there are %d mappings: it would be one too many", s.mappings)
	case (region == nil || region.volume == nil && !region.saved) && size > s.cfg.Size-s.size:
		return 0, nil, fmt.Errorf("%d bytes are to be mapped, of which %d are left of %d (--size)", size, s.cfg.Size-s.size, s.cfg.Size)
	case local > s.cfg.Frames-s.frames:
		return 0, nil, fmt.Errorf("%d bytes are to be local, of which %d are left of %d (--frames)", local, s.cfg.Frames-s.frames, s.cfg.Frames)
	}
	if region == nil || region.volume == nil && !region.saved {
		s.size += size
	}
	if region != nil {
		s.named[a.Name] = region
		region.size, region.ended = size, make(chan struct{})
	}
	s.mappings++
	s.frames += local
	s.made++
	return s.made, region, nil
}

// fits finds what is wrong with the sizes of a mapping.
func fits(a wire.Attach) error {
	if a.Size == 0 || a.Size%pages.Size != 0 || a.Size > pages.MaxVolume {
		return fmt.Errorf("the size is %d bytes: expected a multiple of %d up to %d", a.Size, pages.Size, int64(pages.MaxVolume))
	}
	if a.Local < MinLocal || a.Local%pages.Size != 0 || a.Local > pages.MaxVolume {
		return fmt.Errorf("%d bytes are to be local: expected a multiple of %d, and at least %d", a.Local, pages.Size, MinLocal)
	}
	if a.Base%pages.Size != 0 || a.Base+a.Size < a.Base {
		return fmt.Errorf("there is no memory of %d bytes at %#x", a.Size, a.Base)
	}
	return nil
}

// leave counts a mapping out. unwritten is why what was in its memory could not be written, nil if it was written.
func (s *Server) leave(a wire.Attach, region *named, unwritten error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mappings--
	s.frames -= int64(a.Local)
	if region == nil {
		s.size -= int64(a.Size)
		return
	}
	close(region.ended)
	region.ended, region.broken = nil, unwritten
	if region.volume == nil && !region.saved { // its client was refused before there was a volume
		delete(s.named, a.Name)
		s.size -= region.size
	}
}

// newMapping takes a client's memory over. After an error the files are the caller's.
func (s *Server) newMapping(conn *fdpass.Conn, a wire.Attach, region *named, files []*os.File, number int) (*mapping, error) {
	fd, err := uffd.Adopt(files[2])
	if err != nil {
		return nil, err
	}
	memory, err := sealed(files[0], int(a.Size))
	if err != nil {
		return nil, err
	}
	tableFile, err := sealed(files[1], wire.TableSize(a.Size))
	if err != nil {
		return nil, err
	}
	table, err := tableFile.Map(0, tableFile.Size(), true)
	if err != nil {
		return nil, err
	}
	// Only this mapping changes the region's fields meanwhile.
	again := region != nil && (region.volume != nil || region.saved)
	volume, err := s.volume(a, region, number)
	if err != nil {
		return nil, errors.Join(err, table.Close())
	}
	_ = tableFile.Close()
	frames := min(a.Local, a.Size) / pages.Size
	m := &mapping{
		s: s, conn: conn, fd: fd, memory: memory, table: table, base: a.Base, size: int64(a.Size), volume: volume, region: region, again: again,
		jobs: make(chan job, waiting), evict: make(chan struct{}, 1),
		index: make([]uint32, a.Size/pages.Size), frames: make([]frame, frames), free: make([]uint32, frames),
		pins: map[uint64]wire.Request{},
	}
	for i := range m.free {
		m.free[i] = uint32(len(m.free) - 1 - i)
	}
	m.changed.L = &m.mu
	window := max(min(maxWindow, len(m.frames)/32), 4)
	m.streams.Most, m.writes.Most = int64(window), maxWrites
	// There is room for windows that are read and used, and for those that are being dropped: nothing that was read
	// ahead is dropped before it is used.
	m.policy = newPolicy(len(m.frames), m.enough(), max(4*window+2*m.low(), len(m.frames)/16))
	m.ctx, m.end = context.WithCancelCause(s.ctx)
	if err := m.begin(a.Resume); err != nil {
		m.end(err)
		m.close()
		if region != nil && !again {
			volume.Free()
			s.mu.Lock()
			region.volume = nil
			s.mu.Unlock()
		}
		return nil, err
	}
	return m, nil
}

// sealed opens a client's memfd, which must have this size and must be sealed against shrinking.
func sealed(f *os.File, size int) (*arena.Memfd, error) {
	m, err := arena.OpenMemfd(f)
	if err != nil {
		return nil, err
	}
	if m.Size() != size {
		return nil, fmt.Errorf("a memfd has %d bytes, want %d", m.Size(), size)
	}
	return m, m.CheckShrinkSealed()
}

// resume takes over from a pager that has died. Pages in the memory are claimed as dirty; of the others, those that
// only the dead pager had are lost.
func (m *mapping) resume() error {
	m.lost = make([]atomic.Uint64, (len(m.index)+63)/64)
	for i := range m.lost {
		m.lost[i].Store(arena.Word64(m.table.Bytes()[i*8:]).Load() &^ m.keptWord(int64(i)*64).Load())
	}
	fd := int(m.memory.File().Fd())
	for off := int64(0); ; {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err == nil {
			off, err = unix.Seek(fd, data, unix.SEEK_HOLE)
		}
		if err != nil {
			return fmt.Errorf("cannot tell what is in the memory: %w", err)
		}
		for page := data / pages.Size; page < off/pages.Size; page++ {
			at, ok := m.claim(page)
			if !ok {
				return fmt.Errorf("more is in the memory than the %d pages that may be local", len(m.frames))
			}
			m.frames[at].state = dirty
			m.lost[page/64].And(^(uint64(1) << (page % 64)))
		}
	}
	// Accesses that wait for the dead pager try again, and come to this one.
	return m.fd.Protect(m.base, uint64(m.size), false)
}

// run serves a mapping until its client or the server ends it, and returns why.
func (m *mapping) run(a wire.Attach) error {
	defer m.close()
	stop := context.AfterFunc(m.ctx, func() {
		_ = m.conn.Close()
		m.fd.Stop()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.changed.Broadcast()
	})
	defer stop()
	if unwatch, err := m.watch(); err != nil {
		m.end(err)
	} else {
		defer unwatch()
	}
	m.helpers.Go(m.evictor)
	var working sync.WaitGroup
	for range workers {
		working.Go(m.work)
	}
	var faults sync.WaitGroup
	faults.Go(func() { m.end(m.serve()) })
	var err error
	for _, p := range a.Pins {
		if err == nil {
			err = m.pin(p)
		}
	}
	m.greet(err)
	if err == nil {
		if err = m.requests(); errors.Is(err, io.EOF) {
			err = errors.New("its client has ended it")
		}
	}
	m.end(err)
	faults.Wait()
	m.helpers.Wait()
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	close(m.jobs)
	working.Wait()
	if m.region != nil {
		if m.unwritten = m.keepAll(); m.unwritten != nil {
			s := m.s.cfg.Logger
			s.Error("what was in the memory of a region could not be written: its name is of no use until it is removed", "region", m.region.name, "why", m.unwritten)
		}
	}
	return context.Cause(m.ctx)
}

// watch ends the mapping when its client's process dies: a child of the client may still have the connection open.
func (m *mapping) watch() (stop func(), err error) {
	pidfd, err := m.conn.PeerPidFD()
	if err != nil {
		return nil, err
	}
	return m.s.watcher.Watch(pidfd, func() { m.end(errors.New("its client has died")) })
}

// close gives everything back.
//
// Preconditions: nobody uses the mapping any more.
func (m *mapping) close() {
	_ = m.conn.Close()
	m.fd.Close()
	_ = m.memory.Close()
	_ = m.table.Close()
	if m.region == nil {
		m.volume.Free()
	}
}

// Close stops listening and ends all mappings: clients wait for another pager. Closing twice
// is a no-op.
func (s *Server) Close() (err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for lis := range s.lis {
		if e := lis.Close(); !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	s.mu.Unlock()
	s.gate.Close()
	s.end(ErrClosed)
	s.done.Wait()
	s.watcher.Close()
	return err
}
