package resp

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	streamBuf = 16 << 10
	// linger is how long a client may take to read the replies that are
	// left when its connection ends, and how long one with more replies than
	// the limit may read nothing.
	linger = 5 * time.Second
)

// stream drives a session over any net.Conn with two goroutines: one reads and
// runs commands, one writes, so that a client which does not read its replies
// does not keep its commands from being read.
type stream struct {
	nc net.Conn
	s  *session

	mu       sync.Mutex
	changed  sync.Cond
	pending  []byte // replies to write; guarded by mu
	writing  int    // bytes of the write under way; guarded by mu
	full     bool   // the reader waits until replies are written; guarded by mu
	stopping bool   // the reader is to end; guarded by mu
	done     bool   // no more replies will come; guarded by mu
	broken   bool   // writing has failed; guarded by mu
}

func (srv *Server) serveStream(nc net.Conn, s *session) {
	st := &stream{nc: nc, s: s}
	st.changed.L = &st.mu
	srv.mu.Lock()
	srv.streams[st] = struct{}{}
	if srv.stopping {
		st.stop()
	}
	srv.wg.Add(1)
	srv.mu.Unlock()
	go func() {
		defer srv.wg.Done()
		var writer sync.WaitGroup
		writer.Go(st.write)
		st.read()
		st.finish()
		writer.Wait()
		nc.Close()
		srv.mu.Lock()
		delete(srv.streams, st)
		srv.mu.Unlock()
		srv.forget(s)
	}()
}

// stop makes the reader stop after the command that runs.
func (st *stream) stop() {
	st.nc.SetReadDeadline(time.Unix(1, 0))
	st.mu.Lock()
	st.stopping = true
	st.mu.Unlock()
	st.changed.Broadcast()
}

// finish lets the writer write what is left, and end.
func (st *stream) finish() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.done = true
	st.nc.SetWriteDeadline(time.Now().Add(linger))
	st.changed.Broadcast()
}

func (st *stream) read() {
	s := st.s
	cfg := &s.srv.cfg
	var buf []byte
	for {
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, max(streamBuf, 2*len(buf))), buf...)
		}
		if cfg.IdleTimeout > 0 && !s.srv.isStopping() {
			st.nc.SetReadDeadline(time.Now().Add(cfg.IdleTimeout))
		}
		n, err := st.nc.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n > 0 {
			s.info.heard(time.Now())
			s.in = buf
			if !st.process() {
				return
			}
			buf = buf[:copy(buf, s.in)]
			if len(buf) == 0 && cap(buf) > streamBuf {
				buf = nil
				s.parser.Release()
			}
		}
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() && cfg.IdleTimeout > 0 && !s.srv.isStopping() {
				s.srv.stats.idleDrops.Add(1)
			}
			return
		}
	}
}

// process runs what the session has as input. It reports false when the
// connection is to end.
func (st *stream) process() bool {
	for {
		status := st.s.run()
		if !st.push() {
			return false
		}
		switch status {
		case needInput:
			return true
		case needFetch:
			var w wants
			st.s.wants(&w)
			st.s.fetched(st.s.srv.fetch(&w))
		case sessionEnd:
			return false
		}
	}
}

// push gives the session's replies to the writer. While the client has too many
// to read, it waits. It reports false if the connection is to end.
func (st *stream) push() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.s.out) > 0 {
		if st.pending == nil {
			st.pending, st.s.out = st.s.out, nil
		} else {
			st.pending = append(st.pending, st.s.out...)
			st.s.out = st.s.out[:0]
		}
		st.changed.Broadcast()
	}
	for len(st.pending)+st.writing > st.s.srv.cfg.OutputLimit && !st.broken && !st.stopping {
		if !st.full {
			st.full = true
			st.nc.SetWriteDeadline(time.Now().Add(linger))
		}
		st.changed.Wait()
	}
	if st.full {
		st.full = false
		st.nc.SetWriteDeadline(time.Time{})
	}
	return !st.broken && !st.stopping
}

func (st *stream) write() {
	var spare []byte
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		for len(st.pending) == 0 && !st.done && !st.broken {
			st.changed.Wait()
		}
		if len(st.pending) == 0 || st.broken {
			return
		}
		out := st.pending
		if cap(spare) > flushAt*2 {
			spare = nil
		}
		st.pending, st.writing = spare[:0], len(out)
		if !st.send(out) {
			st.broken = true
			st.nc.SetReadDeadline(time.Unix(1, 0))
			st.changed.Broadcast()
			return
		}
		spare = out
	}
}

// send writes out piece by piece, so that a client who reads slowly is told
// from one who does not read. st.mu is held, but not while it writes.
func (st *stream) send(out []byte) bool {
	for len(out) > 0 {
		st.mu.Unlock()
		n, err := st.nc.Write(out[:min(len(out), flushAt)])
		st.mu.Lock()
		if err != nil {
			if st.full && errors.Is(err, os.ErrDeadlineExceeded) {
				st.s.srv.stats.outputDrops.Add(1)
			}
			return false
		}
		out = out[n:]
		st.writing = len(out)
		if st.full {
			st.nc.SetWriteDeadline(time.Now().Add(linger))
			st.changed.Broadcast()
		}
	}
	return true
}
