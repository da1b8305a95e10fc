package resp

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"polder/far"
	"polder/resp/hashes"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/rdb"
	"polder/resp/reply"
)

// SYNC is a dump: the reply is an RDB file, as redis-cli --rdb takes it. It is made while the client reads it, a few
// keys at a time, with the locks that MGET would take. So every key is as it was at some moment of the dump, and a
// key that is there throughout is in it; but the file does not show one moment. A hash too large for one step is
// copied when its turn comes, and the copy is dumped. A server of partitions dumps those that are here, one after the
// other.

// replica is what a client has said by REPLCONF.
type replica struct {
	streams  bool // it takes a file whose length is not known beforehand
	replicas bool // it is a Redis that wants to be a replica
}

const (
	errNoReplicas  reply.Error = "ERR Polder has no replicas: SYNC is for redis-cli --rdb, which says REPLCONF capa eof and no port"
	errNoPartition reply.Error = "TRYAGAIN the server has none of the partitions"
	errNoDump      reply.Error = "ERR a cache has no dump: any key may vanish meanwhile"
)

func cmdReplConf(s *session, a [][]byte) error {
	if len(a)%2 == 0 {
		return reply.ErrSyntax
	}
	for i := 1; i < len(a); i += 2 {
		switch {
		case proto.Is(a[i], "capa"):
			s.replica.streams = s.replica.streams || proto.Is(a[i+1], "eof")
		case proto.Is(a[i], "rdb-only"):
		case proto.Is(a[i], "listening-port"), proto.Is(a[i], "ip-address"):
			s.replica.replicas = true
		default:
			return reply.Error("ERR Unrecognized REPLCONF option: " + proto.Clip(a[i], 128))
		}
	}
	s.OK()
	return nil
}

func cmdSync(s *session, a [][]byte) error {
	switch {
	case s.Space.IsCache():
		return errNoDump
	case s.replica.replicas || !s.replica.streams || s.mute != muteNone:
		return errNoReplicas
	}
	d := &dump{s: s, batch: dumpKeys}
	err := s.each(0, func(int) (bool, error) {
		d.rest = append(d.rest, s.part)
		d.entries += s.Space.Len()
		return false, s.Space.Lacks()
	})
	if err != nil {
		return err
	}
	if len(d.rest) == 0 {
		return errNoPartition
	}
	s.Out = append(s.Out, "$EOF:"+s.srv.runID+"\r\n"...)
	s.dump = d
	return nil
}

const (
	// dumpStep is the memory in bytes for one step of a dump. A step takes more only for a single value that is
	// larger.
	dumpStep = 256 << 10
	// dumpKeys is how many keys are read, and locked, at a time.
	dumpKeys = 64
	// dumpCopied is the size in bytes above which a hash is copied, so that nobody waits for a lock while the client
	// reads it.
	dumpCopied = 1 << 20
)

// dump is a dump under way.
type dump struct {
	s   *session
	crc uint64 // of the file so far

	rest    []*part // parts that are yet to be dumped; the first is being dumped
	entries int     // about how many keys all parts have together
	begun   bool
	cursor  uint64
	scanned bool             // the scan of rest[0] has come to its end
	keys    keyspace.KeyList // keys to be written next
	batch   int              // how many of keys are read at a time: fewer if values are large
	large   [][]byte         // keys of hashes that are to be copied

	wrote bool // this step has written a value

	copied *hashes.Large // the copy of a hash that is being written; nil if there is none
	bucket uint32        // of copied, the next to be written
	left   int           // fields of copied that are yet to be written
}

// dumpOn appends the next part of the dump to Out. Until the dump is done, the session's input begins with SYNC.
func (s *session) dumpOn() status {
	if s.OnWait != nil {
		s.OnWait(nil)
	}
	s.Mark = len(s.Out)
	d := s.dump
	more, err := true, error(nil)
	for more && err == nil && len(s.Out)-s.Mark < flushAt {
		more, err = d.step()
	}
	s.Settle()
	switch {
	case err != nil:
		s.srv.cfg.Logger.Error("a client is disconnected because its dump cannot be made", "client", s.info.id, "err", reply.Text(err))
		s.Out = s.Out[:s.Mark]
		return sessionEnd
	case more:
		return needFlush
	}
	s.Out = append(s.Out, s.srv.runID...)
	s.dump = nil
	return needInput
}

// step appends a part of the file, and reports whether there is more.
func (d *dump) step() (more bool, err error) {
	s, at := d.s, d.rest[0]
	if !at.Stay() {
		return false, errors.New("a partition has gone to another server")
	}
	s.moveTo(at)
	defer func() {
		s.moveTo(s.srv.data)
		at.EndUse()
	}()
	from := len(s.Out) - s.Mark
	d.wrote = false
	s.Room(dumpStep)
	switch {
	case !d.begun:
		d.begun = true
		s.Out = rdb.AppendStart(s.Out, proto.RedisVersion, time.Now(), d.entries)
	case d.copied != nil:
		err = d.writeCopied()
	case len(d.large) > 0:
		key := d.large[len(d.large)-1]
		d.large = d.large[:len(d.large)-1]
		err = d.copyHash(key)
	case d.keys.Len() > 0:
		err = d.writeKeys()
	case !d.scanned:
		err = d.scan()
	case len(d.rest) > 1:
		err = at.Lacks()
		d.rest, d.cursor, d.scanned = d.rest[1:], 0, false
	default:
		s.Out = rdb.AppendEnd(s.Out, d.crc)
		return false, at.Lacks()
	}
	d.crc = rdb.Sum(d.crc, s.Out[s.Mark+from:])
	return true, err
}

