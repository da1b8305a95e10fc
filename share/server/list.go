package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"polder/internal/failpoint"
	"polder/internal/fdpass"
	"polder/share/internal/wire"
	"polder/share/resource"
)

const (
	// maxList is how many things one reply lists, so that it fits a message.
	maxList = 128
	// A key takes up to byteJSON bytes of a reply for each of its own, as \ufffd and again in base64, and keyJSON more.
	byteJSON, keyJSON = 8, 192
	// listStep is how many keys are looked at while others wait.
	listStep = 1024
	// listAhead is how many keys one look at all keys collects, for this request and for those that go on from its
	// answer.
	listAhead = 1 << 15
	// maxListings bounds the listings that are kept. Going on with one of them is quick.
	maxListings = 4
	// listingKept is how long a listing is kept that nobody goes on with.
	listingKept = 10 * time.Second
)

// listing is a stretch of a list of keys: those that begin with prefix and come
// after a given one, up to the last that it has.
type listing struct {
	prefix, after string
	keys          []string // in order
	all           bool     // no key follows the last
	used          time.Time
}

// knows reports whether the listing has the keys that come after a given one.
func (l *listing) knows(prefix, after string) bool {
	return l.prefix == prefix && after >= l.after && (l.all || after < l.keys[len(l.keys)-1])
}

// list lists keys by prefix, regions, or sessions, in order, after a given one.
func (c *conn) list() error {
	what, prefix, after, limit := c.in.U8(), string(c.in.Bytes()), string(c.in.Bytes()), int(c.in.U32())
	if err := c.in.Err(); err != nil {
		return err
	}
	limit = min(limit, maxList)
	s := c.s
	switch what {
	case wire.ListKeys:
		return c.json(s.keyInfos(prefix, after, limit))
	case wire.ListRegions:
		return c.json(s.regionInfos(after, limit))
	case wire.ListSessions:
		return c.json(s.sessionInfos(after, limit))
	}
	return fmt.Errorf("%w: nothing of kind %d can be listed", errInvalid, what)
}

// keyInfos describes keys. What is put or deleted meanwhile is there or not.
func (s *Server) keyInfos(prefix, after string, limit int) []wire.KeyInfo {
	infos := []wire.KeyInfo{}
	room := fdpass.MaxMessage - keyJSON
	for len(infos) < limit {
		keys, all := s.keysAfter(prefix, after)
		s.mu.Lock()
		for _, key := range keys[:min(len(keys), listStep)] {
			after = key
			e := s.idx.Get([]byte(key))
			if e == nil {
				continue
			}
			pins := 0
			for _, n := range e.Pins() {
				pins += int(n)
			}
			info := wire.KeyInfo{Key: e.Key, Region: e.Region, Offset: e.Offset, Length: e.Length, Pins: pins, Expires: e.Expires}
			if !utf8.ValidString(e.Key) {
				info.Raw = []byte(e.Key)
			}
			infos = append(infos, info)
			room -= byteJSON*len(e.Key) + keyJSON
			if room < byteJSON*wire.MaxKey+keyJSON {
				limit = len(infos) // the next key may not fit
			}
			if len(infos) == limit {
				break
			}
		}
		s.mu.Unlock()
		if all && len(keys) <= listStep {
			break
		}
	}
	return infos
}

// keysAfter returns the keys after a given one, in order, and whether no other key follows. It looks at all keys when
// a client begins a list; when the client goes on, only after what was found then is used up.
func (s *Server) keysAfter(prefix, after string) (keys []string, all bool) {
	l := s.listed(prefix, after)
	if l == nil {
		l = s.lookThrough(prefix, after)
		s.keepListing(l)
	}
	at, found := slices.BinarySearch(l.keys, after)
	if found {
		at++
	}
	return l.keys[at:], l.all
}

// listed returns a listing that has the keys after a given one, or nil. A client that begins a list gets none: its
// list must have what was put since a listing was made.
func (s *Server) listed(prefix, after string) *listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.listings, func(l *listing) bool { return l.knows(prefix, after) })
	if after == "" || at < 0 {
		return nil
	}
	s.listings[at].used = time.Now()
	return s.listings[at]
}

func (s *Server) keepListing(l *listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listings = append(s.listings, l)
	if len(s.listings) > maxListings {
		s.listings = slices.Delete(s.listings, 0, 1)
	}
}

// dropListings forgets the listings that nobody has gone on with for long.
func (s *Server) dropListings() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listings = slices.DeleteFunc(s.listings, func(l *listing) bool { return time.Since(l.used) > listingKept })
}

// lookThrough looks at all keys, and collects the first ones that have the prefix and come after a given key, up to
// listAhead of them. It lets others go on in between.
func (s *Server) lookThrough(prefix, after string) *listing {
	l := &listing{prefix: prefix, after: after, all: true, used: time.Now()}
	prune := func() {
		slices.Sort(l.keys)
		if len(l.keys) > listAhead {
			l.keys, l.all = slices.Delete(l.keys, listAhead, len(l.keys)), false
		}
	}
	s.mu.Lock()
	n, last := 0, ""
	for e := range s.idx.All() {
		if n++; n%listStep == 0 {
			s.mu.Unlock()
			failpoint.Hit("daemon.list-paused")
			letOthersRun()
			if len(l.keys) >= 2*listAhead {
				prune()
				last = l.keys[len(l.keys)-1]
			}
			s.mu.Lock()
		}
		if e.Key > after && strings.HasPrefix(e.Key, prefix) && (l.all || e.Key < last) {
			l.keys = append(l.keys, e.Key)
		}
	}
	s.mu.Unlock()
	prune()
	return l
}

func (s *Server) regionInfos(after string, limit int) []wire.RegionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := []wire.RegionInfo{}
	id, _ := strconv.ParseUint(after, 16, 64) // after nothing: the first
	for r := range s.res.RegionsAfter(id) {
		if len(infos) == limit {
			break
		}
		infos = append(infos, wire.RegionInfo{
			ID: r.ID, Pool: r.Pool, Offset: r.Offset, Length: r.Length, PageSize: r.PageSize,
			Kind: regionKind(r), State: r.State.String(), Owner: r.Owner, Tenant: r.Tenant, Readers: r.Readers, Refs: r.Refs, Retired: r.Retired,
		})
	}
	return infos
}

func regionKind(r *resource.Region) string {
	if r.Maru {
		return "maru"
	}
	return "native"
}

func (s *Server) sessionInfos(after string, limit int) []wire.SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := []wire.SessionInfo{}
	for _, ss := range s.sessions {
		if after != "" && fmt.Sprintf("%016x", ss.id) <= after {
			continue
		}
		infos = append(infos, s.sessionInfo(ss))
	}
	slices.SortFunc(infos, func(a, b wire.SessionInfo) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return infos[:min(len(infos), limit)]
}

// sessionInfo describes a session.
//
// Preconditions: s.mu is held.
func (s *Server) sessionInfo(ss *session) wire.SessionInfo {
	info := wire.SessionInfo{
		ID: ss.id, PID: ss.pid, UID: ss.uid, Name: ss.name, Tenant: ss.tenant, Remote: ss.door == remote, Maru: ss.door.Maru(),
		Conns: ss.conns, Maps: len(ss.maps), State: "attached",
	}
	if ss.conns == 0 {
		info.State, info.Away = "away", s.opt.Now().Sub(ss.gone).Seconds()
	}
	if s.settling[ss.id] != nil {
		info.State = "awaited"
	}
	return info
}
