package server

import (
	"encoding/json"
	"time"

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
