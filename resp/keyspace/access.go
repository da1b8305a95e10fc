package keyspace

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/resp/reply"
	"polder/soft"
)

// Tags of entries in the map of keys.
const (
	TagString uint8 = iota // a string
	TagText                // a string that Redis does not keep as an integer, even if it is one
	TagRaw                 // a string that Redis calls raw whatever its length
	TagHash                // a hash that Redis would keep in a listpack
	TagTable               // a hash that Redis would keep in a table, here one entry
	TagLarge               // a hash in blocks; the value is empty
)

// IsHash and IsString say what the value of an entry with a tag is.
func IsHash(tag uint8) bool   { return tag >= TagHash }
func IsString(tag uint8) bool { return tag <= TagRaw }

// Access is how one client uses a space: one command after the other, each under the locks of its keys. It is for one
// goroutine at a time.
type Access struct {
	Space *Space // see Use

	// OnWait, if set, is called before the access may block: the driver's goroutine then need not come back soon.
	// args are the arguments of the command if its handler does not run yet: OnWait may move them, and the buffers,
	// to other memory. Otherwise args is nil.
	OnWait func(args [][]byte)

	// Scratch and Scratch2 are memory for values that are being worked on. Whoever has the command run lends it.
	Scratch, Scratch2 []byte

	Tries   int           // how often the command that runs has blocked
	Arrived time.Duration // when the command arrived, on any clock that only goes forward

	Dirty atomic.Bool // a watched key has changed, or its partition has gone to another server

	// The fields up to changes are about the command that runs.
	ctx        context.Context // far.NoWait, or with the deadline once waiting
	cancel     context.CancelFunc
	wanted     stripeSet // stripes that it is about to lock
	held       []uint32  // stripes it has locked, ascending
	heldWrite  bool
	wantBlocks [][]byte // keys of hash blocks it needs
	lookups
	changes

	watching []watched
	watchLen int // bytes in watching and in the space's table for it

	unstored soft.Misses // in a cache: the keys that the client has missed and not stored since
	replays  bool        // this access replays the journal
}

// MaxTries is how often a command is run with far.NoWait before it waits with
// its locks held.
const MaxTries = 3

// Use makes sp the space of the commands that follow. It also makes a zero Access ready.
func (a *Access) Use(sp *Space) {
	a.Space, a.txn = sp, nil
	if a.ctx == nil {
		a.ctx = far.NoWait
	}
}

// Wait lets the command wait from now on, until its deadline.
func (a *Access) Wait() { a.ctx, a.cancel = context.WithTimeout(a.Space.ctx, a.Space.cfg.OpTimeout) }

// Context returns the context of the command that runs.
func (a *Access) Context() context.Context { return a.ctx }

// TakeMissedBlocks returns the keys of blocks that the command has missed.
func (a *Access) TakeMissedBlocks() [][]byte {
	keys := a.wantBlocks
	a.wantBlocks = nil
	return keys
}

// MayWait reports whether the command may wait.
func (a *Access) MayWait() bool { return a.cancel != nil }

// Blocked reports whether err says that the command would have to wait, and was
// not allowed to.
func (a *Access) Blocked(err error) bool {
	return a.cancel == nil && errors.Is(err, far.ErrWouldBlock)
}

// Settle ends a command: the next one starts with far.NoWait.
func (a *Access) Settle() {
	a.Tries = 0
	a.wantBlocks = nil
	if a.cancel != nil {
		a.cancel()
		a.ctx, a.cancel = far.NoWait, nil
	}
}

// Get appends the value of key to dst. Found is false if there is no such key.
func (a *Access) Get(key, dst []byte) (e far.Entry, found bool, err error) {
	e, err = a.Space.keys.Get(a.ctx, key, dst)
	a.count(a.Reads, err)
	if err == nil {
		if IsHash(e.Tag) {
			if gone := a.StruckOut(key); gone != nil {
				list := gone.Rest(0, e.Value[len(dst):])
				e.Value = e.Value[:len(dst)+len(list)]
			}
		}
		return e, true, nil
	}
	if errors.Is(err, far.ErrNotFound) {
		a.missed(key)
		return e, false, nil
	}
	return e, false, err
}

// lookups counts the keys that the command that runs has looked up to read them, as Redis counts them: a write counts
// its lookups only if it replies with the values (GETEX, GETDEL).
type lookups struct {
	Reads        bool
	Hits, Misses int64
}

// CountAnew begins to count for a new command. Reads says whether the command reads its keys.
func (l *lookups) CountAnew(reads bool) { *l = lookups{Reads: reads} }

// count counts a lookup that ended with err, if read is set.
func (l *lookups) count(read bool, err error) {
	switch {
	case !read:
	case err == nil:
		l.Hits++
	case errors.Is(err, far.ErrNotFound):
		l.Misses++
	}
}

// Stat is Get without the value.
func (a *Access) Stat(key []byte) (e far.Entry, size int, found bool, err error) {
	e, size, err = a.Space.keys.Stat(a.ctx, key)
	a.count(a.Reads, err)
	if errors.Is(err, far.ErrNotFound) {
		a.missed(key)
		return e, size, false, nil
	}
	return e, size, err == nil, err
}

// missed notes that a key is not in the cache. If the client stores the key next, the time between is what the miss
// cost it. A command that writes does not count: it does not tell its client that the key is missing.
func (a *Access) missed(key []byte) {
	if a.Space.cache != nil && !a.heldWrite {
		a.unstored.Missed(key, a.Arrived)
	}
}

