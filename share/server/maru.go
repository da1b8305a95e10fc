package server

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"polder/internal/failpoint"
	"polder/internal/fdpass"
	"polder/share/internal/wire"
	"polder/share/meta"
	"polder/share/resource"
)

// What package maru needs of the daemon: clients that speak Maru's protocol are
// sessions like others, and their regions and keys are in the same pools, index
// and log. What differs is that the clients open a region by its path and map it
// writable, that a key lies anywhere in a region, and that who is told of a key
// does not tell for how long it looks at it.

// Errors that Maru's clients meet.
var (
	// ErrLate is returned for what has waited so long that its client has given
	// up and may have filled the place anew.
	ErrLate = errors.New("the request comes too late: its sender has given up")
	// ErrToken is returned for a token that the daemon has not issued for what is
	// asked, or to somebody else.
	ErrToken = errors.New("the token does not grant this")
	// ErrNoRegion is returned for a region that does not exist.
	ErrNoRegion = resource.ErrUnknown
)

// A Guest is a client that speaks Maru's protocol, for as long as one of its
// connections. Its methods may be called by any number of goroutines.
type Guest struct {
	s  *Server
	ss *session // guarded by s.mu: see owns

	link  io.Closer // the connection to the directory, or nil
	known bool      // the session was there before
}

// MaruRegion is a region as Maru's clients know it.
type MaruRegion struct {
	ID     uint64
	Length int64
	Token  uint64 // proves, to the daemon, to whom it was told
}

// MaruKey is a key with the place that it is, or is to be, registered for.
type MaruKey struct {
	Key    string
	Region uint64
	Offset int64
	Length int64
}

// Found is what a lookup has found.
type Found struct {
	MaruRegion
	At, Size int64 // of the value, in the region
}

// Admit attaches a connection. A client that has shown the identity before is the
// same one again; one without is a new one. Link is closed if somebody kicks the
// client. Unix is the connection, if the client is on this machine and came by a
// Unix socket: its death is noticed at once.
func (s *Server) Admit(identity string, link io.Closer, unix *fdpass.Conn) (*Guest, error) {
	return s.admitMaru(identity, link, unix, maru)
}

// AdmitDirectory attaches a connection of another directory server, which asks for
// regions and tells its own clients of them: they may present its tokens.
func (s *Server) AdmitDirectory(identity string) (*Guest, error) {
	return s.admitMaru(identity, nil, nil, maruOther)
}

func (s *Server) admitMaru(identity string, link io.Closer, unix *fdpass.Conn, d door) (*Guest, error) {
	peer, tenant := fdpass.Peer{UID: -1}, "maru"
	if unix != nil {
		var err error
		if peer, err = unix.Peer(); err != nil {
			return nil, err
		}
		if !s.mayConnect(peer) {
			s.stats.denied.Add(1)
			return nil, fmt.Errorf("%w: user %d may not connect", errDenied, peer.UID)
		}
		tenant = fmt.Sprintf("uid:%d", peer.UID)
	}
	if identity == "" {
		d = maruPlain
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: it ends", errBusy)
	}
	var tok token
	mac := hmac.New(sha256.New, s.secret[:])
	fmt.Fprintf(mac, "maru %d %s %s", d, tenant, identity)
	copy(tok[:], mac.Sum(nil))
	ss := s.tokens[tok]
	known := ss != nil && d != maruPlain
	if ss == nil || d == maruPlain {
		var err error
		if ss, err = s.newSession(peer, d, tenant, ""); err != nil {
			return nil, err
		}
		if d != maruPlain {
			delete(s.tokens, ss.token)
			ss.token = tok
			s.tokens[tok] = ss
		}
		if unix != nil {
			if pidfd, err := unix.PeerPidFD(); err == nil {
				if err := s.watchProcess(ss, pidfd); err != nil {
					return nil, err
				}
			}
		}
	}
	ss.recovered = false
	ss.silent = true
	g := &Guest{s: s, ss: ss, link: link, known: known}
	g.join(ss)
	return g, nil
}

