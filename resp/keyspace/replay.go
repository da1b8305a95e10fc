package keyspace

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"polder/far"
	"polder/far/record"
	"polder/resp/proto"
)

// replay opens the journal and makes those of its changes again that the heap's checkpoint does not have. It reports
// whether there were any.
func (sp *Space) replay(ctx context.Context) (changed bool, err error) {
	cfg := sp.cfg.Journal
	if cfg.Tail == 0 {
		cfg.Tail = min(max(sp.heap.Local()/4, leastTail), mostTail)
	}
	j := &journal{cfg: cfg, name: sp.keptJournal, batch: sp.keptBatch, due: make(chan struct{}, 1)}
	j.warn = func(err error) { sp.cfg.Logger.Error("the journal is in trouble", "err", err) }
	if j.name == 0 {
		j.name = mathrand.Uint64() | 1
	}
	sp.journal = j
	sp.heap.KeepState(sp.keepState)
	sp.heap.Replays(true)
	defer sp.heap.Replays(false)
	r := replayer{j: j, a: &Access{Space: sp, ctx: ctx, replays: true}, read: j.batch}
	records := 0
	record := func(rec []byte) error { records++; return r.record(rec) }
	var log RecordLog
	if cfg.Log != nil {
		log, err = cfg.Log(ctx, record)
	} else {
		log, err = openFiles(cfg.Dir, func(err error) { j.warn(err); j.wantCheckpoint() }, record)
	}
	if err != nil {
		return false, err
	}
	if err := r.flush(); err != nil {
		return false, errors.Join(err, log.Close())
	}
	st := &sp.Stripes[0]
	st.Mu.Lock()
	j.log = log
	st.Mu.Unlock()
	j.last.Store(log.Last())
	if records > 0 {
		sp.cfg.Logger.Info("the journal was replayed", "records", records)
	}
	return r.read != sp.keptBatch, nil
}

// replayer makes changes again.
type replayer struct {
	j      *journal
	a      *Access
	read   uint64  // number of the last batch that was read
	part   []byte  // what was read of the batch partOf, of which more follows
	partOf uint64  // number of that batch
	ahead  []batch // batches that were read, and whose changes are not made yet
	size   int
}

// batch is the changes of a command.
type batch struct {
	number  uint64
	changes []change
}

// change is one of a batch.
type change struct {
	op   uint8
	e    far.Entry // without its value
	args [][]byte
}

// record takes a record of the log.
func (r *replayer) record(rec []byte) error {
	d := &record.Decoder{B: rec}
	n := d.U64()
	if len(rec) == 8 {
		if n != r.j.name {
			return fmt.Errorf("it is the journal %#x, and the heap had the journal %#x", n, r.j.name)
		}
		return nil
	}
	more := d.Bytes(1)
	switch {
	case d.Err != nil:
		return d.Err
	case n <= r.read:
		return nil // the checkpoint has it
	case n != r.read+1:
		return fmt.Errorf("it is of batch %d, want %d: some are missing", n, r.read+1)
	}
	if r.partOf != n {
		r.part, r.partOf = nil, n
	}
	r.part = append(r.part, d.B...)
	if more[0] != 0 {
		return nil
	}
	changes, err := decodeBatch(r.part)
	if err != nil {
		return fmt.Errorf("batch %d: %w", n, err)
	}
	r.ahead = append(r.ahead, batch{n, changes})
	r.j.tail += max(int64(len(r.part)), leastCost)
	r.read, r.size, r.part = n, r.size+len(r.part), nil
	if len(r.ahead) < replayAhead && r.size < longestRecord {
		return nil
	}
	return r.flush()
}

// decodeBatch returns the changes of a batch, which refer to b.
func decodeBatch(b []byte) (changes []change, err error) {
	d := &record.Decoder{B: b}
	for d.Err == nil && len(d.B) > 0 {
		changes = append(changes, decodeChange(d))
	}
	return changes, d.Err
}

