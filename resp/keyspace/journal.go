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
	// durable or not.
	Dir string
	// Log, if it is set, is what keeps the journal in the place of files in Dir. It is called once, and gives replay the records
	// that there are.
	Log func(ctx context.Context, replay func(rec []byte) error) (RecordLog, error)
	// Durable has the server write what commands have changed to the journal, and a reply wait until what it shows
	// is on the disk. Without, the heap comes back as its last checkpoint has it.
	Durable bool
	// Every, if more than 0, has replies wait only while changes that are older than that are not on the disk
	// yet. They survive the process at once, but a loss of power takes up to that much.
	Every time.Duration
	// Tail is how many bytes of the journal call for a checkpoint, which is about what has to be replayed after a
	// crash; a batch counts as 512 bytes at least. The default is a quarter of the heap's budget, from 16 MiB to 64 MiB. The
	// journal takes up to eight times as much.
	Tail int64
}

// RecordLog keeps the records of a journal, in order. Any number of goroutines use it, but Begin and Close.
type RecordLog interface {
	// Begin drops what was replayed, which a checkpoint of the heap has. Only then is anything appended.
	Begin(ctx context.Context) error
	// Append adds a record of up to MaxRecord bytes, and returns its number. It does not wait for the record to be kept.
	Append(rec []byte) (uint64, error)
	MaxRecord() int
	// Last is the number of the last record that was appended.
	Last() uint64
	// Commit returns when all up to a record survive the process; and, if sync, all else that the log can have them survive.
	Commit(number uint64, sync bool) error
	// Copies says how many copies there are of what was committed, and whether it survives a loss of power.
	Copies() (n int, disk bool)
	// Snapshot is called while nobody appends. The record name is to take the place of all that there are so far when a
	// checkpoint of the heap has them: then save is called, or else discard.
	Snapshot(name []byte) (save func() error, discard func())
	// Starved is why there is no room for more, nil if there is.
	Starved() error
	// Abandon has all fail that wait for room, now and later: the server ends, and waits no longer for what may never come.
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

// openFiles opens a journal in files. When there is no room for more, starved is called.
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

	// longestTail is how many tails there may be before commands that write are refused. From longTail on they are slowed down, so that what is left of
	// longestTail lasts for lasting: a checkpoint ends before.
	longestTail = 8
	longTail    = longestTail / 2
	lasting     = 10 * time.Second

	journalSegment = 8 << 20
	longestRecord  = 4 << 20

	// replayAhead is how many changes are looked at before they are made: what they need from far memory is read at once.
	replayAhead = 4096

	// leastCost is what a batch counts at least in a tail: to make a short change again takes as long as a longer one.
	leastCost = 512
)

// What a command has changed is a batch of changes, each of which is
//
//	u8 op, u8 tag, u64 milliseconds since 1970 when it expires, 0 for never
//	u32 arguments, and for each: u32 length, and so many bytes
//
// Changes say what has come of a command and not what it was, so that time and what is short now change nothing when they are
// made again. A batch is one record or several that follow each other, of which each is
//
//	u64 number of the batch, u8 whether more of it follows, and so much of the batch
//
// The only record of the log's checkpoint is u64 name of the journal, which the heap's checkpoint has, too.
const (
	opPut    uint8 = 1 + iota // key, value; a large hash keeps its fields
	opDel                     // key
	opTable                   // key, and fields and values by turns: all of a large hash
	opFields                  // key, and fields and values by turns, of a large hash
	opRemove                  // key, and fields of a large hash
	opMove                    // key of a large hash, and the one that gets it
	opCopy                    // key of a large hash, and the one that gets a copy
	opFlush                   // a key that is empty
)

// journal is the open journal of a space. A nil one keeps nothing.
type journal struct {
	cfg  Journal
	name uint64
	log  RecordLog // nil while it is replayed
	warn func(error)

	last    atomic.Uint64 // number of the last record
	synced  atomic.Int64  // with Every: what is older is on the disk, in ns since 1970
	why     atomic.Pointer[error]
	long    atomic.Bool   // commands that write are slowed down,
	tooLong atomic.Bool   // or refused
	due     chan struct{} // capacity 1: there should be a checkpoint

	mu    sync.Mutex // records are in the order of batches
	batch uint64     // number of the last one
	tail  int64      // bytes of them that no checkpoint has, of each at least leastCost
	paced time.Time  // when the last of the commands that were slowed down is to run
	buf   []byte
}

// openJournal replays the journal of a heap that is kept, and opens it if there is to be one. There are no clients yet
// that could change anything, but checkpoints may be taken.
func (sp *Space) openJournal(ctx context.Context) error {
	cfg := sp.cfg.Journal
	inFiles := cfg.Log == nil
	if sp.keptJournal == 0 && inFiles && cfg.Dir != "" {
		// What is there was made before the heap, or there was a checkpoint since that has all of it.
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
	// The heap has to know the journal before there is anything in it, and before it goes. What others have kept for the
	// process before must not count in another way for the one after.
	// If it knows the journal and has all of it, as after an end in good order, that is so already.
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

// beginLog begins the log. Where far memory is full, it may have to wait for a segment that a checkpoint gives back.
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

// mostBegins is how many checkpoints are taken at most for a log that finds no room.
const mostBegins = 10

// patiently does something that a start needs, again and again while nodes that were slow for a moment count as such that do not answer.
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

// start begins what goes on beside commands.
func (j *journal) start(sp *Space) {
	sp.wg.Go(func() { j.checkpoints(sp) })
	if j.cfg.Every > 0 {
		j.synced.Store(time.Now().UnixNano())
		sp.wg.Go(func() { j.syncs(sp) })
	}
}

// append adds what a command has changed, under the locks of its keys.
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

// measure takes note of how long the journal is. j.mu must be held.
func (j *journal) measure() {
	if long := j.tail >= longTail*j.cfg.Tail; j.long.Load() != long {
		j.long.Store(long)
		j.paced = time.Time{}
	}
	j.tooLong.Store(j.tail >= longestTail*j.cfg.Tail)
}

// pace is how long a command that writes n bytes has to wait before it runs, and at most so long.
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

// fail is called when what is in memory is not in the journal, and never will be. From now on nothing of it is shown.
func (j *journal) fail(err error) {
	if j.why.CompareAndSwap(nil, &err) {
		j.warn(fmt.Errorf("nothing is answered any more: %w", err))
	}
}

// refuses is why a command that concerns keys is not run.
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

// settle returns when what was there at the record lsn may be shown, or false if it never may.
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

// note remembers a change for the journal. It is copied.
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

// noteTable remembers that h is what t has.
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

// freeze is called while nothing changes. It returns what the heap's checkpoint is to know, and what to do when it counts.
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

// syncs brings the journal to the disk every so often, until the space ends.
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

// checkpoints takes one when the journal is long, until the space ends.
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

// closeJournal ends the journal of a space that nobody uses any more. When the heap is closed it has no need of it.
func (sp *Space) closeJournal() {
	if j := sp.journal; j != nil && j.log != nil {
		if err := j.log.Close(); err != nil {
			j.warn(err)
		}
	}
}