// join counts the connection in.
//
// Preconditions: s.mu is held.
func (g *Guest) join(ss *session) {
	ss.conns++
	if g.link != nil {
		ss.links[g.link] = struct{}{}
	}
}

// Leave ends a connection. When the last one of a client has ended for the grace
// period, so has the client, if it holds anything; else at once.
func (g *Guest) Leave() {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	g.ss.conns--
	if g.link != nil {
		delete(g.ss.links, g.link)
	}
	g.ss.gone = s.opt.Now()
	if g.ss.conns == 0 && !g.ss.logged {
		s.must(s.endSession(g.ss)) // nothing to log, so nothing can fail
	}
}

// Same reports whether two guests are one client.
func (g *Guest) Same(o *Guest) bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.ss == o.ss
}

// Known reports whether the client was there before: it may have been told to
// give up on what it sends first.
func (g *Guest) Known() bool { return g.known }

// Plain reports whether the client shows no identity, so that its connections
// cannot be told to be the same client's.
func (g *Guest) Plain() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.ss.door == maruPlain
}

// Bearer reports whether the tokens that the client was told may be presented by
// others.
func (g *Guest) Bearer() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.ss.door == maruOther
}

// ID returns the number by which the daemon knows the client.
func (g *Guest) ID() uint64 {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.ss.id
}

// Speaks tells that the connection has said something. One that has not may be
// that of any client without an identity that has lost its own.
func (g *Guest) Speaks() {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.ss.silent = false
}

// fresh fails if what has arrived then has waited for too long.
func (s *Server) fresh(arrived time.Time) error {
	if waited := s.opt.Now().Sub(arrived); waited > s.opt.Late {
		s.stats.late.Add(1)
		return fmt.Errorf("%w (it has waited %v)", ErrLate, waited.Round(time.Millisecond))
	}
	return nil
}

// live fails if the session has ended while its connection has not.
//
// Preconditions: s.mu is held.
func (g *Guest) live() error {
	if g.ss.ended {
		return fmt.Errorf("%w: the session has ended", errMissing)
	}
	return nil
}

// hold makes sure that the client is in the log before it comes to hold
// something. The name that it gives first stays.
func (g *Guest) hold(instance string) error {
	if len(instance) > wire.MaxName {
		return fmt.Errorf("%w: an instance id of %d bytes, want at most %d", errInvalid, len(instance), wire.MaxName)
	}
	g.s.mu.Lock()
	ss := g.ss
	g.s.mu.Unlock()
	return g.s.logSession(ss, instance)
}

// Alloc carves a region of at least size bytes, all of which have memory behind
// them.
func (g *Guest) Alloc(arrived time.Time, instance string, size int64) (MaruRegion, error) {
	s := g.s
	if size <= 0 || size > 1<<48 {
		return MaruRegion{}, fmt.Errorf("%w: a region of %d bytes", errInvalid, size)
	}
	if err := errors.Join(s.fresh(arrived), g.hold(instance)); err != nil {
		return MaruRegion{}, err
	}
	for {
		r, lsn, err := g.carve(size)
		if errors.Is(err, resource.ErrFull) && s.opt.LRU {
			if freed, ferr := s.evictOrphan(); ferr != nil {
				return MaruRegion{}, ferr
			} else if freed {
				continue
			}
		}
		if err != nil {
			return MaruRegion{}, err
		}
		s.stats.allocs.Add(1)
		failpoint.Hit("daemon.maru-alloc-applied")
		if err := s.commit(lsn, r.Durable()); err != nil {
			return MaruRegion{}, err
		}
		return MaruRegion{r.ID, r.Length, s.maruToken(r.Owner, r.ID, r.Length)}, nil
	}
}

