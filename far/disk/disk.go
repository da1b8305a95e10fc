package disk

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"polder/far/record"
	"polder/far/store"
)

// Config configures a Store.
type Config struct {
	// Dir is the directory, which is made if it is not there. It is the store's alone.
	Dir string
	// Size is the most bytes of segments. Zero means as many as the disk has room for.
	Size int64
	// SegmentSize is the size of a segment in bytes, a power of two. If the directory has a root, the size that it
	// says counts instead. Zero means 1 MiB.
	SegmentSize int
	// Fresh makes the store begin empty, whatever is there, and remove its data when it is closed. Open then refuses
	// a directory with a heap that is kept.
	Fresh bool
	// Sync makes writes survive a loss of power as soon as they return, and not only when the next root is kept.
	Sync bool
}

const (
	// DefaultSegment is the size of a segment.
	DefaultSegment = 1 << 20

	block    = 4 << 10 // bytes: the disk is read and written in whole blocks
	workers  = 32      // goroutines that read
	mostRead = 256 << 10
)

// ErrInUse: another process has the directory open.
var ErrInUse = errors.New("another process has it open")

// Store is segments in a file. All methods may be called by any number of goroutines.
type Store struct {
	cfg    Config
	lock   *os.File
	data   *os.File
	direct bool

	jobs chan job
	wg   sync.WaitGroup
	ends ends
	bufs chan []byte // of mostRead bytes, aligned: as many as there are workers, and a few for writers

	mu    sync.Mutex
	root  []byte     // nil if there is none
	slots []*segment // nil where nobody has borrowed; under mu
	old   []bool     // slots that an earlier process has used, and nobody has opened again; under mu
	free  []int      // slots that nobody has, without room on the disk; under mu
	ready []int      // slots that nobody has, with room that has been written to; under mu
	lent  int        // slots that are borrowed; under mu

	stuck error // why the first slot that could not be given back, with nobody to be told, could not; under mu

	quit chan struct{} // closed when the store is closed
	once sync.Once     // closes the store
}

// Open opens the directory of cfg. It fails with ErrInUse if another process has it open.
func Open(cfg Config) (_ *Store, err error) {
	if cfg.SegmentSize == 0 {
		cfg.SegmentSize = DefaultSegment
	}
	if n := cfg.SegmentSize; n < store.MinSegmentSize || n > 1<<30 || n&(n-1) != 0 {
		return nil, fmt.Errorf("cannot open %s: a segment of %d bytes, want a power of two from %d to 1 GiB", cfg.Dir, n, store.MinSegmentSize)
	}
	s := &Store{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot open %s: %w", cfg.Dir, err), s.closeFiles())
		}
	}()
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if s.lock, err = os.OpenFile(s.path("lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := lockFile(s.lock); err != nil {
		return nil, err
	}
	if err := s.readRoot(); err != nil {
		return nil, err
	}
	if cfg.Fresh && s.root != nil {
		return nil, errors.New("there is a heap in it that is kept: open that by its name, or remove the directory")
	}
	if err := s.openData(); err != nil {
		return nil, err
	}
	s.bufs = make(chan []byte, workers+4)
	for range cap(s.bufs) {
		s.bufs <- nil // made when it is needed
	}
	s.jobs = make(chan job)
	for range workers {
		s.wg.Go(s.work)
	}
	s.quit = make(chan struct{})
	if cfg.Sync {
		s.wg.Go(s.fill)
	}
	return s, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.cfg.Dir, name) }

