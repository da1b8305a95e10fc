package simfaults

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"polder/far/copies"
	"polder/far/named"
	"polder/far/record"
	"polder/far/store"
	"polder/internal/turns"
)

// A server opens the heap, answers clients while it is the heap's owner, and uses its store as package far and a
// durable server do: it evacuates values into segments, cleans segments to make room, writes records of changes to
// the log, and makes checkpoints that say where everything is.
type server struct {
	c     *cluster
	host  string
	p     *turns.Process
	o     *named.Owner
	store *named.Store
	log   *named.Log

	serving bool
	leaving bool // the heap is being given up: nothing is set
	items   map[uint32]*item
	segs    []*area  // with values
	current [2]*area // segments that are written to: one with keys that are set often, one with the others
	pausing bool     // a checkpoint is begun: nothing is set
	saving  bool     // a checkpoint is being made
	changed turns.Cond
	places  map[string]*place
	looked  map[uint32]bool // for each key, whether the last answer could be shown
}

// item is the value of a key.
type item struct {
	version uint64
	number  uint64 // number of its record in this server's log; 0 if the value was there before
	local   []byte // nil if the value is far
	at      *area
	off, n  int
}

// area is a segment with values.
type area struct {
	seg  store.Segment
	off  int
	live int  // how many values are in it
	pins int  // reads and writes under way
	root bool // the last checkpoint has it
	full bool
	dead bool // it has been given back, or is about to be

	copies int // how many it had when it was borrowed
}

// noLock is a sync.Locker that does nothing, for use where only one task runs at a time.
type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

// valueOf returns what is stored for a version of a key: key, length, version, filler and a checksum.
func valueOf(key uint32, version uint64) []byte {
	x := uint64(key)*0x9e3779b97f4a7c15 + version*0xbf58476d1ce4e5b9
	b := make([]byte, 16, 16+8*400+4)
	binary.LittleEndian.PutUint32(b, key)
	binary.LittleEndian.PutUint64(b[8:], version)
	n := 20 + int(x>>33)%380
	binary.LittleEndian.PutUint32(b[4:], uint32(16+8*n+4))
	for range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// versionIn returns which version of key b holds. It returns false if b is not a value of key, or not as it was
// stored.
func versionIn(b []byte, key uint32) (uint64, bool) {
	if len(b) < 20 || binary.LittleEndian.Uint32(b) != key || crc32.ChecksumIEEE(b[:len(b)-4]) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[8:]), true
}