func (g *Guest) carve(size int64) (r *resource.Region, lsn uint64, err error) {
	s := g.s
	s.mu.Lock()
	if err = g.live(); err == nil {
		r, err = s.res.CarveMaru(size, g.ss.id, g.ss.tenant)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, 0, err
	}
	err = r.Reserve()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = errors.Join(g.live(), s.res.CheckQuota(r.Tenant, r.Length)) // others may have been faster
	}
	if err == nil {
		s.must(r.Step(resource.OwnerMaps))
		lsn, err = s.append(encodeRegion(s.rec[:0], r))
	}
	if err != nil {
		return nil, 0, errors.Join(err, s.res.Discard(r))
	}
	s.res.Install(r)
	return r, lsn, nil
}

// maruToken proves that a region was told to a session: the low 16 bits of the
// session's number, by which it is found, and 48 bits that only the daemon can
// compute.
func (s *Server) maruToken(session, region uint64, length int64) uint64 {
	h := s.secret.Sign(resource.Handle{Region: region, Holder: session, Length: uint64(length), Rights: resource.Maru})
	t := session << 48
	for i, b := range h.MAC[:6] {
		t |= uint64(b) << (8 * i)
	}
	return t
}

// Return takes a region back from its owner. Keys in it stay, and the memory with
// them.
func (g *Guest) Return(region uint64, instance string) (bool, error) {
	s := g.s
	return s.giveUp(region, func(r *resource.Region) bool { return s.sessions[r.Owner].name == instance && g.owns(r) })
}

// Abandon takes back a region that its owner does not seem to know of.
func (s *Server) Abandon(region uint64) error {
	_, err := s.giveUp(region, func(*resource.Region) bool { return true })
	return err
}

// giveUp takes a region from its owner, if it has one and may is true of it.
func (s *Server) giveUp(region uint64, may func(*resource.Region) bool) (bool, error) {
	s.mu.Lock()
	r := s.res.Region(region)
	if r == nil || !r.Maru || r.Owner == 0 || !may(r) {
		s.mu.Unlock()
		return false, nil
	}
	lsn, err := s.append(s.rec[:0].U8(recReleased).U64(r.ID))
	if err == nil {
		s.must(s.applyReleased(r))
		s.settle(r)
	}
	s.mu.Unlock()
	if err == nil {
		err = s.commit(lsn, r.Durable())
	}
	s.finish(false)
	return err == nil, err
}

// owns reports whether the client may register keys in a region and return it.
// Clients without an identity cannot be told from one another, unless they are
// processes that the kernel knows: one that acts as the owner counts as the owner,
// and if that has no connection, it is taken to be it.
//
// Preconditions: s.mu is held.
func (g *Guest) owns(r *resource.Region) bool {
	owner := g.s.sessions[r.Owner]
	switch {
	case owner == g.ss:
		return true
	case owner == nil || owner.door != maruPlain || g.ss.door != maruPlain || owner.pid != g.ss.pid:
		return false
	}
	owner.gone = g.s.opt.Now()
	if owner.conns == 0 && !g.ss.logged && g.ss.conns == 1 {
		g.s.must(g.s.endSession(g.ss)) // it has held nothing
		owner.recovered, g.ss = false, owner
		g.join(owner)
	}
	return true
}

// mayBeBack reports whether a client without an identity, and without a
// connection, may be behind one that has not said anything yet.
//
// Preconditions: s.mu is held.
func (s *Server) mayBeBack(ss *session) bool {
	if ss.door != maruPlain {
		return false
	}
	for _, o := range s.sessions {
		if o.door == maruPlain && o.silent && o.conns > 0 && o.pid == ss.pid {
			return true
		}
	}
	return false
}

// Regions returns the regions that their owners have not returned, but for those
// of an instance.
func (g *Guest) Regions(except string) []MaruRegion {
	s := g.s
	var found []MaruRegion
	s.mu.Lock()
	for r := range s.res.Regions() {
		if r.Maru && r.Owner != 0 && (except == "" || s.sessions[r.Owner].name != except) {
			found = append(found, MaruRegion{ID: r.ID, Length: r.Length})
		}
	}
	id := g.ss.id
	s.mu.Unlock()
	for i, r := range found {
		found[i].Token = s.maruToken(id, r.ID, r.Length)
	}
	return found
}

