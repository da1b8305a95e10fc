package keyspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/internal/wal"
	"polder/resp/reply"
)

// Journal says what becomes of changes that no checkpoint of the heap has yet.
type Journal struct {
	// Dir is the directory of the journal, beside the heap. What is in it is replayed when the server is opened,
	// whether Durable is set or not.
	Dir string
	// Log, if set, opens the log that keeps the journal instead of files in Dir. It is called once, and calls replay
	// with each record that the log has.
	Log func(ctx context.Context, replay func(rec []byte) error) (RecordLog, error)
	// Durable makes the server write to the journal what commands have changed, and makes a reply wait until the
	// changes that it shows are committed there: on the disk, or as Log keeps them. Otherwise the heap comes back as
	// its last checkpoint has it.
	Durable bool
	// Every, if more than 0, makes replies wait for that only while there are changes older than Every that are not
	// committed yet. A loss of power may take the changes of up to that much time. If the journal is in files, they
	// still survive the end of the process; a Log may lose them then, too.
	Every time.Duration
	// Tail is how many bytes of the journal call for a checkpoint. About as many bytes have to be replayed after a
	// crash. A batch counts as 512 bytes at least. The default is a quarter of the heap's budget, but from 16 MiB to
	// 64 MiB. The journal may grow to eight times Tail.
	Tail int64
}

// RecordLog keeps the records of a journal, in order. Its methods are for any number of goroutines, except Begin and
// Close.
type RecordLog interface {
	// Begin drops the records that were replayed, when a checkpoint of the heap has their changes. Nothing is
	// appended before that.
	Begin(ctx context.Context) error
	// Append adds a record of up to MaxRecord bytes, and returns its number. It does not wait for the record to be
	// kept.
	Append(rec []byte) (uint64, error)
	MaxRecord() int
	// Last is the number of the last record that was appended.
	Last() uint64
	// Commit, with sync, returns when all records up to number survive everything that the log can make them survive.
	// Without sync, a log in files returns when they survive the process; another log need not wait for anything,
	// since the caller calls Commit with sync soon (Journal.Every).
	Commit(number uint64, sync bool) error
	// Copies says how many copies there are of the records that were committed, and whether these survive a loss of
	// power.
	Copies() (n int, disk bool)
	// Snapshot is called while nobody appends, because a checkpoint of the heap is being taken. When the checkpoint
	// counts, save is called: it replaces all records up to the call of Snapshot by the one record name. If the
	// checkpoint fails, discard is called instead.
	Snapshot(name []byte) (save func() error, discard func())
	// Starved returns why there is no room for more records, and nil if there is room.
	Starved() error
	// Abandon makes all calls fail that wait for room, now and later: the server ends, and no longer waits for what
	// may never come.
	Abandon()
	// Close keeps what was appended, and fails if that cannot be done soon.
	Close() error
}

// files is a RecordLog in files.
type files struct{ *wal.Log }

func (f files) Begin(context.Context) error { return nil }
func (f files) MaxRecord() int              { return longestRecord + 9 }
func (f files) Copies() (int, bool)         { return 1, true }
func (f files) Abandon()                    {} // nobody waits for room on a disk

func (f files) Snapshot(name []byte) (save func() error, discard func()) {
	s := f.Log.Snapshot()
	s.Add(name)
	return func() error { return f.Save(s) }, s.Discard
}

