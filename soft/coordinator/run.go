package coordinator

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"polder/internal/hostmem"
	"polder/soft/policy"
	"polder/soft/wire"
)

// run is the goroutine that decides.
func (c *Coordinator) run() {
	t := time.NewTimer(0)
	defer t.Stop()
	audited := time.Now()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-t.C:
		case <-c.kick:
		}
		mem, err := c.cfg.Host.Read()
		if err != nil {
			c.cfg.Logger.Error("cannot measure the host", "err", err)
			t.Reset(hostmem.Calm)
			continue
		}
		now := time.Now()
		c.mu.Lock()
		c.idle.Note(mem)
		c.measure()
		if now.Sub(audited) >= c.cfg.Interval {
			audited = now
			c.audit()
		}
		wait := c.step(now)
		c.mu.Unlock()
		t.Reset(wait)
	}
}

func (c *Coordinator) measure() {
	for _, s := range c.sessions {
		s.measure()
		if s.limited {
			s.limit, s.free, s.limited = c.cfg.Host.Limit(strconv.Itoa(s.peer.PID))
		}
	}
}

// relieve takes memory from clients whose own control group is nearly full, however much the host has, and reports
// whether there are any.
func (c *Coordinator) relieve() (short bool) {
	for _, s := range c.sessions {
		reserve := min(s.limit/16, c.cfg.Reserve)
		if !s.limited || s.free >= reserve {
			continue
		}
		short = true
		n := roundUp(reserve - s.free)
		n -= c.takeEmpty(s, n)
		if s.free < reserve/2 {
			c.takeFrom(s, n, s.existing())
		} else if s.shrinkBy.IsZero() {
			s.target = max(s.count-n, 0)
			c.tell(time.Now(), s)
		}
	}
	return short
}

// total is how much soft memory there can be, in bytes: what exists, and what is idle on the host beyond the reserve.
func (c *Coordinator) total() int64 {
	var resident int64
	for _, s := range c.sessions {
		resident += s.resident
	}
	return max(min(resident+c.idle.Beyond(), c.cfg.Max), 0)
}

// step divides, grants and takes. It returns when to look again.
//
// Preconditions: c.mu is held.
func (c *Coordinator) step(now time.Time) time.Duration {
	total := c.total()
	c.stats.Target = total
	if len(c.sessions) == 0 {
		return hostmem.Calm
	}
	short := c.idle.Beyond() < 0
	open := !c.settling(now)
	if short || open && (now.Sub(c.divided) >= c.cfg.Interval || c.anybodyNew() || c.muchMore(total)) {
		c.divide(now, total)
	}
	switch {
	case short:
		c.reclaim(-c.idle.Beyond(), c.idle.Urgent())
	case open:
		c.grow(total)
	}
	c.enforce(now)
	if c.relieve() || short {
		return hostmem.Tense
	}
	return c.idle.Next()
}

// settling reports whether clients of an earlier coordinator may still be on their way back.
func (c *Coordinator) settling(now time.Time) bool { return now.Sub(c.begun) < c.cfg.Grace }

// muchMore reports whether there is so much more memory than at the last
// division that it should not wait for the next: somebody has just let go of
// it.
func (c *Coordinator) muchMore(total int64) bool {
	return total-c.dividedTotal > max(total/32, segmentSize)
}

func (c *Coordinator) anybodyNew() bool {
	for _, s := range c.sessions {
		if s.first && s.target == 0 {
			return true
		}
	}
	return false
}