// Holder returns the client that a region was told to with a token, for one more
// connection of it.
func (s *Server) Holder(region uint64, offset, length int64, tok uint64) (*Guest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.res.Region(region)
	if r == nil || !r.Maru {
		return nil, fmt.Errorf("region %d: %w", region, ErrNoRegion)
	}
	if offset == 0 && length == r.Length {
		for id, ss := range s.sessions {
			if ss.door.Maru() && uint16(id) == uint16(tok>>48) && s.maruToken(id, r.ID, r.Length) == tok {
				g := &Guest{s: s, ss: ss, known: true}
				g.join(ss)
				return g, nil
			}
		}
	}
	s.stats.denied.Add(1)
	return nil, fmt.Errorf("region %d: %w", region, ErrToken)
}

// Open returns the path of a region, which counts as mapped until Shut.
func (s *Server) Open(region uint64) (path string, length int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.res.Region(region)
	if r == nil || !r.Maru {
		return "", 0, fmt.Errorf("region %d: %w", region, ErrNoRegion)
	}
	if err := r.Step(resource.ReaderMaps); err != nil {
		return "", 0, err
	}
	r.Readers++
	return r.Path(), r.Length, nil
}

// Shut tells that who was told of a region's path is gone.
func (s *Server) Shut(region uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.res.Unmapped(region); err != nil && !errors.Is(err, resource.ErrUnknown) { // it was evicted
		s.opt.Log.Error("BUG: cannot unmap a region of Maru's", "region", region, "err", err)
	}
}

func inside(r *resource.Region, offset, length int64) bool {
	return offset >= 0 && length > 0 && offset <= r.Length-length
}

func newMaruEntry(r *resource.Region, offset, length int64, key string) *meta.Entry {
	return &meta.Entry{Key: key, Region: r.ID, Owner: r.Owner, Offset: offset, Length: length}
}

// maxMaruKeys is how many keys a region of Maru's may hold.
const maxMaruKeys = 1 << 18

// Register registers keys, and tells of each whether it is new, or why it was
// refused. What was done too late is undone.
func (g *Guest) Register(arrived time.Time, keys []MaruKey) (isNew []bool, refused []error) {
	s := g.s
	isNew, refused = make([]bool, len(keys)), make([]error, len(keys))
	all := func(err error) ([]bool, []error) {
		clear(isNew)
		for i := range refused {
			refused[i] = cmp.Or(refused[i], err)
		}
		return isNew, refused
	}
	s.mu.Lock()
	if err := errors.Join(s.fresh(arrived), g.live()); err != nil {
		s.mu.Unlock()
		return all(err)
	}
	failpoint.Hit("daemon.maru-put-checked")
	var put []*meta.Entry
	var n need
	for i, k := range keys {
		e, err := g.register(k)
		refused[i] = err
		if isNew[i] = e != nil; isNew[i] {
			put = append(put, e)
			n.add(e)
		} else if old := s.idx.Get([]byte(k.Key)); err == nil && old != nil {
			n.add(old)
		}
	}
	s.mu.Unlock()
	failpoint.Hit("daemon.maru-put-applied")
	if err := s.commitNeed(n); err != nil {
		return all(err)
	}
	if err := s.fresh(arrived); err != nil {
		return all(errors.Join(err, s.undo(put)))
	}
	return isNew, refused
}