// GetInto is Get for a reply. If the value is too large to be one entry and dst has no room for it, GetInto returns
// the value's size, and no value; the caller makes room and calls again.
func (a *Access) GetInto(key, dst []byte) (e far.Entry, size int, found bool, err error) {
	e, size, err = a.Space.keys.GetInto(a.ctx, key, dst)
	if size > 0 && err == nil {
		return e, size, true, nil
	}
	a.count(true, err)
	if errors.Is(err, far.ErrNotFound) {
		a.missed(key)
		return e, 0, false, nil
	}
	return e, 0, err == nil, err
}

// Random appends a random key to dst. The key may have expired or been deleted since. Random fails with
// far.ErrNotFound if there are no keys.
func (a *Access) Random(dst []byte) (key []byte, err error) {
	if a.together {
		key, err = a.txn.Random(a.ctx, a.Space.entries, dst)
	} else {
		key, err = a.Space.keys.Random(a.ctx, dst)
	}
	if err != nil && !errors.Is(err, far.ErrNotFound) {
		a.Tries = MaxTries // fetching keys does not help: wait
	}
	return key, err
}

// Scan is one step of a scan of all keys. Each step that may wait has a deadline of its own, since the scan of a
// large map may take long.
func (a *Access) Scan(cursor uint64, yield func(key []byte, e far.Entry)) (uint64, error) {
	ctx := a.ctx
	if a.cancel != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(a.Space.ctx, a.Space.cfg.OpTimeout)
		defer cancel()
	}
	var err error
	if a.together {
		cursor, err = a.txn.Scan(ctx, a.Space.entries, cursor, yield)
	} else {
		cursor, err = a.Space.keys.Scan(ctx, cursor, yield)
	}
	if err != nil {
		a.Tries = MaxTries // fetching keys does not help a scan: wait
	}
	return cursor, err
}

// Put stores an entry under key. With the tag TagLarge, key keeps the large hash that it has; with any other, it
// loses it.
func (a *Access) Put(key []byte, e far.Entry) error {
	err := a.store(key, e)
	if err == nil {
		a.note(opPut, e, key, e.Value)
	}
	return err
}

// store is Put without a note in the journal.
func (a *Access) store(key []byte, e far.Entry) error {
	if len(key) > far.MaxKeySize {
		return reply.ErrKeyTooLong
	}
	a.changing()
	var err error
	switch {
	case a.together:
		err = a.txn.Set(a.ctx, a.Space.entries, key, e)
	case a.Space.cache != nil:
		err = a.Space.cache.put(key, e, a.unstored.Stored(key, a.Arrived))
	default:
		err = a.Space.keys.Set(a.ctx, key, e)
	}
	if err != nil {
		return err
	}
	a.changedKey(key)
	if e.Tag != TagLarge {
		a.lead(key, nil)
	}
	return nil
}

// Del removes key and reports whether it was there.
func (a *Access) Del(key []byte) (bool, error) {
	ok, err := a.remove(key)
	if ok {
		a.note(opDel, far.Entry{}, key)
	}
	return ok, err
}

// remove is Del without a note in the journal.
func (a *Access) remove(key []byte) (bool, error) {
	a.changing()
	var ok bool
	var err error
	if a.together {
		ok, err = a.txn.Delete(a.ctx, a.Space.entries, key)
	} else {
		ok, err = a.Space.keys.Delete(a.ctx, key)
	}
	if err != nil {
		return false, err
	}
	if ok {
		a.changedKey(key)
	}
	a.lead(key, nil)
	return ok, nil
}

// DelMany is Del for several keys: it deletes all or none, and returns how many were there.
func (a *Access) DelMany(keys [][]byte) (n int64, err error) {
	if len(keys) > 1 {
		a.Begin()
	}
	if len(keys) == 1 || !a.together {
		for _, key := range keys {
			ok, err := a.Del(key)
			if err != nil {
				return 0, err
			}
			if ok {
				n++
			}
		}
		return n, nil
	}
	gone := make([]bool, len(keys))
	if err := a.txn.DeleteMany(a.ctx, a.Space.entries, keys, gone); err != nil {
		return 0, err
	}
	for i, key := range keys {
		if gone[i] {
			n++
			a.changedKey(key)
			a.note(opDel, far.Entry{}, key)
		}
		a.lead(key, nil)
	}
	return n, nil
}

// Flush removes all keys. All stripes must be locked.
func (a *Access) Flush() error {
	for _, key := range a.Space.watches.all() {
		if _, _, found, err := a.Stat(key); found || err != nil {
			a.touched = append(a.touched, key)
		}
	}
	a.changing()
	if a.together {
		a.txn.Clear(a.Space.entries)
		a.txn.Clear(a.Space.blocks)
	} else {
		a.Space.clear()
	}
	a.note(opFlush, far.Entry{}, nil)
	for i := range a.Space.Stripes {
		st := &a.Space.Stripes[i]
		for key, h := range st.large {
			a.undo = append(a.undo, undo{st: st, key: key, h: h})
			a.Space.lead(st, key, nil)
		}
	}
	a.made = true
	return nil
}

// stripe returns the stripe of key, which the command has locked.
func (a *Access) stripe(key []byte) *stripe {
	if len(a.held) == 1 {
		return &a.Space.Stripes[a.held[0]]
	}
	return &a.Space.Stripes[a.Space.stripeOf(key)]
}

// GetString appends a string's value to dst; reply.ErrWrongType if it is no string.
func (a *Access) GetString(key, dst []byte) (far.Entry, bool, error) {
	e, found, err := a.Get(key, dst)
	if found && !IsString(e.Tag) {
		return far.Entry{}, false, reply.ErrWrongType
	}
	return e, found, err
}

// Reuse keeps a buffer for the next command, unless it has grown large or
// there is none.
func Reuse(buf *[]byte, b []byte) {
	if cap(b) > 0 && cap(b) <= 64<<10 {
		*buf = b[:0]
	} else if cap(b) > 0 {
		*buf = nil
	}
}