// divide asks the policy how much each client should have, and tells the clients that have more.
func (c *Coordinator) divide(now time.Time, total int64) {
	seconds := now.Sub(c.divided).Seconds()
	if c.divided.IsZero() {
		seconds = 0
	}
	full := now.Sub(c.divided) >= c.cfg.Interval
	list := c.list()
	apps := make([]policy.App, len(list))
	typical := medianCost(list)
	for i, s := range list {
		if full {
			s.limit, s.free, s.limited = c.cfg.Host.Limit(strconv.Itoa(s.peer.PID))
		}
		apps[i] = s.app(now, seconds, typical)
	}
	for i := range apps {
		even := float64(total) / float64(len(apps))
		used := int64(float64(apps[i].Used)*1.1) + 4*segmentSize
		least := max(c.cfg.MinShare*even, min(workable*segmentSize, even/2))
		if s := list[i]; s.first && now.Sub(s.came) < c.cfg.Grace {
			// Nothing is known of it yet but how much of its memory exists.
			least = max(least, min(even, float64(s.resident)))
		}
		apps[i].Min = min(int64(least), used, apps[i].Max)
		if c.settling(now) { // the host is short: nobody is given more
			apps[i].Max = min(apps[i].Max, apps[i].Memory)
			apps[i].Min = min(apps[i].Min, apps[i].Max)
		}
	}
	out := c.cfg.Policy.Divide(now.Sub(c.begun), total, apps)
	if c.limitUsers(list, apps, out) {
		out = c.cfg.Policy.Divide(now.Sub(c.begun), total, apps)
	}
	for i, s := range list {
		s.target = segments(out[i])
		if full {
			s.before = s.report
		}
	}
	c.dividedTotal = total
	if full {
		c.divided = now
	}
	for _, s := range list {
		c.tell(now, s)
	}
}

// workable is how many segments a heap needs to work at all well: some are open and some are kept free, and if it had
// fewer, the rest would be too few to tell what more memory would bring.
const workable = 8

// tell lets a client know that it has too much.
func (c *Coordinator) tell(now time.Time, s *session) {
	switch {
	case s.count <= s.target:
		s.shrinkBy = time.Time{}
	case s.shrinkBy.IsZero():
		s.shrinkBy = now.Add(c.cfg.Deadline)
		s.send(wire.KindBudget, wire.Budget{Segments: s.target, DeadlineMillis: int(c.cfg.Deadline.Milliseconds())})
	}
}

// limitUsers keeps a division within MaxPerUser: if a user's clients would have more together, it lowers their Max in
// proportion. It reports whether it did, and so whether the memory must be divided again.
func (c *Coordinator) limitUsers(list []*session, apps []policy.App, out []int64) (again bool) {
	sum := make(map[int]int64)
	for i, s := range list {
		sum[s.peer.UID] += out[i]
	}
	for i, s := range list {
		if n := sum[s.peer.UID]; n > c.cfg.MaxPerUser {
			apps[i].Max = min(apps[i].Max, int64(float64(out[i])*float64(c.cfg.MaxPerUser)/float64(n)))
			apps[i].Min = min(apps[i].Min, apps[i].Max)
			again = true
		}
	}
	return again
}

// limitArrival takes segments from a client that has just registered if its user now has more than MaxPerUser: a
// client comes with what it granted itself, or what another coordinator granted it. limitArrival takes only segments
// that do not exist. Those that exist may be worth more than the segments of the user's other clients, so they are
// left to the next division.
func (c *Coordinator) limitArrival(s *session) {
	var used int64
	for _, o := range c.sessions {
		if o.peer.UID == s.peer.UID {
			used += int64(o.count) * segmentSize
		}
	}
	claimed := s.existing()
	for i := range claimed {
		claimed[i] = !claimed[i]
	}
	c.takeFrom(s, roundUp(used-c.cfg.MaxPerUser), claimed)
}

// grow grants what is idle to clients that are below their targets. Granted segments count even if they were never
// touched and cost nothing yet, so that not more is granted than there is.
func (c *Coordinator) grow(total int64) {
	list := c.list()
	granted := 0
	users := make(map[int]int64)
	for _, s := range list {
		granted += s.count
		users[s.peer.UID] += int64(s.count) * segmentSize
	}
	left := segments(total) - granted
	for _, s := range list {
		n := min(s.target-s.count, left, segments(c.cfg.MaxPerUser-users[s.peer.UID]))
		if n <= 0 {
			continue
		}
		// A small grant waits until the client has used what it was given. A large one is made at once, whatever the
		// last report says is free: memory that another client lets go comes in steps, as the kernel frees it.
		if free := segments(s.report.Free); !s.first && n < s.count/8 && free > 8+s.count/8 {
			continue
		}
		before := s.count
		s.grant(n)
		left -= s.count - before
		users[s.peer.UID] += int64(s.count-before) * segmentSize
		if s.count != before {
			s.send(wire.KindBudget, wire.Budget{Segments: s.count})
		}
	}
}

