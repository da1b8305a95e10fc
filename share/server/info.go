package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"polder/internal/failpoint"
	"polder/share/internal/wire"
	"polder/share/resource"
)

// Info describes the daemon.
func (s *Server) Info() wire.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := wire.Info{
		Pools:    s.res.Pools(),
		Keys:     s.idx.Len(),
		Bytes:    s.idx.Bytes(),
		Sessions: len(s.sessions),
		Conns:    len(s.conns),
		Views:    s.pages.Views(),
		Waiting:  s.pages.Waiting(),
		Tenants:  s.res.Used(),
		Settling: len(s.settling),
		Fenced:   len(s.fenced),
		Uptime:   time.Since(s.started).Seconds(),

		Puts:      s.stats.puts.Load(),
		Existed:   s.stats.existed.Load(),
		Lookups:   s.stats.lookups.Load(),
		Hits:      s.stats.hits.Load(),
		Deletes:   s.stats.deletes.Load(),
		Evictions: s.stats.evictions.Load(),
		Expired:   s.stats.expired.Load(),
		Allocs:    s.stats.allocs.Load(),
		Frees:     s.stats.frees.Load(),
		Reaped:    s.stats.reaped.Load(),
		Denied:    s.stats.denied.Load(),
		Records:   s.stats.records.Load(),
		Posted:    s.stats.posted.Load(),

		Checkpoints:       s.stats.checkpoints.Load(),
		FailedCheckpoints: s.stats.failedCheckpoints.Load(),
		LogBytes:          s.log.Size(),
		LogFull:           s.log.Starved() != nil,
		MaruLate:          s.stats.late.Load(), MaruOverwritten: s.stats.overwritten.Load(),

		Requests: map[string]uint64{},
	}
	for r := range s.res.Regions() {
		info.Regions++
		if r.State == resource.Deferred {
			info.Deferred++
		}
	}
	for op := wire.Hello; op <= wire.LastOp; op++ {
		if n := s.stats.requests[op].Load(); n > 0 {
			info.Requests[op.String()] = n
		}
	}
	return info
}

func (c *conn) info() error {
	if err := c.in.Err(); err != nil {
		return err
	}
	return c.json(c.s.Info())
}

func (c *conn) json(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.out = c.out.Raw(b)
	return nil
}

// maxList is how many things one reply lists, so that it fits a message.
const maxList = 128

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

// listStep is how many keys are looked at while others wait.
const listStep = 1024

// keyInfos describes keys. It lets others go on in between: what is put or deleted
// meanwhile is there or not.
func (s *Server) keyInfos(prefix, after string, limit int) []wire.KeyInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The smallest keys, kept in order while all are looked at.
	infos := []wire.KeyInfo{}
	n := 0
	for e := range s.idx.All() {
		if n++; n%listStep == 0 {
			s.mu.Unlock()
			failpoint.Hit("daemon.list-paused")
			s.mu.Lock()
		}
		if e.Key <= after || !strings.HasPrefix(e.Key, prefix) {
			continue
		}
		i, _ := slices.BinarySearchFunc(infos, e.Key, func(k wire.KeyInfo, key string) int { return strings.Compare(k.Key, key) })
		if i >= limit {
			continue
		}
		pins := 0
		for _, n := range e.Pins() {
			pins += int(n)
		}
		infos = slices.Insert(infos, i, wire.KeyInfo{Key: e.Key, Region: e.Region, Offset: e.Offset, Length: e.Length, Pins: pins, Expires: e.Expires})
		infos = infos[:min(len(infos), limit)]
	}
	return infos
}

func (s *Server) regionInfos(after string, limit int) []wire.RegionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := []wire.RegionInfo{}
	for r := range s.res.Regions() {
		if len(infos) == limit {
			break
		}
		if after != "" && fmt.Sprintf("%016x", r.ID) <= after {
			continue
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

// awaited describes up to limit of the sessions that the daemon waits for.
func (s *Server) awaited(limit int) (infos []wire.SessionInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ss := range s.settling {
		if len(infos) < limit {
			infos = append(infos, s.sessionInfo(ss))
		}
	}
	return infos
}
