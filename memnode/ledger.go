package memnode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	"polder/internal/arena"
	"polder/memnode/wire"
	"polder/verbs"
)

// A ledger is memory that outlives the process, a memfd: what is lent, and before it what
// the next process has to know, namely who has which chunk, and the sessions. See the
// package comment.
//
// Everything is little-endian. On the first page:
//
//	 0  u64  magic "PMNLEDGR"
//	 8  u32  version of the layout
//	12  u32  CRC32C of what follows, up to byte 64
//	16  [16] name of the manager, padded with zeros
//	32  u64  chunk size in bytes
//	40  u64  chunks
//	48  u64  most sessions
//	56  u64  0
//
// then, each from a page on, the sessions, of sessionRecord bytes each:
//
//	 0  u64  number of the owner, 0: there is no session here
//	 8  u64  id
//	16  [32] secret
//	48  u64  epoch of its keep, 0: it is not kept
//	56  [32] name of the heap, padded with zeros
//
// the table, whose entries begin with the number of who owns the chunk, 0 if nobody does
// (entries of the managers whose NIC writes to it are of verbs.EntrySize bytes, and the
// rest of them is not used again); and the chunks.
//
// Nothing is written twice before it counts: a word of 8 bytes is what changes, and it is
// changed before the client is answered. So the process can be killed at any instruction.
//
//   - A session is there once its owner's number is, which is written last.
//   - A chunk is its owner's once the number is there, and before that it reads as zero.
//     What nobody owns may have any content: the next process zeroes it before it lends it.
//   - A chunk whose owner has no session, since the process was killed while it reclaimed
//     what that had, is nobody's.
//
// It belongs to the control goroutine, but for the table's entries that the NIC writes.
type ledger struct {
	form  form
	file  *arena.Memfd
	mem   *arena.Mapping // the chunks
	books *arena.Mapping // the first page and the sessions
	table *arena.Mapping
	leave func() // called before the file is closed, if it is set
	free  []int  // records of sessions that are not used; a stack

	// What an earlier process has left, until the node has it.
	left []*session
	had  map[uint64][]uint32 // chunks by owner
}

const (
	ledgerMagic   = 0x5247_4445_4c4e_4d50 // "PMNLEDGR"
	ledgerVersion = 1
	formSize      = 64

	sessionRecord = 128
	rpcEntry      = 16

	recordOwner  = 0
	recordID     = 8
	recordSecret = 16
	recordEpoch  = 48
	recordHeap   = 56
)

// A form is what the first page says, and where the rest follows from.
type form struct {
	manager   string
	chunkSize int
	chunks    int
	sessions  int
}

// errDamaged is the error for a first page, or a session, that no node has written.
var errDamaged = errors.New("it is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (f *form) encode() []byte {
	b := make([]byte, formSize)
	le := binary.LittleEndian
	le.PutUint64(b, ledgerMagic)
	le.PutUint32(b[8:], ledgerVersion)
	copy(b[16:16+wire.MaxName], f.manager)
	le.PutUint64(b[32:], uint64(f.chunkSize))
	le.PutUint64(b[40:], uint64(f.chunks))
	le.PutUint64(b[48:], uint64(f.sessions))
	le.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
	return b
}