// openData opens the file of the segments.
func (s *Store) openData() (err error) {
	flags := os.O_CREATE | os.O_RDWR
	if s.cfg.Fresh {
		flags |= os.O_TRUNC
	}
	if s.cfg.Sync {
		flags |= unix.O_DSYNC
	}
	s.data, err = os.OpenFile(s.path("data"), flags|unix.O_DIRECT, 0o600)
	if s.direct = err == nil; errors.Is(err, unix.EINVAL) { // the file system cannot
		s.data, err = os.OpenFile(s.path("data"), flags, 0o600)
	}
	if err != nil {
		return err
	}
	st, err := s.data.Stat()
	if err != nil {
		return err
	}
	n := int((st.Size() + int64(s.cfg.SegmentSize) - 1) / int64(s.cfg.SegmentSize))
	s.slots, s.old = make([]*segment, n), make([]bool, n)
	for i := range s.old {
		s.old[i] = true
	}
	return nil
}

// Close closes the store, whose segments must not be used any more. It waits for the writes to Copies that were given
// up, and tells if a segment could not be given back after them. If the store is Fresh, its data is removed. Closing
// twice is a no-op.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() { err = s.close() })
	return err
}

func (s *Store) close() error {
	close(s.jobs)
	close(s.quit)
	s.wg.Wait()
	errs := []error{s.stuck}
	if s.cfg.Fresh {
		errs = append(errs, os.Remove(s.path("data")))
	}
	errs = append(errs, s.closeFiles())
	for range cap(s.bufs) {
		errs = append(errs, unmap(<-s.bufs))
	}
	return errors.Join(errs...)
}

func (s *Store) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{s.data, s.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Direct reports whether reads and writes bypass the page cache.
func (s *Store) Direct() bool { return s.direct }

// SegmentSize implements store.Store.
func (s *Store) SegmentSize() int { return s.cfg.SegmentSize }

// Stats is the bytes that are borrowed, and the most that can be, 0 if the disk alone decides.
func (s *Store) Stats() (lent, most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.lent) * int64(s.cfg.SegmentSize), s.cfg.Size
}

// Alloc implements store.Store. It reserves room on the disk.
func (s *Store) Alloc(context.Context) (store.Segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, ok := s.takeReady()
	if !ok {
		var err error
		if slot, err = s.reserve(); err != nil {
			return nil, err
		}
	}
	seg := s.lend(slot)
	seg.fresh = true
	return seg, nil
}

// reserve reserves room on the disk for a slot that nobody has. s.mu must be held.
func (s *Store) reserve() (slot int, err error) {
	size := int64(s.cfg.SegmentSize)
	if most := s.cfg.Size; most > 0 && int64(s.lent+1)*size > most {
		return 0, fmt.Errorf("%w: all of the %d bytes that may be used of %s are", store.ErrStoreFull, most, s.cfg.Dir)
	}
	slot = len(s.slots)
	if n := len(s.free); n > 0 {
		slot = s.free[n-1]
	}
	err = unix.Fallocate(int(s.data.Fd()), 0, int64(slot)*size, size)
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG):
		return 0, fmt.Errorf("%w: the disk of %s has no room for another %d bytes: %w", store.ErrStoreFull, s.cfg.Dir, size, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		err = s.data.Truncate(max(int64(slot+1), int64(len(s.slots))) * size)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot borrow from %s: %w", s.cfg.Dir, err)
	}
	if slot == len(s.slots) {
		s.slots, s.old = append(s.slots, nil), append(s.old, false)
	} else {
		s.free = s.free[:len(s.free)-1]
	}
	return slot, nil
}

// lend makes a segment of a slot. s.mu must be held.
func (s *Store) lend(slot int) *segment {
	seg := &segment{store: s, slot: slot, lost: make(chan struct{})}
	s.slots[slot] = seg
	s.lent++
	return seg
}

// giveBack takes a slot back that nobody has any more. s.mu must be held.
func (s *Store) giveBack(slot int) error {
	if s.cfg.Sync && len(s.ready) < mostReady {
		s.ready = append(s.ready, slot)
		return nil
	}
	return s.discard(slot)
}

// unreturned notes that a slot could not be given back, for Close to tell.
func (s *Store) unreturned(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = cmp.Or(s.stuck, err)
}

