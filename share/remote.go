package share

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"net"
	"sync"
	"time"

	"polder/internal/fdpass"
	"polder/share/internal/wire"
)

// Remote is a client on another host. It sees names, not bytes: it can look
// for keys, pin, unpin and delete them. Its session, and so its pins, outlive
// a connection that breaks, if it is back within the daemon's grace period.
//
// The daemon also speaks Maru's protocol, but not to other hosts: it has neither encryption nor a proof of who a
// client is.
//
// A Remote may be used by any number of goroutines. One of them at a time talks to the daemon.
type Remote struct {
	addr string
	tls  *tls.Config

	mu     sync.Mutex // guards everything below; held while talking
	conn   net.Conn   // nil when broken
	token  [16]byte
	buf    []byte
	closed bool
}

// Dial attaches to the daemon at addr. A nil configuration means no TLS, which
// the daemon refuses unless it was told otherwise.
func Dial(ctx context.Context, addr string, config *tls.Config) (*Remote, error) {
	r := &Remote{addr: addr, tls: config}
	if err := r.attach(ctx); err != nil {
		return nil, &OpError{Op: "dial " + addr, Err: err}
	}
	return r, nil
}

// attach connects and says who the client is.
//
// Preconditions: r.mu is held, or nobody else has r.
func (r *Remote) attach(ctx context.Context) error {
	var conn net.Conn
	var err error
	if r.tls != nil {
		conn, err = (&tls.Dialer{Config: r.tls}).DialContext(ctx, "tcp", r.addr)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", r.addr)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	r.conn = conn
	err = r.exchange(ctx, helloMessage(0, r.token, "", attachment{}), func(in *wire.Reader) error {
		in.U64()
		copy(r.token[:], in.Take(len(r.token)))
		return nil
	})
	if err != nil {
		r.breakOff()
	}
	return err
}

func (r *Remote) breakOff() {
	if r.conn != nil {
		r.conn.Close()
		r.conn = nil
	}
}

// exchange sends a message and reads the answer. If the connection fails, it
// is broken off.
//
// Preconditions: r.mu is held, r.conn is not nil.
func (r *Remote) exchange(ctx context.Context, msg []byte, parse func(*wire.Reader) error) error {
	conn := r.conn
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		r.breakOff()
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err := func() error {
		if len(msg) > fdpass.MaxMessage {
			return fmt.Errorf("%w: %w", ErrInvalid, fdpass.ErrTooLarge)
		}
		frame := append(wire.Writer(nil).U32(uint32(len(msg))), msg...)
		if _, err := conn.Write(frame); err != nil {
			return err
		}
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n == 0 || n > fdpass.MaxMessage {
			return fdpass.ErrTooLarge
		}
		b := bytes.NewBuffer(r.buf[:0])
		_, err := io.CopyN(b, conn, int64(n))
		r.buf = b.Bytes()
		return err
	}()
	if !stop() { // the deadline that it sets could be the next call's
		err = context.Cause(ctx)
	}
	if err != nil {
		r.breakOff()
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	in := wire.Read(r.buf)
	if s := wire.Status(in.U8()); s != wire.OK {
		return replyError(s, in.Rest())
	}
	return parse(in)
}

func (r *Remote) call(ctx context.Context, q request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.tryCall(ctx, q)
	if err != nil {
		return &OpError{Op: q.op, Key: q.key, Err: err}
	}
	return nil
}

func (r *Remote) tryCall(ctx context.Context, q request) error {
	for try := 0; ; try++ {
		if r.closed {
			return ErrClosed
		}
		if r.conn == nil {
			if err := r.attach(ctx); err != nil {
				return err
			}
		}
		repeated := try > 0
		err := r.exchange(ctx, q.build(nil), func(in *wire.Reader) error { return q.parse(in, nil, repeated) })
		if r.conn != nil || ctx.Err() != nil || try == 1 {
			return err
		}
		if !q.again {
			return fmt.Errorf("%w: %w", ErrUncertain, err)
		}
	}
}

// ExistsAll reports which of the keys are there.
func (r *Remote) ExistsAll(ctx context.Context, keys []string) ([]bool, error) {
	return existsAll(ctx, r, keys)
}

// DeleteAll deletes keys. The errors are those of Client.Delete, key by key.
func (r *Remote) DeleteAll(ctx context.Context, keys []string) ([]error, error) {
	return statusAll(ctx, r, "delete", wire.Delete, keys, true)
}

// PinAll pins the longest prefix of keys that are all there.
func (r *Remote) PinAll(ctx context.Context, keys []string) (int, error) {
	return pinAll(ctx, r, keys)
}

// UnpinAll takes one pin of each key back.
func (r *Remote) UnpinAll(ctx context.Context, keys []string) ([]error, error) {
	return statusAll(ctx, r, "unpin", wire.Unpin, keys, false)
}

// Stats asks the daemon about itself.
func (r *Remote) Stats(ctx context.Context) (Info, error) { return stats(ctx, r) }

// Keys iterates over the keys that begin with prefix, in order.
func (r *Remote) Keys(ctx context.Context, prefix string) iter.Seq2[KeyInfo, error] {
	return list(ctx, r, wire.ListKeys, prefix, func(k KeyInfo) string { return k.Key })
}

// Close ends the session, and with it the client's pins. Closing twice is a
// no-op.
func (r *Remote) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if r.conn == nil {
		return nil // the grace period ends it
	}
	defer r.breakOff()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := r.exchange(ctx, wire.Writer(nil).U8(uint8(wire.Bye)), func(*wire.Reader) error { return nil })
	if err != nil {
		return &OpError{Op: "close", Err: err}
	}
	return nil
}