// decode sets f from a first page, of a file of size bytes.
func (f *form) decode(b []byte, size int) error {
	if len(b) < formSize {
		return fmt.Errorf("%w: it has %d bytes", errDamaged, len(b))
	}
	b = b[:formSize]
	le := binary.LittleEndian
	switch {
	case le.Uint64(b) != ledgerMagic:
		return fmt.Errorf("%w: it is not a memory node's", errDamaged)
	case le.Uint32(b[8:]) != ledgerVersion:
		return fmt.Errorf("its layout is version %d, and this program knows version %d: start the program that has written it, "+
			"or let go of the memory, which ends with its keeper, or when the service is stopped (and not restarted)", le.Uint32(b[8:]), ledgerVersion)
	case le.Uint32(b[12:]) != crc32.Checksum(b[16:], castagnoli):
		return fmt.Errorf("%w: its first page has another checksum", errDamaged)
	}
	name, _, _ := bytes.Cut(b[16:16+wire.MaxName], []byte{0})
	chunkSize, chunks, sessions := le.Uint64(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:])
	entry, ok := wire.ManagerNamed(string(name))
	switch {
	case !ok || !entry.Keeps:
		return fmt.Errorf("%w: the manager is %q", errDamaged, name)
	case chunkSize < MinChunkSize || chunkSize > MaxChunkSize || chunkSize&(chunkSize-1) != 0, chunks == 0 || chunks > maxChunks, sessions == 0 || sessions > 1<<24:
		return fmt.Errorf("%w: %d chunks of %d bytes, %d sessions", errDamaged, chunks, chunkSize, sessions)
	}
	*f = form{string(name), int(chunkSize), int(chunks), int(sessions)}
	if want := f.size(); size != want {
		return fmt.Errorf("%w: it has %d bytes, want %d", errDamaged, size, want)
	}
	return nil
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// stride is the size of an entry of the table.
func (f *form) stride() int {
	if f.manager == RPCMW {
		return rpcEntry
	}
	return verbs.EntrySize
}

// tableAt is where the table begins, and chunksAt where the chunks do, in bytes.
func (f *form) tableAt() int {
	return arena.PageSize + roundUp(f.sessions*sessionRecord, arena.PageSize)
}

func (f *form) chunksAt() int {
	return roundUp(f.tableAt()+f.tableSize(), min(max(f.chunkSize, arena.PageSize), arena.HugePageSize))
}

func (f *form) tableSize() int { return roundUp(f.chunks*f.stride(), arena.PageSize) }
func (f *form) memSize() int   { return roundUp(f.chunks*f.chunkSize, arena.PageSize) }
func (f *form) size() int      { return f.chunksAt() + f.memSize() }

// newLedger makes memory for what cfg says, in which nobody has anything.
func newLedger(cfg *Config) (*ledger, error) {
	f := form{manager: cfg.Manager, chunkSize: cfg.ChunkSize, chunks: cfg.chunks(), sessions: cfg.MaxClients}
	file, err := arena.NewMemfd("polder-node", f.size())
	if err != nil {
		return nil, err
	}
	if err := file.SealSize(); err != nil {
		file.Close()
		return nil, err
	}
	l := &ledger{form: f, file: file}
	if err := l.open(); err != nil {
		l.close()
		return nil, err
	}
	copy(l.books.Bytes(), f.encode())
	return l, nil
}

