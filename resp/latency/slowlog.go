package latency

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"polder/resp/proto"
	"polder/resp/reply"
)

// What the slow log keeps of a command, as in Redis, and of how many commands at most. Each takes about 4 KiB at
// most.
const (
	slowArgs    = 32
	slowArgLen  = 128
	MaxSlowLogs = 1024
)

// SlowLog has the last commands that took long. It counts from when the command began to run until its reply was
// there. That includes waiting for far memory, but not waiting for the client, for other commands of a pipeline, or
// for the end of CLIENT PAUSE.
type SlowLog struct {
	Than atomic.Int64 // in microseconds; negative: nothing is logged
	most atomic.Int64 // how many entries are kept

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

// NewSlowLog makes a slow log with the settings that it has until a client changes them.
func NewSlowLog() *SlowLog {
	l := &SlowLog{}
	l.Than.Store(10_000)
	l.most.Store(128)
	return l
}

// Takes reports whether a command that took so long is to be logged.
func (l *SlowLog) Takes(took time.Duration) bool {
	than := l.Than.Load()
	return than >= 0 && took.Microseconds() >= than
}

// Add adds a command that took so long. Its arguments are copied in part. client is the client's address, and name
// the client's name.
func (l *SlowLog) Add(args [][]byte, took time.Duration, client, name string) {
	c := slowCall{at: time.Now(), took: took, args: shortened(args), client: client, name: name}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.id = l.next
	l.next++
	l.list = append(l.list, c)
	l.trim()
}

// Most is how many entries are kept.
func (l *SlowLog) Most() int64 { return l.most.Load() }

// trim removes the oldest entries if there are more than may be kept.
//
// Preconditions: l.mu is held.
func (l *SlowLog) trim() {
	if n := len(l.list) - int(l.most.Load()); n > 0 {
		k := copy(l.list, l.list[n:])
		clear(l.list[k:])
		l.list = l.list[:k]
	}
}

// Resize sets how many entries are kept.
func (l *SlowLog) Resize(most int64) {
	l.most.Store(most)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trim()
}

// shortened copies at most 32 arguments, of at most 128 bytes each, and adds how much was left out.
func shortened(args [][]byte) [][]byte {
	more := len(args) - slowArgs
	if more > 0 {
		more++ // the last place says how many are missing
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

// Get replies to SLOWLOG GET.
func (l *SlowLog) Get(w *reply.Writer, a [][]byte) error {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.list)
	if count >= 0 {
		n = int(min(int64(n), count))
	}
	w.Array(n)
	for i := range n {
		c := l.list[len(l.list)-1-i]
		w.Array(6)
		w.Int(c.id)
		w.Int(c.at.Unix())
		w.Int(c.took.Microseconds())
		w.Array(len(c.args))
		for _, arg := range c.args {
			w.Bulk(arg)
		}
		w.Str(c.client)
		w.Str(c.name)
	}
	return w.Over()
}

// Len replies to SLOWLOG LEN.
func (l *SlowLog) Len(w *reply.Writer, a [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.Int(int64(len(l.list)))
	return nil
}

// Reset replies to SLOWLOG RESET.
func (l *SlowLog) Reset(w *reply.Writer, a [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.list)
	l.list = l.list[:0]
	w.OK()
	return nil
}