// openFiles opens a journal in files. It has starved called when there is no room for more records.
func openFiles(dir string, starved func(error), replay func(rec []byte) error) (RecordLog, error) {
	restarted, remember := wal.Restarted(filepath.Join(dir, "boot"))
	log, _, err := wal.Open(dir, wal.Options{SegmentSize: journalSegment, Restarted: restarted, Starved: starved}, replay)
	if err != nil {
		return nil, err
	}
	if err := remember(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return files{log}, nil
}

const (
	leastTail, mostTail = 16 << 20, 64 << 20

	// longestTail is how many times Journal.Tail the journal may hold before commands that write are refused. From
	// longTail on these commands are slowed down, so that the rest of longestTail is enough for the time lasting: a
	// checkpoint ends before.
	longestTail = 8
	longTail    = longestTail / 2
	lasting     = 10 * time.Second

	journalSegment = 8 << 20
	longestRecord  = 4 << 20

	// replayAhead is how many batches are read before their changes are made: what these need from far memory is then
	// read at once.
	replayAhead = 4096

	// leastCost is how many bytes a batch counts in a tail at least, since to replay a short change takes as long as
	// to replay one of that length.
	leastCost = 512
)

// What a command has changed is a batch of changes, each of which is
//
//	u8 op, u8 tag, u64 milliseconds since 1970 when it expires, 0 for never
//	u32 arguments, and for each: u32 length, and so many bytes
//
// A change says what has come of a command and not what the command was. So replay has the same result whatever the
// time is then, and whatever is scarce then. A batch is one record, or several consecutive records, each of which is
//
//	u64 number of the batch, u8 1 if more of the batch follows, else 0, and the next bytes of the batch
//
// The only record of the log's checkpoint is u64 name of the journal. The heap's checkpoint has that name, too.
const (
	opPut    uint8 = 1 + iota // key, value; a large hash keeps its fields
	opDel                     // key
	opTable                   // key, and fields and values by turns: all of a large hash
	opFields                  // key, and fields and values by turns, of a large hash
	opRemove                  // key, and fields of a large hash
	opMove                    // key of a large hash, and the key that gets the hash
	opCopy                    // key of a large hash, and the key that gets a copy
	opFlush                   // a key that is empty
)

// journal is the open journal of a space. A nil *journal keeps nothing.
type journal struct {
	cfg  Journal
	name uint64
	log  RecordLog // nil while it is replayed
	warn func(error)

	last    atomic.Uint64 // number of the last record
	synced  atomic.Int64  // with Every: changes made before this time are committed; in ns since 1970
	why     atomic.Pointer[error]
	long    atomic.Bool   // commands that write are slowed down,
	tooLong atomic.Bool   // or refused
	due     chan struct{} // capacity 1: there should be a checkpoint

	mu    sync.Mutex // held while a batch is appended, so that records are in the order of batches
	batch uint64     // number of the last batch
	tail  int64      // bytes of the batches that no checkpoint has; each batch counts leastCost at least
	paced time.Time  // when the next command that is slowed down may run
	buf   []byte
}

// openJournal replays the journal of a heap that is kept. If a journal is configured, it keeps it open from then on.
// No client can change anything yet, but checkpoints may be taken.
func (sp *Space) openJournal(ctx context.Context) error {
	cfg := sp.cfg.Journal
	inFiles := cfg.Log == nil
	if sp.keptJournal == 0 && inFiles && cfg.Dir != "" {
		// What is in Dir is older than the heap, or a later checkpoint has all of it.
		if err := os.RemoveAll(cfg.Dir); err != nil {
			return fmt.Errorf("cannot begin a journal: %w", err)
		}
	}
	if sp.keptJournal == 0 && !cfg.Durable {
		sp.heap.KeepState(sp.keepState)
		return nil
	}
	if sp.keptJournal != 0 && inFiles {
		if _, err := os.Stat(cfg.Dir); err != nil {
			return fmt.Errorf("the heap has a journal, without which it is not what clients were promised: %w", err)
		}
	}
	changed, err := sp.replay(ctx)
	if err != nil {
		return fmt.Errorf("cannot replay the journal: %w", err)
	}
	j := sp.journal
	if !cfg.Durable {
		st := &sp.Stripes[0]
		st.Mu.Lock()
		sp.journal = nil
		st.Mu.Unlock()
	}
	if sp.keptJournal != 0 && cfg.Durable && inFiles {
		j.start(sp)
		return nil
	}
	// A checkpoint of the heap has to name the journal before there is anything in it, and has to have all its
	// changes before it goes. Also, that checkpoint settles which records of the process before count: copies of
	// these lie elsewhere, and the process after this one must not come to another result. If the heap's checkpoint
	// names the journal already and has all of it, as after an end in good order, no other checkpoint is needed.
	if sp.keptJournal == 0 || !cfg.Durable || changed {
		err = sp.patiently(ctx, sp.heap.Checkpoint)
	}
	if err == nil {
		err = sp.patiently(ctx, func(ctx context.Context) error { return sp.beginLog(ctx, j.log) })
	}
	if err != nil {
		return errors.Join(err, j.log.Close())
	}
	if !cfg.Durable {
		err := j.log.Close()
		if err == nil && inFiles {
			err = os.RemoveAll(cfg.Dir)
		}
		return err
	}
	j.start(sp)
	return nil
}

// beginLog begins the log. Where far memory is full, the log may need a segment that only a checkpoint gives back:
// then beginLog takes a checkpoint and tries again.
func (sp *Space) beginLog(ctx context.Context, log RecordLog) error {
	err := log.Begin(ctx)
	for tries := 0; errors.Is(err, far.ErrStoreFull) && tries < mostBegins; tries++ {
		if why := sp.heap.Checkpoint(ctx); why != nil {
			return errors.Join(err, why)
		}
		err = log.Begin(ctx)
	}
	return err
}

// mostBegins is how many checkpoints beginLog takes at most.
const mostBegins = 10

// patiently does something that a start needs. It tries again and again until Config.OpTimeout has passed, since a
// node that was slow for a moment counts as not answering for a while.
func (sp *Space) patiently(ctx context.Context, do func(context.Context) error) error {
	for began := time.Now(); ; {
		err := do(ctx)
		if err == nil || errors.Is(err, far.ErrStoreFull) || errors.Is(err, far.ErrSuperseded) || time.Since(began) > sp.cfg.OpTimeout {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// start starts the journal's goroutines, which run beside commands.
func (j *journal) start(sp *Space) {
	sp.wg.Go(func() { j.checkpoints(sp) })
	if j.cfg.Every > 0 {
		j.synced.Store(time.Now().UnixNano())
		sp.wg.Go(func() { j.syncs(sp) })
	}
}

// append appends the notes of what a command has changed as a batch. The locks of the command's keys must be held.
func (j *journal) append(notes []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.batch++
	j.tail += max(int64(len(notes)), leastCost)
	for more := true; more; {
		n := min(len(notes), longestRecord, j.log.MaxRecord()-9)
		more = n < len(notes)
		j.buf = binary.LittleEndian.AppendUint64(j.buf[:0], j.batch)
		j.buf = append(j.buf, 0)
		if more {
			j.buf[8] = 1
		}
		j.buf = append(j.buf, notes[:n]...)
		notes = notes[n:]
		lsn, err := j.log.Append(j.buf)
		if err != nil {
			j.fail(err)
			return
		}
		j.last.Store(lsn)
	}
	Reuse(&j.buf, j.buf)
	if j.tail >= j.cfg.Tail {
		j.measure()
		j.wantCheckpoint()
	}
}

// measure sets long and tooLong according to the tail. j.mu must be held.
func (j *journal) measure() {
	if long := j.tail >= longTail*j.cfg.Tail; j.long.Load() != long {
		j.long.Store(long)
		j.paced = time.Time{}
	}
	j.tooLong.Store(j.tail >= longestTail*j.cfg.Tail)
}

// pace returns how long a command that writes n bytes has to wait before it runs. That is no longer than most.
func (j *journal) pace(n int, most time.Duration) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if j.paced.Before(now) {
		j.paced = now
	}
	wait := j.paced.Sub(now)
	if wait >= most {
		return most
	}
	left := max(longestTail*j.cfg.Tail-j.tail, leastCost)
	j.paced = j.paced.Add(min(most, time.Duration(float64(max(n, leastCost))/float64(left)*float64(lasting))))
	return wait
}

func (j *journal) wantCheckpoint() {
	select {
	case j.due <- struct{}{}:
	default:
	}
}

// fail is called when memory has changes that are not in the journal, and never will be. From now on no reply shows
// what memory has.
func (j *journal) fail(err error) {
	if j.why.CompareAndSwap(nil, &err) {
		j.warn(fmt.Errorf("nothing is answered any more: %w", err))
	}
}

// refuses returns why a command about keys must not run; nil if it may.
func (j *journal) refuses(write bool) error {
	if err := j.why.Load(); err != nil {
		return reply.Error("MISCONF the journal cannot be written, and the server has to be started again: " + (*err).Error())
	}
	if !write {
		return nil
	}
	if err := j.log.Starved(); err != nil {
		return reply.Error("MISCONF there is no room for the journal: " + err.Error())
	}
	if j.tooLong.Load() {
		return reply.Error("MISCONF the journal is too long: checkpoints fail, which the log of the server says, or do not keep up with so many clients that write")
	}
	return nil
}

// settle waits until replies may show what was there at the record lsn. It returns false if they never may.
func (j *journal) settle(lsn uint64) bool {
	if j.why.Load() != nil {
		return false
	}
	sync := j.cfg.Every == 0 || time.Now().UnixNano()-j.synced.Load() > int64(j.cfg.Every)
	if err := j.log.Commit(lsn, sync); err != nil {
		j.fail(err)
		return false
	}
	return true
}

// note adds a change to the notes of the command for the journal. The arguments are copied.
func (a *Access) note(op uint8, e far.Entry, key []byte, args ...[]byte) {
	if a.Space.journal == nil || a.replays {
		return
	}
	b := append(a.notes, op, e.Tag)
	expire := uint64(0)
	if !e.Expire.IsZero() {
		expire = uint64(e.Expire.UnixMilli())
	}
	b = binary.LittleEndian.AppendUint64(b, expire)
	b = binary.LittleEndian.AppendUint32(b, uint32(1+len(args)))
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(key))), key...)
	for _, arg := range args {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(arg))), arg...)
	}
	a.notes = b
}

