package resp

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

// What the slow log keeps of a command, as in Redis, and of how many commands at
// most: some 4 KiB each.
const (
	slowArgs    = 32
	slowArgLen  = 128
	maxSlowLogs = 1024
)

// slowLog is the last commands that took long: from when the command began to
// run until its reply was there, the wait for far memory included, but not that
// for its client, other commands of a pipeline, or the end of CLIENT PAUSE.
type slowLog struct {
	than atomic.Int64 // in microseconds; negative: nothing is logged
	most atomic.Int64 // entries

	mu   sync.Mutex
	next int64      // the number of the next entry; guarded by mu
	list []slowCall // oldest first; guarded by mu
}

// slowCall is an entry of the slow log.
type slowCall struct {
	id     int64
	at     time.Time
	took   time.Duration
	args   [][]byte
	client string
	name   string
}

func (l *slowLog) init() {
	l.than.Store(10_000)
	l.most.Store(128)
}

// note adds a command that took so long, if that is too long.
func (l *slowLog) note(s *session, cmd *table.Command, args [][]byte, took time.Duration) {
	if than := l.than.Load(); than < 0 || took.Microseconds() < than {
		return
	}
	c := slowCall{at: time.Now(), took: took, args: shortened(redacted(cmd, args)), client: s.info.shown(), name: load(&s.info.name)}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.id = l.next
	l.next++
	l.list = append(l.list, c)
	l.trim()
}

// trim forgets what is more than may be.
//
// Preconditions: l.mu is held.
func (l *slowLog) trim() {
	if n := len(l.list) - int(l.most.Load()); n > 0 {
		k := copy(l.list, l.list[n:])
		clear(l.list[k:])
		l.list = l.list[:k]
	}
}

// resize sets how many entries are kept.
func (l *slowLog) resize(most int64) {
	l.most.Store(most)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trim()
}

// shortened copies at most 32 arguments, of 128 bytes at most, and says how much
// is missing.
func shortened(args [][]byte) [][]byte {
	more := len(args) - slowArgs
	if more > 0 {
		more++ // the last place is for saying so
		args = args[:slowArgs-1]
	}
	list := make([][]byte, 0, slowArgs)
	for _, a := range args {
		if n := len(a) - slowArgLen; n > 0 {
			list = append(list, fmt.Appendf(bytes.Clone(a[:slowArgLen]), "... (%d more bytes)", n))
		} else {
			list = append(list, bytes.Clone(a))
		}
	}
	if more > 0 {
		list = append(list, fmt.Appendf(nil, "... (%d more arguments)", more))
	}
	return list
}

func cmdSlowlogGet(s *session, a [][]byte) error {
	count := int64(10)
	switch {
	case len(a) > 3:
		return reply.Error("ERR unknown subcommand or wrong number of arguments for '" + proto.Clip(a[1], 128) + "'. Try SLOWLOG HELP.")
	case len(a) == 3:
		var ok bool
		if count, ok = proto.ParseInt(a[2]); !ok || count < -1 {
			return reply.Error("ERR count should be greater than or equal to -1")
		}
	}
	l := &s.srv.slow
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.list)
	if count >= 0 {
		n = int(min(int64(n), count))
	}
	s.Array(n)
	for i := range n {
		c := l.list[len(l.list)-1-i]
		s.Array(6)
		s.Int(c.id)
		s.Int(c.at.Unix())
		s.Int(c.took.Microseconds())
		s.Array(len(c.args))
		for _, arg := range c.args {
			s.Bulk(arg)
		}
		s.Str(c.client)
		s.Str(c.name)
	}
	return s.Over()
}

func cmdSlowlogLen(s *session, a [][]byte) error {
	s.srv.slow.mu.Lock()
	defer s.srv.slow.mu.Unlock()
	s.Int(int64(len(s.srv.slow.list)))
	return nil
}

func cmdSlowlogReset(s *session, a [][]byte) error {
	s.srv.slow.mu.Lock()
	defer s.srv.slow.mu.Unlock()
	clear(s.srv.slow.list)
	s.srv.slow.list = s.srv.slow.list[:0]
	s.OK()
	return nil
}