// enforce takes what was not given back in time.
func (c *Coordinator) enforce(now time.Time) {
	for _, s := range c.sessions {
		if s.shrinkBy.IsZero() || now.Before(s.shrinkBy) {
			continue
		}
		s.shrinkBy = time.Time{}
		if n := s.count - s.target; n > 0 {
			c.takeFrom(s, n, s.granted)
		}
	}
}

// reclaim frees memory because less than the reserve is left. Segments that hold nothing are taken at once. The rest
// comes from the clients that divide has told to shrink or, if it is urgent, is taken as well.
func (c *Coordinator) reclaim(bytes int64, urgent bool) {
	list := c.list()
	// Those that are farthest above their targets first.
	slices.SortStableFunc(list, func(a, b *session) int { return cmp.Compare(b.count-b.target, a.count-a.target) })
	for _, s := range list {
		bytes -= s.freed(func() { c.takeEmpty(s, roundUp(bytes)) })
	}
	if !urgent {
		return
	}
	for _, all := range []bool{false, true} {
		for _, s := range list {
			most := s.count
			if !all {
				most -= s.target
			}
			bytes -= s.freed(func() { c.takeFrom(s, min(roundUp(bytes), most), s.existing()) })
		}
	}
}

// takeEmpty takes up to n segments that a client says are empty.
func (c *Coordinator) takeEmpty(s *session, n int) (taken int) {
	for i := 0; i < len(s.granted) && taken < n; i++ {
		// The client is about to write to its last empty segments: leave them.
		if s.granted[i] && s.ctl.Rank(uint32(i)) >= wire.RankFree && segments(s.report.Free) > 4 {
			s.take(uint32(i))
			taken++
		}
	}
	c.took(s, taken)
	return taken
}

// takeFrom takes up to n of those granted segments that from has: empty ones first, then the coldest.
func (c *Coordinator) takeFrom(s *session, n int, from []bool) {
	type candidate struct {
		seg  uint32
		rank uint64
	}
	var list []candidate
	for i, ok := range from {
		if ok && s.granted[i] {
			rank := s.ctl.Rank(uint32(i))
			if rank >= wire.RankFree {
				rank = 0
			} else {
				rank++
			}
			list = append(list, candidate{uint32(i), rank})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(a.rank, b.rank) })
	n = max(min(n, len(list)), 0)
	for _, x := range list[:n] {
		s.take(x.seg)
	}
	c.took(s, n)
}

func (c *Coordinator) took(s *session, n int) {
	if n <= 0 {
		return
	}
	c.stats.Direct += uint64(n)
	s.send(wire.KindRevoked, wire.Revoked{Segments: n})
}

// audit compares what exists with what was granted. A reader that was overtaken by a revocation makes a few pages
// exist again, so all that is not granted is punched again. A client that makes much of it exist again and again is
// ended.
func (c *Coordinator) audit() {
	for _, s := range c.sessions {
		if s.gone {
			continue
		}
		undone := 0
		for i, ok := range s.granted {
			if !ok && s.ctl.Revoke(uint32(i)) {
				undone++ // its owner undid our revocation
			}
		}
		excess := s.resident - int64(s.count)*segmentSize
		if excess <= 0 && undone == 0 {
			s.violations = 0
			continue
		}
		c.stats.Audits++
		for i, ok := range s.granted {
			if !ok {
				_ = s.memory.Punch(i*segmentSize, segmentSize)
			}
		}
		if excess > tolerated {
			s.violations++
		}
		if s.violations >= maxViolations {
			c.cfg.Logger.Warn("a client keeps memory that was taken from it, and is ended",
				"client", s.id, "name", s.hello.Name, "pid", s.peer.PID, "excess", excess)
			s.end(true)
			s.gone = true
			c.stats.Ended++
			s.conn.Close()
		}
		s.measure()
	}
}

const (
	tolerated     = 64 << 20 // what readers in flight may have touched
	maxViolations = 3
)
