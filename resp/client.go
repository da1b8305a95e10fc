package resp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"polder/resp/feed"
	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

const errClientName reply.Error = "ERR Client names cannot contain spaces, newlines or special characters."

// clientInfo is what CLIENT LIST shows of a session.
type clientInfo struct {
	id          int64 // immutable, as are the next three
	since       time.Time
	addr, laddr string

	name     atomic.Pointer[string]
	libName  atomic.Pointer[string]
	libVer   atomic.Pointer[string]
	last     atomic.Pointer[table.Command]
	ver      atomic.Int32
	monitors atomic.Bool
	active   atomic.Int64 // when it last sent something, in ns after since by the monotonic clock
}

// heard notes that the client has sent something.
func (c *clientInfo) heard(now time.Time) { c.active.Store(int64(now.Sub(c.since))) }

// idle returns for how long the client has sent nothing.
func (c *clientInfo) idle(now time.Time) time.Duration {
	return max(0, now.Sub(c.since)-time.Duration(c.active.Load()))
}

// shown is the client's address as an operator is shown it.
func (c *clientInfo) shown() string {
	if c.addr == "" || c.addr == "@" { // clients of a Unix socket have none
		return "unix:" + c.laddr
	}
	return c.addr
}

func load(p *atomic.Pointer[string]) string {
	if s := p.Load(); s != nil {
		return *s
	}
	return ""
}

// listing is the session's line of CLIENT LIST.
func (s *session) listing() string {
	c := &s.info
	now := time.Now()
	cmd := "NULL"
	if last := c.last.Load(); last != nil {
		cmd = last.Name
	}
	flags := "N"
	if c.monitors.Load() {
		flags = "O"
	} else if s.subs.Any() {
		flags = "P"
	}
	return fmt.Sprintf("id=%d addr=%s laddr=%s name=%s age=%d idle=%d flags=%s db=0 sub=%d psub=%d ssub=%d multi=-1 tot-mem=%d cmd=%s user=default resp=%d lib-name=%s lib-ver=%s",
		c.id, c.shown(), c.laddr, load(&c.name), int64(now.Sub(c.since).Seconds()), int64(c.idle(now).Seconds()), flags, s.subs.Len(feed.Channel), s.subs.Len(feed.Pattern), s.subs.Len(feed.Shard),
		s.mem.Held(), cmd, max(2, c.ver.Load()), load(&c.libName), load(&c.libVer))
}

func validName(name []byte) bool {
	return !slices.ContainsFunc(name, func(c byte) bool { return c < '!' || c > '~' })
}

func (s *session) setName(name []byte) {
	n := string(name)
	s.info.name.Store(&n)
}

func cmdClientID(s *session, a [][]byte) error {
	s.Int(s.info.id)
	return nil
}

func cmdClientGetName(s *session, a [][]byte) error {
	if n := load(&s.info.name); n != "" {
		s.Str(n)
	} else {
		s.Null()
	}
	return nil
}

func cmdClientSetName(s *session, a [][]byte) error {
	if !validName(a[2]) {
		return errClientName
	}
	s.setName(a[2])
	s.OK()
	return nil
}

func cmdClientSetInfo(s *session, a [][]byte) error {
	v := string(a[3])
	if !validName(a[3]) {
		return reply.Error("ERR " + strings.ToLower(proto.Clip(a[2], 32)) + " cannot contain spaces, newlines or special characters.")
	}
	switch {
	case proto.Is(a[2], "lib-name"):
		s.info.libName.Store(&v)
	case proto.Is(a[2], "lib-ver"):
		s.info.libVer.Store(&v)
	default:
		return reply.Error("ERR Unrecognized option '" + proto.Clip(a[2], 128) + "'")
	}
	s.OK()
	return nil
}

func cmdClientInfo(s *session, a [][]byte) error {
	s.Verbatim(s.listing() + "\n")
	return nil
}

func cmdClientList(s *session, a [][]byte) error {
	list := s.srv.sessionList()
	switch {
	case len(a) == 4 && proto.Is(a[2], "type"):
		is, err := ofType(a[3])
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(o *session) bool { return !is(o) })
	case len(a) > 3 && proto.Is(a[2], "id"):
		var err error
		if list, err = pickClients(list, a[3:]); err != nil {
			return err
		}
	case len(a) != 2:
		return reply.ErrSyntax
	}
	var b strings.Builder
	for _, o := range list {
		b.WriteString(o.listing())
		b.WriteByte('\n')
		if b.Len() > s.srv.cfg.OutputLimit {
			return reply.ErrOutput
		}
	}
	s.Verbatim(b.String())
	return nil
}

// pickClients returns the sessions of list that have the given numbers, in the order of numbers and as often as they
// are given. The list is sorted by number.
func pickClients(list []*session, numbers [][]byte) (picked []*session, err error) {
	for _, w := range numbers {
		id, ok := proto.ParseInt(w)
		if !ok {
			return nil, reply.Error("ERR Invalid client ID")
		}
		i, found := slices.BinarySearchFunc(list, id, func(s *session, id int64) int { return cmp.Compare(s.info.id, id) })
		if found {
			picked = append(picked, list[i])
		}
	}
	return picked, nil
}

// cmdClientNoEvict agrees, and changes nothing: a client that could exempt
// itself would be evicted last and hold most.
func cmdClientNoEvict(s *session, a [][]byte) error {
	if !proto.Is(a[2], "on") && !proto.Is(a[2], "off") {
		return reply.ErrSyntax
	}
	s.OK()
	return nil
}