// register registers a key; it returns nil if the key was there already.
//
// Preconditions: s.mu is held.
func (g *Guest) register(k MaruKey) (*meta.Entry, error) {
	s := g.s
	r := s.res.Region(k.Region)
	switch old := s.idx.Get([]byte(k.Key)); {
	case k.Key == "" || len(k.Key) > wire.MaxKey:
		return nil, fmt.Errorf("%w: a key of %d bytes, want 1 to %d", errInvalid, len(k.Key), wire.MaxKey)
	case r == nil || !r.Maru:
		return nil, fmt.Errorf("region %d: %w", k.Region, ErrNoRegion)
	case r.Owner == 0:
		return nil, fmt.Errorf("%w: region %d has been returned, or its owner was taken for dead", errDenied, k.Region)
	case !g.owns(r):
		s.stats.denied.Add(1)
		return nil, fmt.Errorf("%w: region %d belongs to another client", errDenied, k.Region)
	case !inside(r, k.Offset, k.Length):
		return nil, fmt.Errorf("%w: %d bytes at %d of region %d, which has %d", errInvalid, k.Length, k.Offset, r.ID, r.Length)
	case old != nil && !old.Maru():
		return nil, fmt.Errorf("%w: the key is that of a client that is not Maru's", errInvalid)
	case old != nil:
		s.stats.existed.Add(1)
		return nil, nil
	case len(s.idx.Spans(r.ID)) >= maxMaruKeys:
		return nil, fmt.Errorf("%w: region %d has %d keys already", errInvalid, r.ID, maxMaruKeys)
	}
	// Who fills a place anew has freed it: a key that was there shows other bytes
	// now than those it was registered with, whatever has become of its deletion.
	for e := s.idx.Overlap(r.ID, k.Offset, k.Length); e != nil; e = s.idx.Overlap(r.ID, k.Offset, k.Length) {
		if _, err := s.remove(e); err != nil {
			return nil, err
		}
		s.stats.overwritten.Add(1)
	}
	lsn, err := s.append(encodeMaruPut(s.rec[:0], r.ID, k.Offset, k.Length, k.Key))
	if err != nil {
		return nil, err
	}
	e := newMaruEntry(r, k.Offset, k.Length, k.Key)
	e.LSN, e.Durable = lsn, r.Durable()
	s.idx.Put(e)
	r.Refs++
	s.stats.puts.Add(1)
	return e, nil
}

// undo takes entries away again, for good: the client that is told so fills their
// places anew.
func (s *Server) undo(put []*meta.Entry) error {
	var n need
	var err error
	s.mu.Lock()
	for _, e := range put {
		if s.idx.Get([]byte(e.Key)) != e {
			continue
		}
		var gone need
		if gone, err = s.remove(e); err != nil {
			break
		}
		n.lsn, n.sync = gone.lsn, n.sync || gone.sync
	}
	s.mu.Unlock()
	return errors.Join(err, s.commitNeed(n))
}

// get returns the entry of a key of Maru's, or nil.
//
// Preconditions: s.mu is held.
func (g *Guest) get(key string) *meta.Entry {
	e := g.s.idx.Get([]byte(key))
	if e == nil || !e.Maru() {
		return nil
	}
	return e
}

// Lookup says where keys lie. It is the hot path of Maru's clients.
func (g *Guest) Lookup(keys []string, each func(i int, found bool, f Found)) error {
	s := g.s
	var n need
	found := make([]Found, len(keys))
	now := s.opt.Now()
	hits := 0
	s.mu.Lock()
	id := g.ss.id
	for i, key := range keys {
		e := g.get(key)
		if e == nil {
			continue
		}
		hits++
		n.add(e)
		if s.opt.LRU {
			s.idx.Touch(e)
		}
		r := s.res.Region(e.Region)
		r.Used = now
		found[i] = Found{MaruRegion: MaruRegion{ID: r.ID, Length: r.Length}, At: e.Offset, Size: e.Length}
	}
	s.mu.Unlock()
	s.stats.lookups.Add(1)
	s.stats.hits.Add(uint64(hits))
	if err := s.commitNeed(n); err != nil {
		return err
	}
	var last MaruRegion
	for i, f := range found {
		if f.ID != 0 && f.ID != last.ID {
			last = MaruRegion{f.ID, f.Length, s.maruToken(id, f.ID, f.Length)}
		}
		if f.ID != 0 {
			f.MaruRegion = last
		}
		each(i, f.ID != 0, f)
	}
	return nil
}

// Exists tells which of the keys are there.
func (g *Guest) Exists(keys []string) ([]bool, error) {
	s := g.s
	found := make([]bool, len(keys))
	var n need
	s.mu.Lock()
	for i, key := range keys {
		if e := g.get(key); e != nil {
			found[i] = true
			n.add(e)
		}
	}
	s.mu.Unlock()
	return found, s.commitNeed(n)
}