// close frees the copy of a hash that the dump has, if there is one. The dump need not be done.
func (d *dump) close() {
	if d.copied != nil {
		d.rest[0].FreeCopy(d.copied)
		d.copied = nil
	}
}

// fits reports whether there is room for n more bytes in this step. The first value of a step is always given the
// room it needs.
func (d *dump) fits(n int) bool {
	if cap(d.s.Out)-len(d.s.Out) < n {
		if d.wrote {
			return false
		}
		d.s.Room(n)
	}
	d.wrote = true
	return true
}

// scan gathers keys.
func (d *dump) scan() (err error) {
	for d.keys.Len() < dumpKeys && !d.scanned && err == nil {
		d.s.Again()
		d.cursor, err = d.s.Scan(d.cursor, func(key []byte, _ far.Entry) { d.keys.Add(key) })
		d.scanned = d.cursor == 0
	}
	return err
}

// writeKeys writes the next keys. Those whose values do not fit stay in d.keys for a later step.
func (d *dump) writeKeys() (err error) {
	s := d.s
	n := min(d.batch, d.keys.Len())
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = d.keys.At(i)
		s.Want(keys[i])
	}
	var later keyspace.KeyList
	for i := n; i < d.keys.Len(); i++ {
		later.Add(d.keys.At(i))
	}
	s.Again()
	s.LockWanted(false, nil)
	defer s.Unlock()
	var hashes []int // indices of keys whose hashes are in blocks
	var expire []time.Time
	fit := 0
	s.GetMany(keys, func(i int, e far.Entry, failed error) {
		switch {
		case err != nil, errors.Is(failed, far.ErrNotFound):
		case failed != nil:
			err = fmt.Errorf("key %.64q: %w", keys[i], failed)
		case e.Tag == keyspace.TagLarge:
			hashes, expire = append(hashes, i), append(expire, e.Expire)
		case d.write(keys[i], e):
			fit++
		default:
			later.Add(keys[i])
		}
	})
	for k, i := range hashes {
		if err == nil {
			err = d.writeHash(keys[i], expire[k], &later)
		}
	}
	d.s.looked()
	d.keys = later
	d.batch = dumpKeys
	if fit < n {
		d.batch = max(1, 2*fit)
	}
	return err
}

// write writes a key whose value is one entry, if it fits.
func (d *dump) write(key []byte, e far.Entry) bool {
	s := d.s
	if keyspace.IsString(e.Tag) {
		if !d.fits(len(key) + len(e.Value) + rdb.Overhead) {
			return false
		}
		s.Out = rdb.AppendString(rdb.AppendStringKey(s.Out, key, e.Expire), e.Value)
		return true
	}
	list := hashes.List(e.Value)
	if gone := s.StruckOut(key); gone != nil {
		list = gone.Rest(0, slices.Clone(list))
	}
	if !d.fits(len(key) + len(list) + rdb.Overhead + 2*rdb.OverheadEach*list.Len()) {
		return false
	}
	s.Out = rdb.AppendHashKey(s.Out, key, e.Expire)
	rdb.PutHashLen(s.Out[len(s.Out)-rdb.HashLen:], list.Len())
	d.fields(list)
	return true
}

func (d *dump) fields(l hashes.List) {
	for f, v := range l.All() {
		d.s.Out = rdb.AppendString(rdb.AppendString(d.s.Out, f), v)
	}
}

// writeHash writes a hash that is kept in blocks. If the hash is to be copied first, its key is added to d.large; if
// it does not fit into this step, its key is added to later.
func (d *dump) writeHash(key []byte, expire time.Time, later *keyspace.KeyList) error {
	s := d.s
	h := s.LargeOf(key)
	switch {
	case h == nil:
		return nil // it has just expired and been swept
	case h.Bytes > dumpCopied:
		d.large = append(d.large, slices.Clone(key))
		return nil
	case !d.fits(len(key) + h.Bytes + rdb.Overhead + 2*rdb.OverheadEach*h.Count):
		later.Add(key)
		return nil
	}
	s.Out = rdb.AppendHashKey(s.Out, key, expire)
	at, n := len(s.Out)-rdb.HashLen-s.Mark, 0
	err := s.BlocksFrom(h, 0, func(_ uint32, l hashes.List) (bool, error) {
		n += l.Len()
		d.fields(l)
		return true, nil
	})
	rdb.PutHashLen(s.Out[s.Mark+at:], n)
	return err
}

// copyHash copies the hash under key, if it is still large, and begins to write the copy.
func (d *dump) copyHash(key []byte) error {
	s := d.s
	c, e, err := s.CopyAside(key)
	if c != nil {
		d.copied, d.bucket, d.left = c, 0, c.Count
	}
	switch {
	case errors.Is(err, far.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("key %.64q, of which a copy is made: %w", key, err)
	case c == nil:
		d.keys.Add(key) // it is another value by now
		return nil
	}
	s.looked()
	d.fits(len(key) + rdb.Overhead)
	s.Out = rdb.AppendHashKey(s.Out, key, e.Expire)
	rdb.PutHashLen(s.Out[len(s.Out)-rdb.HashLen:], d.left)
	return nil
}

// writeCopied writes some blocks of the copy, and frees it after the last one.
func (d *dump) writeCopied() error {
	err := d.s.BlocksFrom(d.copied, d.bucket, func(b uint32, l hashes.List) (bool, error) {
		if !d.fits(len(l) + 2*rdb.OverheadEach*l.Len()) {
			return false, nil
		}
		d.fields(l)
		d.left -= l.Len()
		d.bucket = b + 1
		return true, nil
	})
	if err != nil || d.bucket < d.copied.Buckets {
		return err
	}
	d.close()
	if d.left != 0 {
		return errors.New("everything was deleted by FLUSHALL meanwhile")
	}
	return nil
}