// run is a server's life. It ends when another server has taken the heap over, or with an error.
func (s *server) run(ctx context.Context, cfg named.Config) error {
	c := s.c
	c.sessions++
	reg := &session{g: c.register, p: s.p, host: s.host, id: c.sessions << 32}
	cfg.Me, cfg.Process, cfg.Standby, cfg.Logger = s.host, s.p, true, c.logger(s.host)
	o, err := named.Own(ctx, reg, cfg)
	if err != nil {
		return err
	}
	s.o = o
	c.w.Note("%s owns the heap, epoch %d", s.host, o.Epoch())
	var places []copies.Place
	for _, n := range c.nodes {
		places = append(places, s.place(n))
	}
	for range 15 + c.w.Rand.IntN(35) { // until all nodes are connected, but not for ever
		if !slices.ContainsFunc(c.nodes, func(n *node) bool { pl := s.places[n.name]; return pl != nil && pl.link == nil }) {
			break
		}
		s.p.Sleep(20 * time.Millisecond)
	}
	s.store, err = o.Store(copies.Config{
		Places: places, Copies: c.cfg.copies, Late: c.cfg.late, RepairAfter: c.cfg.repairAfter, Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	s.store.Judge(s.judge)
	s.p.Go(s.members)
	if err := s.open(ctx); err != nil {
		return err
	}
	c.w.Note("%s serves, epoch %d", s.host, o.Epoch())
	c.opened(s)
	s.serving = true
	s.p.Go(s.evacuate)
	s.p.Go(s.keep)
	s.p.Wait(nil, o.Superseded())
	s.serving = false
	return named.ErrSuperseded
}

// place returns node n as s reaches it.
func (s *server) place(n *node) copies.Place {
	pl := s.c.newPlace(n, s.p, s.host, s.o.Epoch())
	s.places[n.name] = pl
	return pl.asPlace()
}

// members adds nodes that have joined to the store, and removes nodes that have ended.
func (s *server) members() {
	for !s.leaving {
		s.p.Sleep(time.Duration(s.c.w.Rand.Int64N(int64(time.Second))))
		for _, n := range s.c.nodes {
			// A real server first notes its session at a node in the manifest, as only the owner can.
			if s.places[n.name] != nil || !s.owns() {
				continue
			}
			if err := s.store.Add(s.place(n)); err != nil {
				s.c.wrong("%s cannot add %s: %v", s.host, n.name, err)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.places)) {
			if pl := s.places[name]; pl.n.gone && s.store.Remove(name) == nil {
				pl.gone = true
				delete(s.places, name)
			}
		}
	}
}

// handOver gives the heap up, so that the next owner need not wait.
func (s *server) handOver() {
	s.leaving = true
	ctx, cancel := s.p.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.checkpoint(ctx)
	if err == nil {
		err = s.log.Close()
	}
	if err == nil {
		err = s.store.Close()
	}
	if err == nil {
		err = s.o.Close(ctx)
	}
	s.c.w.Note("%s has given the heap up: %v", s.host, err)
	// The server ends some time later; until then clients may still ask it.
	away := time.Duration(s.c.w.Rand.Int64N(int64(2 * time.Second)))
	for _, h := range s.c.servers {
		if h.now == s {
			s.c.w.After(away, func() { h.kill(s, away) })
		}
	}
}

// open restores what the previous owner has left.
func (s *server) open(ctx context.Context) error {
	root, _ := s.store.Root(ctx) // it does not fail
	if err := s.restore(ctx, root); err != nil {
		return fmt.Errorf("cannot open the heap: %w", err)
	}
	if err := s.store.Prune(ctx); err != nil {
		return err
	}
	var err error
	s.log, err = s.store.OpenLog(ctx, func(rec []byte) error {
		if len(rec) < 8 {
			return errors.New("a record is short")
		}
		s.apply(binary.LittleEndian.Uint32(rec), bytes.Clone(rec), 0)
		return nil
	})
	if err != nil {
		return err
	}
	if !s.c.harness("serve-before-decision") {
		if err := s.checkpoint(ctx); err != nil {
			return err
		}
	}
	if err := s.log.Begin(ctx); err != nil {
		return err
	}
	return s.o.Ready(ctx)
}

// apply gives a key a value, unless the key has that version or a newer one. number is that of the value's record, if
// it is in this server's log, or 0.
func (s *server) apply(key uint32, value []byte, number uint64) {
	it := s.items[key]
	version, ok := versionIn(value, key)
	if !ok {
		s.c.wrong("a record of the log has wrong bytes")
		return
	}
	if it == nil {
		it = &item{}
		s.items[key] = it
	}
	if version <= it.version {
		return
	}
	if it.local == nil && it.at != nil {
		s.leave(it.at)
	}
	*it = item{version: version, number: number, local: value}
}

func (s *server) leave(a *area) {
	a.live--
	s.bury(a)
}

// bury gives a back if nothing needs it.
func (s *server) bury(a *area) {
	if a.live > 0 || a.pins > 0 || slices.Contains(s.current[:], a) || a.dead || a.root && !s.c.harness("remove-before-durable") {
		return
	}
	a.dead = true
	s.segs = slices.DeleteFunc(s.segs, func(o *area) bool { return o == a })
	s.p.Go(func() {
		if err := a.seg.Free(context.Background()); err != nil {
			s.c.wrong("Free: %v", err)
		}
	})
}

// root encodes a root: u32 number of segments, and for each the u32 length of its name and the name; then u32 number
// of items, and for each u32 key, u64 version, u32 index of the segment, u32 offset and u32 length.
func (s *server) root(segs []*area) []byte {
	put := binary.LittleEndian.AppendUint32
	b := put(nil, uint32(len(segs)))
	index := map[*area]uint32{}
	for i, a := range segs {
		index[a] = uint32(i)
		b = append(put(b, uint32(len(a.seg.Name()))), a.seg.Name()...)
	}
	b = put(b, uint32(len(s.items)))
	for key := range uint32(s.c.cfg.keys) {
		if it := s.items[key]; it != nil {
			b = put(binary.LittleEndian.AppendUint64(put(b, key), it.version), index[it.at])
			b = put(put(b, uint32(it.off)), uint32(it.n))
		}
	}
	return b
}

// namesIn returns the names of the segments in a root, and a decoder of the rest.
func namesIn(root []byte) (names []string, rest *record.Decoder) {
	d := &record.Decoder{B: root}
	if len(root) == 0 {
		return nil, d
	}
	for range d.U32() {
		names = append(names, string(d.Bytes(int(d.U32()))))
	}
	return names, d
}

func (s *server) restore(ctx context.Context, root []byte) error {
	names, d := namesIn(root)
	for _, name := range names {
		for {
			seg, err := s.store.Reopen(ctx, name)
			var lost *store.LostError
			if errors.As(err, &lost) {
				s.c.wrong("a segment that the checkpoint needs is lost: %s", name)
				return err
			}
			if err == nil {
				s.segs = append(s.segs, &area{seg: seg, off: segmentSize, full: true, root: true})
				break
			}
			s.p.Sleep(100 * time.Millisecond) // none of its nodes can be reached now
			select {
			case <-s.o.Superseded():
				return named.ErrSuperseded
			default:
			}
		}
	}
	if len(root) > 0 {
		for range d.U32() {
			key := d.U32()
			it := &item{version: d.U64()}
			it.at = s.segs[d.U32()]
			it.off, it.n = int(d.U32()), int(d.U32())
			it.at.live++
			s.items[key] = it
		}
	}
	return d.Err
}

// write evacuates the value of a key, and returns where it is. It returns nil if the server is superseded.
func (s *server) write(key uint32, b []byte) (*area, int) {
	current := &s.current[0]
	if int(key) >= s.c.cfg.keys/3 {
		current = &s.current[1]
	}
	for {
		select {
		case <-s.o.Superseded():
			return nil, 0
		default:
		}
		a := *current
		// Nothing lives in it: it is written from the front again.
		if a != nil && !a.full && a.off > 0 && a.live+a.pins == 0 && !a.root {
			a.off = 0
		}
		if a == nil || a.full || a.off+len(b) > segmentSize {
			if a != nil {
				*current = nil
				a.full = true
				s.bury(a)
			}
			seg, err := s.alloc()
			if err != nil {
				s.p.Sleep(50 * time.Millisecond)
				continue
			}
			if *current == nil { // no other task was faster
				*current = &area{seg: seg, copies: copiesIn(seg.Name())}
				s.segs = append(s.segs, *current)
			} else if err := seg.Free(context.Background()); err != nil {
				s.c.wrong("Free: %v", err)
			}
			continue
		}
		off, before := a.off, a.seg.Name()
		a.off += len(b)
		a.pins++
		ctx, cancel := s.p.WithTimeout(context.Background(), store.Timeout)
		err := a.seg.Write(ctx, b, off)
		cancel()
		a.pins--
		if err == nil {
			if copiesIn(before) < a.copies {
				s.c.wrong("%d copies were enough for what was written to a segment with %d: %s", copiesIn(before), a.copies, before)
			}
			a.live++ // the caller's
			return a, off
		}
		a.full = true
		if a != *current {
			s.bury(a)
		}
		if !errors.Is(err, store.ErrSealed) {
			s.p.Sleep(20 * time.Millisecond)
		}
	}
}

// copiesIn returns how many copies a segment of that name has.
func copiesIn(name string) int { return strings.Count(name, " and ") + 1 }

// roomy returns the places, by name, that are up, are not to leave, and have some room.
func (s *server) roomy() map[string]room {
	up := map[string]int64{}
	for _, p := range s.store.Stats().Places {
		if p.State == "up" {
			up[p.Name] = p.Late
		}
	}
	rooms := map[string]room{}
	for name, pl := range s.places {
		if late, ok := up[name]; ok && !pl.n.leaving && !pl.n.pressed && pl.n.used()+10 < pl.n.capacity {
			rooms[name] = room{pl.link, late}
		}
	}
	return rooms
}

// room is the state of a place with room. Two are equal if the link is the same and the place was not late in
// between.
type room struct {
	link *link
	late int64
}

// alloc borrows a segment, and checks that its copies are in as many zones as they could be.
func (s *server) alloc() (store.Segment, error) {
	before := s.roomy()
	ctx, cancel := s.p.WithTimeout(context.Background(), store.Timeout)
	defer cancel()
	seg, err := s.store.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	could := map[string]bool{}
	for name, r := range s.roomy() {
		if before[name] == r {
			could[r.link.place.n.zone] = true
		}
	}
	zones := map[string]bool{}
	for name, pl := range s.places { // some of which may have lost their copy by now
		if strings.Contains(seg.Name(), " "+name+"/") {
			zones[pl.n.zone] = true
		}
	}
	if there := copiesIn(seg.Name()); len(zones) < min(there, len(could)) {
		s.c.wrong("%s has %d copies in %d zones, and there would have been room in %d", seg.Name(), there, len(zones), len(could))
	}
	return seg, nil
}

// evict evacuates the value of a key; a value that is replaced meanwhile stays local. It returns false if the server
// is superseded.
func (s *server) evict(key uint32) bool {
	it := s.items[key]
	b, version := it.local, it.version
	if b == nil {
		return true
	}
	a, off := s.write(key, b)
	if a == nil {
		return false
	}
	if it = s.items[key]; it.version != version || it.local == nil {
		s.leave(a)
		return true
	}
	it.local, it.at, it.off, it.n = nil, a, off, len(b)
	return true
}

// evacuate evacuates local values, and empties segments that have few values.
func (s *server) evacuate() {
	for s.serving {
		s.p.Sleep(time.Duration(s.c.w.Rand.Int64N(int64(s.c.cfg.linger))))
		for key := range uint32(s.c.cfg.keys) {
			if it := s.items[key]; it != nil && it.local != nil && s.c.w.Rand.IntN(2) == 0 && !s.evict(key) {
				return
			}
		}
		if len(s.segs) > mostAreas {
			s.clean()
		}
		if a := s.current[0]; a != nil && !a.root && s.c.w.Rand.IntN(2) == 0 {
			s.clear(a) // it is written from the front next
		}
	}
}

// mostAreas is the number of segments with values above which they are cleaned.
const mostAreas = 16

// clean makes the values of the segment that has the fewest local again.
func (s *server) clean() {
	var least *area
	for _, a := range s.segs {
		if !slices.Contains(s.current[:], a) && a.live > 0 && (least == nil || a.live < least.live) {
			least = a
		}
	}
	if least != nil {
		s.clear(least)
	}
}

// clear makes the values of a segment local again.
func (s *server) clear(a *area) {
	if s.pausing {
		return
	}
	for key := range uint32(s.c.cfg.keys) {
		it := s.items[key]
		if it == nil || it.at != a || it.local != nil {
			continue
		}
		b, version, err := s.value(key)
		if err != nil || s.pausing || version != s.items[key].version || s.items[key].local != nil || s.items[key].at != a {
			continue
		}
		it.local, it.at = b, nil
		s.leave(a)
	}
}

// value reads the value of a key.
func (s *server) value(key uint32) (b []byte, version uint64, err error) {
	it := s.items[key]
	if it == nil {
		return nil, 0, nil
	}
	version = it.version
	if it.local != nil {
		return it.local, version, nil
	}
	a := it.at
	a.pins++
	defer func() {
		a.pins--
		if !s.p.Dead() {
			s.bury(a)
		}
	}()
	ctx, cancel := s.p.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	op := [1]store.ReadOp{{Seg: a.seg, Off: it.off, Buf: make([]byte, it.n)}}
	good := func() bool { v, ok := versionIn(op[0].Buf, key); return ok && v == version }
	s.store.Read(ctx, op[:])
	if op[0].Err == nil && !good() {
		s.c.counts.corrupt++
		if !s.store.Reread(ctx, op[0], good) && ctx.Err() == nil {
			return nil, 0, errWrong
		}
		return op[0].Buf, version, context.Cause(ctx)
	}
	return op[0].Buf, version, op[0].Err
}

// judge reads the values in a segment from all its copies, so that damaged copies are found.
func (s *server) judge(_ context.Context, seg store.Segment, reread store.Rereader) (all bool) {
	all = true
	for key := range uint32(s.c.cfg.keys) {
		it := s.items[key]
		if it == nil || it.at == nil || it.at.seg != seg || it.at.dead {
			continue
		}
		a, version := it.at, it.version
		a.pins++
		op := store.ReadOp{Seg: seg, Off: it.off, Buf: make([]byte, it.n)}
		all = reread(op, func() bool { v, ok := versionIn(op.Buf, key); return ok && v == version }) && all
		a.pins--
		if s.p.Dead() {
			return false
		}
		s.bury(a)
	}
	return all
}

var errWrong = errors.New("wrong bytes")

// checkpoint makes a checkpoint: it evacuates all local values and has the manifest list where all values are. It
// waits for a checkpoint that is being made already.
func (s *server) checkpoint(ctx context.Context) error {
	for s.saving {
		s.changed.Wait(s.p)
	}
	s.saving, s.pausing = true, true
	defer func() { s.saving, s.pausing = false, false; s.changed.Broadcast() }()
	for local := true; local; {
		local = false
		for key := range uint32(s.c.cfg.keys) {
			if it := s.items[key]; it != nil && it.local != nil {
				local = true
				if !s.evict(key) {
					return named.ErrSuperseded
				}
			}
		}
	}
	upTo := s.log.Last()
	var listed []*area
	for _, a := range s.segs {
		if a.live > 0 {
			a.root = true // from now on the next owner may need it
			listed = append(listed, a)
		}
	}
	root := s.root(listed)
	kept := s.c.rootComes(root)
	s.pausing = false
	s.changed.Broadcast()
	// This takes as long as writing a larger root.
	s.p.Sleep(time.Duration(s.c.w.Rand.Int64N(int64(100 * time.Millisecond))))
	if err := s.store.SetRoot(ctx, root); err != nil {
		return err
	}
	kept()
	for _, a := range slices.Clone(s.segs) {
		if a.root = slices.Contains(listed, a); !a.root {
			s.bury(a)
		}
	}
	if s.serving {
		s.log.Drop(upTo)
	}
	return nil
}

// rootComes notes that the manifest is about to get a root. The caller calls kept when the manifest has it: then no
// earlier root can get there any more. If the caller does not know, or is killed, the manifest may still get the root
// for some time.
func (c *cluster) rootComes(root []byte) (kept func()) {
	c.coming = append(c.coming, &root)
	upTo := func() int { return slices.Index(c.coming, &root) + 1 }
	c.w.After(15*time.Second, func() { c.coming = slices.Delete(c.coming, max(0, upTo()-1), upTo()) })
	return func() { c.coming = slices.Delete(c.coming, 0, upTo()) }
}

// keep makes checkpoints.
func (s *server) keep() {
	for s.serving && !s.leaving {
		s.p.Sleep(s.c.during(time.Second, s.c.cfg.every))
		ctx, cancel := s.p.WithTimeout(context.Background(), 10*time.Second)
		err := s.checkpoint(ctx)
		cancel()
		if err == nil {
			s.c.counts.checkpoints++
		}
	}
}

// set changes the value of a key, and reports whether the change counts.
func (s *server) set(key uint32, value []byte) bool {
	for s.pausing {
		s.changed.Wait(s.p)
	}
	if !s.serving || s.leaving {
		return false
	}
	number, err := s.log.Append(value)
	if err != nil {
		return false
	}
	s.apply(key, value, number)
	return s.log.Commit(number) == nil
}

// get returns the version of the value of a key, and whether it may be shown.
func (s *server) get(key uint32) (version uint64, ok bool) {
	if !s.serving {
		return 0, false
	}
	early := s.c.harness("look-before-reading") && s.looked[key]
	it := s.items[key]
	number := uint64(0)
	if it != nil {
		number = it.number
	}
	var in *area
	if it != nil {
		in = it.at
	}
	b, version, err := s.value(key)
	switch {
	case errors.Is(err, errWrong):
		left := 0 // good copies, which may be at nodes that cannot be reached now
		s.c.goodCopies(in.seg.Name(), func(*node, int, *chunk) { left++ })
		if left == 0 && s.owns() {
			s.c.wrong("key %d has wrong bytes in all copies", key)
		}
		return 0, false
	case err != nil:
		var lost *store.LostError
		if errors.As(err, &lost) && s.owns() {
			s.c.wrong("key %d is lost: %v", key, err)
		}
		s.c.counts.unread++
		return 0, false
	}
	if version > 0 {
		if v, ok := versionIn(b, key); !ok || v != version {
			s.c.wrong("key %d has wrong bytes", key)
		}
	}
	if number > 0 && !s.c.harness("show-what-does-not-count") && s.log.Commit(number) != nil {
		return 0, false
	}
	s.looked[key] = s.o.Shown(100 * time.Millisecond)
	if ok = early || s.looked[key]; ok {
		for _, h := range s.c.servers {
			if o := h.now; o != nil && o.serving && o.o.Epoch() > s.o.Epoch() {
				s.c.wrong("%s answers in epoch %d, and %s serves in epoch %d", s.host, s.o.Epoch(), h.name, o.o.Epoch())
			}
		}
	}
	return version, ok
}

// owns reports whether s is the heap's owner by the manifest, as nobody but the simulator can know.
func (s *server) owns() bool {
	m := s.c.manifest()
	return m != nil && m.Epoch == s.o.Epoch()
}

// logger writes into the trace.
func (c *cluster) logger(host string) *slog.Logger {
	return slog.New(&traceHandler{c: c, host: host})
}