// noteTable notes that h has exactly the fields and values of t.
func (a *Access) noteTable(h *Hash, t *hashTable) {
	if a.Space.journal == nil || a.replays {
		return
	}
	var all Pairs
	for _, l := range t.lists {
		for f, v := range l.All() {
			all = append(all, f, v)
		}
	}
	a.note(opTable, h.e, h.key, all...)
}

// freeze is called while nothing changes, before a checkpoint of the heap. It returns the journal's name and the
// number of its last batch, which the checkpoint keeps, and the function to be called when the checkpoint counts or
// has failed.
func (j *journal) freeze() (name, batch uint64, kept func(error)) {
	if j == nil {
		return 0, 0, nil
	}
	if j.log == nil { // it is being replayed
		return j.name, j.batch, nil
	}
	save, discard := j.log.Snapshot(binary.LittleEndian.AppendUint64(nil, j.name))
	tail := j.tail
	return j.name, j.batch, func(err error) {
		if err != nil {
			discard()
			return
		}
		if err := save(); err != nil {
			j.warn(err)
			return
		}
		j.mu.Lock()
		j.tail -= tail
		j.measure()
		j.mu.Unlock()
	}
}

// syncs commits the journal, with sync, after each half of Journal.Every (at least a millisecond), until the space
// ends.
func (j *journal) syncs(sp *Space) {
	t := time.NewTicker(max(j.cfg.Every/2, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-sp.ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now().UnixNano()
		if err := j.log.Commit(j.last.Load(), true); err != nil {
			j.fail(err)
			return
		}
		j.synced.Store(now)
	}
}

// checkpoints takes a checkpoint whenever the journal has become long, until the space ends.
func (j *journal) checkpoints(sp *Space) {
	for {
		select {
		case <-sp.ctx.Done():
			return
		case <-j.due:
		}
		if err := sp.heap.Checkpoint(sp.ctx); err != nil && sp.ctx.Err() == nil {
			j.warn(err)
			select {
			case <-sp.ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// closeJournal closes the journal of a space that nobody uses any more. The heap takes a checkpoint when it is
// closed, and then no longer needs the journal.
func (sp *Space) closeJournal() {
	if j := sp.journal; j != nil && j.log != nil {
		if err := j.log.Close(); err != nil {
			j.warn(err)
		}
	}
}
