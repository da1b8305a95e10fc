package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"polder/internal/arena"
	"polder/memnode/wire"
)

// A Ledger is memory that outlives the process. See the package comment.
type Ledger struct {
	form  Form
	file  *arena.Memfd
	mem   *arena.Mapping // the chunks
	books *arena.Mapping // the first page and the sessions
	table *arena.Mapping
	leave func() // called before the file is closed, if it is set
	free  []int  // unused records of sessions; a stack

	// Sessions that an earlier process has left, until TakeLeft.
	left []Session
}

const (
	sessionRecord = 128
	rpcEntry      = 16

	recordOwner  = 0
	recordID     = 8
	recordSecret = 16
	recordEpoch  = 48
	recordHeap   = 56
)

// A Session is a session that an earlier process has left, with its chunks.
type Session struct {
	Record int
	Owner  uint64
	Wire   wire.Session
	Keep   wire.Keep
	Chunks []uint32
}

// create makes a new ledger of the form f, with no sessions and no owners.
func create(f Form) (*Ledger, error) {
	file, err := arena.NewMemfd("polder-node", f.size())
	if err != nil {
		return nil, err
	}
	if err := file.SealSize(); err != nil {
		file.Close()
		return nil, err
	}
	l := &Ledger{form: f, file: file}
	if err := l.open(); err != nil {
		l.Close()
		return nil, err
	}
	copy(l.books.Bytes(), f.encode())
	return l, nil
}

// reopen opens the ledger that a node of an earlier process has left in f. The ledger owns f from then on.
func reopen(f *os.File) (*Ledger, error) {
	file, err := arena.OpenMemfd(f)
	if err != nil {
		return nil, err
	}
	l := &Ledger{file: file}
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
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Ledger) open() (err error) {
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
	for i := f.Sessions - 1; i >= 0; i-- {
		if arena.Word64(l.record(i)).Load() == 0 {
			l.free = append(l.free, i)
		}
	}
	return nil
}

// Close unmaps the memory and closes the file. The Store keeps the memory.
func (l *Ledger) Close() error {
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

// Form returns the ledger's form.
func (l *Ledger) Form() Form { return l.form }

// Memory returns the mapping of the chunks, which stays the ledger's.
func (l *Ledger) Memory() *arena.Mapping { return l.mem }

// MapTable maps the table once more, for a device to write to. The mapping is the caller's.
func (l *Ledger) MapTable() (*arena.Mapping, error) {
	return l.file.Map(l.form.tableAt(), l.form.tableSize(), true)
}

func (l *Ledger) record(i int) []byte {
	return l.books.Bytes()[arena.PageSize+i*sessionRecord:][:sessionRecord]
}

// Full reports whether there is no room for another session.
func (l *Ledger) Full() bool { return len(l.free) == 0 }

// Add writes down a session, before the client is welcomed, and returns the number of its record. owner is the
// session's number in the table.
//
// Preconditions: the ledger is not full, and owner is not 0 and no other session's.
func (l *Ledger) Add(owner uint64, s *wire.Session, k *wire.Keep) (record int) {
	record = l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	b := l.record(record)
	binary.LittleEndian.PutUint64(b[recordID:], s.ID)
	copy(b[recordSecret:], s.Secret[:])
	l.Keep(record, k)
	arena.Word64(b[recordOwner:]).Store(owner)
	return record
}

// Keep writes down how a record's session is kept. If the process is killed meanwhile, the heap's name, which is only
// for people, may be a mixture of the old and the new one.
func (l *Ledger) Keep(record int, k *wire.Keep) {
	b := l.record(record)
	heap := b[recordHeap : recordHeap+wire.MaxHeap]
	clear(heap[copy(heap, k.Heap):])
	arena.Word64(b[recordEpoch:]).Store(k.Epoch)
}

// Drop deletes the session of a record. The session has no chunks.
func (l *Ledger) Drop(record int) {
	arena.Word64(l.record(record)[recordOwner:]).Store(0)
	l.free = append(l.free, record)
}

// Owner is the number of the owner of chunk i, 0 if nobody has it.
func (l *Ledger) Owner(i int) uint64 { return arena.Word64(l.table.Bytes()[i*l.form.stride():]).Load() }

// SetOwner writes down the owner of chunk i, 0 if nobody has it.
func (l *Ledger) SetOwner(i int, owner uint64) {
	arena.Word64(l.table.Bytes()[i*l.form.stride():]).Store(owner)
}

// TakeLeft returns the sessions that an earlier process has left, once.
func (l *Ledger) TakeLeft() []Session {
	left := l.left
	l.left = nil
	return left
}

// read finds the sessions that an earlier process has left, and their chunks. It clears the chunks that nobody has.
func (l *Ledger) read() error {
	had := make(map[uint64]int) // index in l.left, by owner
	ids := make(map[uint64]bool)
	for i := range l.form.Sessions {
		b := l.record(i)
		owner := arena.Word64(b[recordOwner:]).Load()
		if owner == 0 {
			continue
		}
		heap, _, _ := bytes.Cut(b[recordHeap:recordHeap+wire.MaxHeap], []byte{0})
		s := Session{Record: i, Owner: owner, Keep: wire.Keep{Epoch: arena.Word64(b[recordEpoch:]).Load(), Heap: string(heap)}}
		s.Wire.ID = binary.LittleEndian.Uint64(b[recordID:])
		copy(s.Wire.Secret[:], b[recordSecret:])
		if _, ok := had[owner]; ok || ids[s.Wire.ID] || s.Wire.ID == 0 {
			return fmt.Errorf("%w: record %d has a session that is there twice, or has no number", errDamaged, i)
		}
		had[owner], ids[s.Wire.ID] = len(l.left), true
		l.left = append(l.left, s)
	}
	from := 0 // the first of the chunks that nobody has and that are to be cleared
	for i := range l.form.Chunks {
		owner := l.Owner(i)
		if n, ok := had[owner]; ok {
			l.left[n].Chunks = append(l.left[n].Chunks, uint32(i))
			if err := l.clear(from, i); err != nil {
				return err
			}
			from = i + 1
		} else if owner != 0 {
			l.SetOwner(i, 0)
		}
	}
	return l.clear(from, l.form.Chunks)
}

// clear makes the chunks from lo to hi-1 read as zero.
func (l *Ledger) clear(lo, hi int) error {
	from, to := lo*l.form.ChunkSize, hi*l.form.ChunkSize
	first, last := roundUp(from, arena.PageSize), to/arena.PageSize*arena.PageSize
	if last <= first {
		clear(l.mem.Bytes()[from:to])
		return nil
	}
	clear(l.mem.Bytes()[from:first])
	clear(l.mem.Bytes()[last:to])
	return l.Punch(first, last-first)
}

// Punch gives n bytes from offset off of the chunks back to the operating system.
func (l *Ledger) Punch(off, n int) error { return l.file.Punch(l.form.chunksAt()+off, n) }
