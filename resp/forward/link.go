package forward

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"polder/resp/proto"
)

// link is a connection that has been greeted. Whoever has taken it off its server's idle links uses it alone.
type link struct {
	conn net.Conn
	ver  int
}

// work has the buffers that a call needs and idle links do not. It is reused.
type work struct {
	out      []byte // commands
	in       [16 << 10]byte
	from, to int // in[from:to] has been received, and not looked at
}

var works = sync.Pool{New: func() any { return new(work) }}

// free gives w back.
func (w *work) free() {
	if cap(w.out) > 64<<10 {
		w.out = nil
	}
	w.from, w.to = 0, 0
	works.Put(w)
}

// connect makes a link.
func (l *Links) connect(ctx context.Context, addr string, ver int, w *work) (*link, error) {
	conn, err := l.cfg.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	k := &link{conn, ver}
	stop := context.AfterFunc(ctx, k.hangUp)
	err = k.greet(w, l.cfg.Password())
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		k.hangUp()
		return nil, err
	}
	return k, nil
}

// greet logs in, and asks for MOVED instead of forwarding.
func (k *link) greet(w *work, password string) error {
	var hello []string
	switch {
	case k.ver == 3 && password != "":
		hello = []string{"HELLO", "3", "AUTH", "default", password}
	case k.ver == 3:
		hello = []string{"HELLO", "3"}
	case password != "":
		hello = []string{"AUTH", "default", password}
	}
	w.out = w.out[:0]
	names := []string{"READONLY"}
	if hello != nil {
		w.out = proto.AppendCommand(w.out, hello...)
		names = []string{hello[0], "READONLY"}
	}
	w.out = proto.AppendCommand(w.out, "READONLY")
	if _, err := k.conn.Write(w.out); err != nil {
		return fmt.Errorf("cannot greet: %w", err)
	}
	for _, name := range names {
		reply, err := k.reply(w, nil, maxGreeting)
		if err != nil {
			return fmt.Errorf("cannot read the answer to %s: %w", name, err)
		}
		if text, failed := errorText(reply); failed || name == "READONLY" && string(reply) != "+OK\r\n" {
			if !failed {
				text = fmt.Sprintf("%.40q", reply)
			}
			return fmt.Errorf("cannot greet: the answer to %s is %s", name, text)
		}
	}
	if w.from != w.to {
		return fmt.Errorf("cannot greet: %w", proto.ErrReply)
	}
	return nil
}

// maxGreeting is the longest reply to a command of the greeting, in bytes.
const maxGreeting = 64 << 10

// exchange sends cmds and returns the reply to the last, appended to dst. If k cannot be used any more, kind is
// ErrUnsent or ErrUncertain. Otherwise kind is nil, and err may be a *ReplyError.
func (k *link) exchange(w *work, dst []byte, cmds [][][]byte, limit int) (reply []byte, kind, err error) {
	w.out = w.out[:0]
	for _, args := range cmds {
		w.out = proto.AppendCommand(w.out, args...)
	}
	if n, err := k.conn.Write(w.out); err != nil {
		if n == 0 {
			return nil, ErrUnsent, err
		}
		return nil, ErrUncertain, err
	}
	var refused error // the first error reply before the last reply
	for i := range cmds {
		if reply, err = k.reply(w, dst, limit); err != nil {
			return nil, ErrUncertain, err
		}
		if text, failed := errorText(reply[len(dst):]); failed && i < len(cmds)-1 && refused == nil {
			refused = &ReplyError{text}
		}
	}
	return reply, nil, refused
}

// reply reads a reply of at most limit bytes and appends it to dst. It passes over pushes before the reply.
func (k *link) reply(w *work, dst []byte, limit int) ([]byte, error) {
	var s proto.Skimmer
	for start := len(dst); ; {
		if w.from == w.to {
			n, err := k.conn.Read(w.in[:])
			if w.from, w.to = 0, n; n == 0 && err != nil {
				return nil, err
			}
		}
		n, done, err := s.Skim(w.in[w.from:w.to])
		if err != nil {
			return nil, err
		}
		if len(dst)-start+n > limit {
			return nil, ErrTooLong
		}
		dst = append(dst, w.in[w.from:w.from+n]...)
		w.from += n
		if done && dst[start] != '>' {
			return dst, nil
		}
		if done {
			dst = dst[:start]
		}
	}
}

// quiet reports whether k is open and has received nothing that was not asked for. It does not wait.
func (k *link) quiet() bool {
	sock, ok := k.bottom().(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return false
	}
	var peeked error
	err = raw.Read(func(fd uintptr) bool {
		_, _, peeked = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	return err == nil && peeked == unix.EAGAIN
}

// hangUp closes the connection, even while another goroutine uses it. It does not say goodbye as TLS would, since
// that may have to wait.
func (k *link) hangUp() { _ = k.bottom().Close() }

// bottom is the connection below TLS.
func (k *link) bottom() net.Conn {
	if c, ok := k.conn.(interface{ NetConn() net.Conn }); ok {
		return c.NetConn()
	}
	return k.conn
}

// errorText returns the text of a reply that is an error.
func errorText(reply []byte) (text string, failed bool) {
	switch {
	case len(reply) == 0:
	case reply[0] == '-':
		return string(bytes.TrimRight(reply[1:], "\r\n")), true
	case reply[0] == '!':
		_, text, _ := bytes.Cut(reply, []byte("\r\n"))
		return string(bytes.TrimSuffix(text, []byte("\r\n"))), true
	}
	return "", false
}