// discard gives the room of a slot back to the file system. s.mu must be held.
func (s *Store) discard(slot int) error {
	size := int64(s.cfg.SegmentSize)
	err := unix.Fallocate(int(s.data.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(slot)*size, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // the room is used again with the slot
	}
	if err == nil {
		s.free = append(s.free, slot)
	}
	return err
}

// Root implements store.Keeper.
func (s *Store) Root(context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.root, nil
}

// The file of the root is u64 magic, u64 size of a segment, u32 length of the root, the root, u32 CRC32C of all that.
const (
	rootMagic  = 0x6b736964746f6f72 // "rootdisk"
	rootHeader = 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeRoot(segmentSize int, root []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, rootMagic)
	b = binary.LittleEndian.AppendUint64(b, uint64(segmentSize))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(root)))
	b = append(b, root...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeRoot(b []byte) (segmentSize int, root []byte, err error) {
	n := len(b) - 4
	switch {
	case n < rootHeader || binary.LittleEndian.Uint64(b) != rootMagic:
		return 0, nil, errors.New("it is no root of a heap")
	case crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]):
		return 0, nil, errors.New("its checksum is wrong")
	case int(binary.LittleEndian.Uint32(b[16:])) != n-rootHeader:
		return 0, nil, fmt.Errorf("it is %d bytes, want %d", n-rootHeader, binary.LittleEndian.Uint32(b[16:]))
	}
	size := binary.LittleEndian.Uint64(b[8:])
	if size < store.MinSegmentSize || size > 1<<30 || size&(size-1) != 0 {
		return 0, nil, fmt.Errorf("its segments are %d bytes", size)
	}
	return int(size), b[rootHeader:n:n], nil
}

// readRoot reads the file of the root, if there is one.
func (s *Store) readRoot() error {
	b, err := os.ReadFile(s.path("root"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	size, root, err := decodeRoot(b)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path("root"), err)
	}
	s.cfg.SegmentSize, s.root = size, root
	return nil
}

// SetRoot implements store.Keeper.
func (s *Store) SetRoot(_ context.Context, root []byte) error {
	if len(root) > record.MaxRoot {
		return fmt.Errorf("a root of %d bytes, at most %d are kept", len(root), record.MaxRoot)
	}
	if s.cfg.Fresh {
		return errors.New("the store was opened to keep nothing")
	}
	if err := unix.Fdatasync(int(s.data.Fd())); err != nil {
		return fmt.Errorf("cannot flush %s: %w", s.path("data"), err)
	}
	if err := replace(s.path("root"), encodeRoot(s.cfg.SegmentSize, root)); err != nil {
		return err
	}
	s.mu.Lock()
	s.root = append([]byte(nil), root...)
	s.mu.Unlock()
	return nil
}

// replace makes b the contents of the file at path, safe from a power cut. If it fails, the file has all of b, or
// what it had before.
func replace(path string, b []byte) (err error) {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Reopen implements store.Keeper.
func (s *Store) Reopen(_ context.Context, name string) (store.Segment, error) {
	var slot int
	if n, err := fmt.Sscanf(name, slotName, &slot); n != 1 || err != nil || name != fmt.Sprintf(slotName, slot) {
		return nil, fmt.Errorf("%q is no segment of %s", name, s.cfg.Dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot < 0 || slot >= len(s.slots) {
		return nil, &store.LostError{Segment: s.path("data") + " " + name}
	}
	if !s.old[slot] {
		return nil, fmt.Errorf("%s of %s is open already", name, s.cfg.Dir)
	}
	s.old[slot] = false
	return s.lend(slot), nil
}

// Prune implements store.Keeper.
func (s *Store) Prune(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot, old := range s.old {
		if !old {
			continue
		}
		if err := s.giveBack(slot); err != nil {
			return fmt.Errorf("cannot give back what was in %s: %w", s.path("data"), err)
		}
		s.old[slot] = false
	}
	return nil
}

// Wants implements store.Keeper. What lies on the disk is not moved.
func (s *Store) Wants() bool { return false }
