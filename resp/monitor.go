package resp

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"polder/resp/clientmem"
	"polder/resp/proto"
	"polder/resp/reply"
)

// feed is what a client has yet to be sent that it has not asked for: messages of channels, and for
// MONITOR a line for every command that any client runs. Sessions append to it; the driver of the client
// takes from it. Nobody waits for a client to read, so one that does not is disconnected when its feed
// exceeds the output limit.
type feed struct {
	s *session // whose client is sent it

	mu   sync.Mutex
	buf  []byte             // guarded by mu
	held bool               // the driver will look when the replies before it are on their way; guarded by mu
	gone bool               // nothing more is to be appended; guarded by mu
	mem  *clientmem.Account // of buf; guarded by mu
}

// add adds what fn appends, at most size bytes.
func (f *feed) add(size int, fn func(b []byte) []byte) {
	f.mu.Lock()
	if f.gone {
		f.mu.Unlock()
		return
	}
	srv := f.s.srv
	if len(f.buf)+size > srv.cfg.ClientMemory.Allow(srv.cfg.OutputLimit) {
		f.gone = true
		f.mu.Unlock()
		f.s.drop()
		f.s.kill()
		return
	}
	first := len(f.buf) == 0 && !f.held // otherwise the driver has been told
	if need := len(f.buf) + size; need > cap(f.buf) {
		f.buf = clientmem.Grow(f.buf, max(need, 2*cap(f.buf)))
	}
	f.buf = fn(f.buf)
	f.gone = !f.mem.Hold(cap(f.buf))
	f.mu.Unlock()
	if first {
		f.s.fed(f)
	}
}

// append adds the line of a command that another session has run.
func (f *feed) append(head string, args [][]byte) {
	size := len(head) + 2
	for _, a := range args {
		size += quotedLen(a) + 1
	}
	f.add(size, func(b []byte) []byte {
		b = append(b, head...)
		for _, a := range args {
			b = appendQuoted(append(b, ' '), a)
		}
		return append(b, '\r', '\n')
	})
}

// take gives what has been appended to the driver, which frees it.
func (f *feed) take() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.buf
	f.buf = nil
	f.mem.Hold(0)
	return b
}

// listen gives the session a feed, which is held until its driver has sent the replies so far (letGo).
func (s *session) listen() {
	if f := s.news; f != nil {
		f.mu.Lock()
		f.held = true
		f.mu.Unlock()
		return
	}
	f := &feed{s: s, held: true, mem: s.srv.cfg.ClientMemory.Join()}
	f.mem.HangUp = s.kill
	s.news = f
}

// letGo has the driver see what its feed has. What came before is on its way.
func (s *session) letGo() {
	f := s.news
	if f == nil {
		return
	}
	f.mu.Lock()
	some := f.held && len(f.buf) > 0
	f.held = false
	f.mu.Unlock()
	if some {
		s.fed(f)
	}
}

// monitor makes s one of the server's monitors.
func (s *session) monitor() {
	s.listen()
	f := s.news
	s.info.monitors.Store(true)
	s.srv.setMonitors(func(list []*feed) []*feed { return append(list, f) })
}

// endFeed ends what the session is told without asking.
func (s *session) endFeed() {
	f := s.news
	if f == nil {
		return
	}
	s.unsubscribeAll()
	s.info.subs.Store(0)
	s.info.psubs.Store(0)
	if s.info.monitors.Swap(false) {
		s.srv.setMonitors(func(list []*feed) []*feed { return slices.DeleteFunc(list, func(o *feed) bool { return o == f }) })
	}
	s.news = nil
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	clientmem.Free(f.buf)
	f.buf = nil
	f.mem.Leave()
}

// setMonitors replaces the list of monitors, which is nil if there are none.
func (srv *Server) setMonitors(change func([]*feed) []*feed) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	var list []*feed
	if old := srv.monitors.Load(); old != nil {
		list = slices.Clone(*old)
	}
	if list = change(list); len(list) == 0 {
		srv.monitors.Store(nil)
	} else {
		srv.monitors.Store(&list)
	}
}

// tell sends monitors the line of a command. As in Redis, they are not shown what
// is for operators, and no secrets.
func (s *session) tell(cmd *command, args [][]byte) {
	list := s.srv.monitors.Load()
	if list == nil || cmd.flags&flagAdmin != 0 {
		return
	}
	now := time.Now()
	head := fmt.Sprintf("+%d.%06d [0 %s]", now.Unix(), now.Nanosecond()/1000, s.info.shown())
	args = redacted(cmd, args)
	for _, f := range *list {
		f.append(head, args)
	}
}

// redacted is args without what is secret in them. What follows AUTH is taken for
// a secret even where it is not well-formed.
func redacted(cmd *command, args [][]byte) [][]byte {
	hide := func(from, to int) {
		args = slices.Clone(args)
		for i := from; i < min(to, len(args)); i++ {
			args[i] = []byte("(redacted)")
		}
	}
	switch cmd.name {
	case "auth":
		hide(1, len(args))
	case "hello":
		for i := range args {
			if i > 1 && proto.Is(args[i], "auth") {
				hide(i+1, i+3)
			}
		}
	case "config|set":
		for i := 2; i+1 < len(args); i += 2 {
			if settingNamed(args[i]) == nil { // it may be Redis's for a password
				hide(i+1, i+2)
			}
		}
	}
	return args
}

// appendQuoted appends b in quotes, as Redis's sdscatrepr does.
func appendQuoted(dst, b []byte) []byte {
	dst = append(dst, '"')
	for _, c := range b {
		if i := strings.IndexByte(escaped, c); i >= 0 {
			dst = append(dst, '\\', escapes[i])
		} else if c >= ' ' && c <= '~' {
			dst = append(dst, c)
		} else {
			dst = append(dst, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(dst, '"')
}

// The bytes that are shown as a letter after a backslash, and the letters.
const (
	escaped   = "\\\"\n\r\t\a\b"
	escapes   = "\\\"nrtab"
	hexDigits = "0123456789abcdef"
)

// quotedLen is how much appendQuoted appends.
func quotedLen(b []byte) int {
	n := len(b) + 2
	for _, c := range b {
		if strings.IndexByte(escaped, c) >= 0 {
			n++
		} else if c < ' ' || c > '~' {
			n += 3
		}
	}
	return n
}

func cmdMonitor(s *session, a [][]byte) error {
	if s.multi {
		return reply.Error("ERR MONITOR isn't allowed for DENY BLOCKING client")
	}
	if !s.info.monitors.Load() {
		s.monitor()
	}
	s.OK()
	return nil
}