// openLedger opens what a node of an earlier process has left in f, which is the ledger's
// from then on.
func openLedger(f *os.File) (*ledger, error) {
	file, err := arena.OpenMemfd(f)
	if err != nil {
		return nil, err
	}
	l := &ledger{file: file}
	b := make([]byte, formSize)
	if _, err = f.ReadAt(b, 0); err == nil {
		err = l.form.decode(b, file.Size())
	} else {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err == nil {
		err = l.open()
	}
	if err == nil {
		err = l.read()
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *ledger) open() (err error) {
	f := &l.form
	if l.books, err = l.file.Map(0, f.tableAt(), true); err != nil {
		return err
	}
	if l.table, err = l.file.Map(f.tableAt(), f.tableSize(), true); err != nil {
		return err
	}
	if l.mem, err = l.file.Map(f.chunksAt(), f.memSize(), true); err != nil {
		return err
	}
	for i := f.sessions - 1; i >= 0; i-- {
		if arena.Word64(l.record(i)).Load() == 0 {
			l.free = append(l.free, i)
		}
	}
	return nil
}

// close lets go of the memory, which stays with whoever keeps it.
func (l *ledger) close() error {
	if l.leave != nil {
		l.leave()
	}
	var errs []error
	for _, m := range []*arena.Mapping{l.mem, l.table, l.books} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(append(errs, l.file.Close())...)
}

// mapTable maps the table once more, for a device to write to.
func (l *ledger) mapTable() (*arena.Mapping, error) {
	return l.file.Map(l.form.tableAt(), l.form.tableSize(), true)
}

func (l *ledger) record(i int) []byte {
	return l.books.Bytes()[arena.PageSize+i*sessionRecord:][:sessionRecord]
}

// full reports whether there is no room for another session.
func (l *ledger) full() bool { return len(l.free) == 0 }

// add writes s down, before it is welcome.
//
// Preconditions: the ledger is not full.
func (l *ledger) add(s *session) {
	s.record = l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	b := l.record(s.record)
	binary.LittleEndian.PutUint64(b[recordID:], s.wire.ID)
	copy(b[recordSecret:], s.wire.Secret[:])
	l.keep(s)
	arena.Word64(b[recordOwner:]).Store(s.owner)
}

// keep writes down how s is kept. If the process is killed in between, the heap's name,
// which is for people, may be a mixture.
func (l *ledger) keep(s *session) {
	b := l.record(s.record)
	heap := b[recordHeap : recordHeap+wire.MaxHeap]
	clear(heap[copy(heap, s.keep.Heap):])
	arena.Word64(b[recordEpoch:]).Store(s.keep.Epoch)
}

// drop strikes s out, which has no chunk.
func (l *ledger) drop(s *session) {
	arena.Word64(l.record(s.record)[recordOwner:]).Store(0)
	l.free = append(l.free, s.record)
}

// owner is who has chunk i.
func (l *ledger) owner(i int) uint64 { return arena.Word64(l.table.Bytes()[i*l.form.stride():]).Load() }

func (l *ledger) setOwner(i int, owner uint64) {
	arena.Word64(l.table.Bytes()[i*l.form.stride():]).Store(owner)
}

// read finds the sessions that an earlier process has left, and who has which chunks. What
// nobody has is cleared.
func (l *ledger) read() error {
	chunks := make(map[uint64][]uint32)
	ids := make(map[uint64]bool)
	for i := range l.form.sessions {
		b := l.record(i)
		owner := arena.Word64(b[recordOwner:]).Load()
		if owner == 0 {
			continue
		}
		heap, _, _ := bytes.Cut(b[recordHeap:recordHeap+wire.MaxHeap], []byte{0})
		s := &session{owner: owner, record: i, keep: wire.Keep{Epoch: arena.Word64(b[recordEpoch:]).Load(), Heap: string(heap)}}
		s.wire.ID = binary.LittleEndian.Uint64(b[recordID:])
		copy(s.wire.Secret[:], b[recordSecret:])
		if _, ok := chunks[owner]; ok || ids[s.wire.ID] || s.wire.ID == 0 {
			return fmt.Errorf("%w: record %d has a session that is there twice, or has no number", errDamaged, i)
		}
		chunks[owner], ids[s.wire.ID] = nil, true
		l.left = append(l.left, s)
	}
	from := 0 // of what nobody has
	for i := range l.form.chunks {
		owner := l.owner(i)
		if list, ok := chunks[owner]; ok {
			chunks[owner] = append(list, uint32(i))
			if err := l.clear(from, i); err != nil {
				return err
			}
			from = i + 1
		} else if owner != 0 {
			l.setOwner(i, 0)
		}
	}
	l.had = chunks
	return l.clear(from, l.form.chunks)
}

// clear makes the chunks from lo to hi read as zero.
func (l *ledger) clear(lo, hi int) error {
	from, to := lo*l.form.chunkSize, hi*l.form.chunkSize
	first, last := roundUp(from, arena.PageSize), to/arena.PageSize*arena.PageSize
	if last <= first {
		clear(l.mem.Bytes()[from:to])
		return nil
	}
	clear(l.mem.Bytes()[from:first])
	clear(l.mem.Bytes()[last:to])
	return l.punch(first, last-first)
}

// punch gives n bytes of the chunks from off on back to the operating system.
func (l *ledger) punch(off, n int) error { return l.file.Punch(l.form.chunksAt()+off, n) }