// decodeChange takes a change from d.
func decodeChange(d *record.Decoder) (c change) {
	if b := d.Bytes(2); b != nil {
		c.op, c.e.Tag = b[0], b[1]
	}
	if ms := d.U64(); ms != 0 {
		c.e.Expire = time.UnixMilli(int64(ms))
	}
	n := int(d.U32())
	if d.Err == nil && n > len(d.B)/4 {
		d.Err = fmt.Errorf("%d arguments in %d bytes", n, len(d.B))
	}
	if d.Err != nil {
		return c
	}
	c.args = make([][]byte, n)
	for i := range c.args {
		c.args[i] = d.Bytes(int(d.U32()))
	}
	least, most := 1, 1
	switch c.op {
	case opPut, opMove, opCopy:
		least, most = 2, 2
	case opDel, opFlush:
	case opTable, opFields:
		least, most = 3, n|1 // they come in pairs
	case opRemove:
		least, most = 2, n
	default:
		least = 0
	}
	if d.Err == nil && (least == 0 || n < least || n > most || c.op == opTable && n%2 == 0 || c.op == opFields && n%2 == 0) {
		d.Err = fmt.Errorf("a change of kind %d with %d arguments", c.op, n)
	}
	return c
}

// flush makes the changes of the batches in r.ahead.
func (r *replayer) flush() error {
	a := r.a
	var keys, blocks [][]byte
	for _, b := range r.ahead {
		for _, c := range b.changes {
			keys, blocks = append(keys, c.args[0]), a.blocksFor(c, blocks)
		}
	}
	// Entries and blocks that these calls do not fetch are read one by one.
	_ = a.Space.keys.FetchHeads(a.ctx, keys)
	_ = a.Space.blocks.Prefetch(a.ctx, blocks...)
	if err := a.ctx.Err(); err != nil {
		return err
	}
	for _, b := range r.ahead {
		err := r.redo(b)
		for tries := 0; errors.Is(err, far.ErrFull) && tries < 3; tries++ {
			// A checkpoint gives back the far memory that only the checkpoint before it needed.
			if err = a.Space.heap.Checkpoint(a.ctx); err == nil {
				err = r.redo(b)
			}
		}
		if err != nil {
			return fmt.Errorf("batch %d: %w", b.number, err)
		}
	}
	clear(r.ahead)
	r.ahead, r.size = r.ahead[:0], 0
	return nil
}

// blocksFor appends the keys of the blocks that c will change.
func (a *Access) blocksFor(c change, keys [][]byte) [][]byte {
	step := 1
	switch c.op {
	case opFields:
		step = 2
	case opRemove:
	default:
		return keys
	}
	if h := a.LargeOf(c.args[0]); h != nil {
		for i := 1; i < len(c.args); i += step {
			keys = append(keys, h.Key(h.Bucket(a.Space.FieldHash(c.args[i]))))
		}
	}
	return keys
}

// redo makes the changes of a batch again, all or none. It holds a stripe lock, so that a checkpoint has the batch as
// a whole or not at all.
func (r *replayer) redo(b batch) (err error) {
	st := &r.a.Space.Stripes[0]
	st.Mu.Lock()
	defer st.Mu.Unlock()
	if len(b.changes) > 1 {
		r.a.Begin()
	}
	for _, c := range b.changes {
		if err = r.a.redo(c); err != nil {
			err = fmt.Errorf("a change of kind %d of the key %q: %w", c.op, proto.Clip(c.args[0], 64), err)
			break
		}
	}
	r.a.End(err)
	if err == nil {
		r.j.batch = b.number
	}
	return err
}

// redo makes a change again.
func (a *Access) redo(c change) error {
	key := c.args[0]
	h := Hash{key: key, Found: true, e: c.e}
	if c.op >= opFields && c.op <= opCopy {
		if h.Large = a.LargeOf(key); h.Large == nil {
			return errors.New("there is no large hash")
		}
	}
	if c.op >= opTable {
		a.Begin()
	}
	switch c.op {
	case opPut:
		c.e.Value = c.args[1]
		return a.Put(key, c.e)
	case opDel:
		_, err := a.Del(key)
		return err
	case opTable:
		p := Pairs(c.args[1:])
		t := a.Space.newHashTable(p.size())
		t.addPairs(p)
		return a.storeTable(&h, t)
	case opFields:
		_, err := a.setLarge(&h, c.args[1:])
		return err
	case opRemove:
		_, err := a.RemoveFields(&h, c.args[1:])
		return err
	case opMove:
		return a.MoveLarge(key, c.args[1], h.Large, c.e)
	case opCopy:
		return a.CopyLarge(h.Large, key, c.args[1], c.e)
	}
	return a.Flush()
}