// Delete deletes a key; false if it is not there, or pinned.
func (g *Guest) Delete(key string) (bool, error) {
	s := g.s
	s.mu.Lock()
	e := g.get(key)
	if e == nil || e.Pinned() {
		s.mu.Unlock()
		return false, nil
	}
	n, err := s.remove(e)
	s.mu.Unlock()
	if err == nil {
		err = s.commitNeed(n)
	}
	if err != nil {
		return false, err
	}
	s.stats.deletes.Add(1)
	s.finish(false)
	return true, nil
}

// Pin pins the longest prefix of the keys that exists, for as long as the client
// lives, and returns how many that are.
func (g *Guest) Pin(arrived time.Time, keys []string) (int, error) {
	s := g.s
	if err := errors.Join(s.fresh(arrived), g.hold("")); err != nil {
		return 0, err
	}
	var n need
	count := 0
	s.mu.Lock()
	err := g.live()
	for ; err == nil && count < len(keys); count++ {
		e := g.get(keys[count])
		if e == nil {
			break
		}
		var lsn uint64
		if lsn, err = s.append(s.rec[:0].U8(recPin).U64(g.ss.id).String(e.Key)); err != nil {
			break
		}
		n.add(e)
		n.lsn = lsn
		s.idx.Pin(e, g.ss.id, 1)
	}
	s.mu.Unlock()
	return count, errors.Join(err, s.commitNeed(n))
}

// Unpin takes one pin of each key back, and tells of which it did: the others are
// not there, or not pinned. In Maru pins belong to nobody: if the client has none
// itself, it takes one of another client of Maru's. If it fails, it is for those
// keys of which it tells nothing good.
func (g *Guest) Unpin(keys []string) ([]bool, error) {
	s := g.s
	unpinned := make([]bool, len(keys))
	var n need
	var err error
	s.mu.Lock()
	for i, key := range keys {
		e := g.get(key)
		if e == nil {
			continue
		}
		whose := g.pinner(e)
		if whose == 0 {
			continue
		}
		var lsn uint64
		if lsn, err = s.append(s.rec[:0].U8(recUnpin).U64(whose).String(e.Key)); err != nil {
			break
		}
		n.lsn, n.sync = lsn, n.sync || e.Durable
		unpinned[i] = s.idx.Unpin(e, whose)
	}
	s.mu.Unlock()
	return unpinned, errors.Join(err, s.commitNeed(n))
}

// pinner returns the client whose pin of an entry is taken back, or 0.
//
// Preconditions: s.mu is held.
func (g *Guest) pinner(e *meta.Entry) uint64 {
	if e.PinsOf(g.ss.id) > 0 {
		return g.ss.id
	}
	for id := range e.Pins() {
		if ss := g.s.sessions[id]; ss != nil && ss.door.Maru() {
			return id
		}
	}
	return 0
}

// MaruUsage is what one instance holds.
type MaruUsage struct {
	Instance        string
	Regions         int
	Allocated, Used int64
}

// Usage returns what each instance holds, and the number of keys, and what the
// pools have that Maru's regions may be carved from. Regions whose owners have
// left count for the instance "".
func (g *Guest) Usage() (by []MaruUsage, keys int, free, total int64) {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[string]MaruUsage{}
	for r := range s.res.Regions() {
		if !r.Maru {
			continue
		}
		u := MaruUsage{}
		if r.Owner != 0 {
			u.Instance = s.sessions[r.Owner].name
		}
		sum := of[u.Instance]
		u.Regions, u.Allocated, u.Used = sum.Regions+1, sum.Allocated+r.Length, sum.Used+s.idx.BytesOf(r.ID)
		of[u.Instance] = u
		keys += r.Refs
	}
	for _, p := range s.res.Pools() {
		if p.Maru {
			free, total = free+p.Free, total+p.Size
		}
	}
	return slices.SortedFunc(maps.Values(of), func(a, b MaruUsage) int { return cmp.Compare(a.Instance, b.Instance) }), keys, free, total
}
