package resp

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"polder/resp/clientmem"
	"polder/resp/feed"
)

// linger is how long a client may take to read the replies that are left when
// its connection ends.
const linger = 5 * time.Second

// stream drives a session over any net.Conn with two goroutines: one reads and
// runs commands, one writes, so that a client which does not read its replies
// does not keep its commands from being read.
type stream struct {
	nc    net.Conn
	s     *session
	leave chan struct{} // closed when the connection is to end: the reader no longer waits for the end of a pause
	once  sync.Once     // closes leave

	mu       sync.Mutex
	changed  sync.Cond
	input    int    // bytes held for input, and by the session; guarded by mu
	pending  []byte // replies to write; guarded by mu
	out      int    // size of the buffer that is being written; guarded by mu
	writing  int    // bytes in it that are not written yet; guarded by mu
	full     bool   // the reader waits until replies are written; guarded by mu
	stopping bool   // the reader is to end; guarded by mu
	done     bool   // no more replies will come; guarded by mu
	broken   bool   // writing has failed; guarded by mu
}

func (srv *Server) serveStream(nc net.Conn, s *session, in []byte) {
	st := &stream{nc: nc, s: s, leave: make(chan struct{})}
	st.changed.L = &st.mu
	s.fed = st.fed
	s.onKill(func() {
		clientmem.HangUp(nc)
		st.once.Do(func() { close(st.leave) })
	})
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
		st.read(in)
		st.finish()
		writer.Wait()
		clientmem.Free(st.pending)
		nc.Close()
		srv.mu.Lock()
		delete(srv.streams, st)
		srv.mu.Unlock()
		srv.forget(s)
	}()
}

// stop makes the reader stop after the command that runs.
func (st *stream) stop() {
	st.once.Do(func() { close(st.leave) })
	st.mu.Lock()
	st.stopping = true
	st.nc.SetReadDeadline(time.Unix(1, 0))
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

// read runs what the client sends, after in.
func (st *stream) read(in []byte) {
	s := st.s
	var buf []byte
	defer func() {
		s.parser.Forget()
		s.in = nil
		clientmem.Free(buf)
	}()
	if len(in) > 0 {
		buf = clientmem.Copy(in)
		s.in = buf
		if !st.process() {
			return
		}
		buf = buf[:copy(buf, s.in)]
	}
	for {
		if buf = s.grow(buf); !st.hold(cap(buf) + s.footprint()) {
			return
		}
		idle := st.mayIdle()
		n, err := st.nc.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n > 0 {
			s.info.heard(time.Now())
			s.in = buf
			if !st.process() {
				return
			}
			buf = buf[:copy(buf, s.in)]
			if len(buf) == 0 {
				s.parser.Release()
				if s.in = nil; cap(buf) > minRoom {
					clientmem.Free(buf)
					buf = nil
				}
			}
		}
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() && idle > 0 && !s.srv.isStopping() {
				s.srv.stats.idleDrops.Add(1)
			}
			return
		}
	}
}

// mayIdle sets the time by which the client has to send something, and returns how long that is; 0 if the client may
// be silent.
func (st *stream) mayIdle() time.Duration {
	idle := st.s.srv.idleTimeout()
	if st.s.listens() {
		idle = 0 // a monitor or subscriber need not send anything
	}
	var until time.Time
	if idle > 0 {
		until = time.Now().Add(idle)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.stopping && !st.broken {
		st.nc.SetReadDeadline(until)
	}
	return idle
}

// process runs what the session has as input. It reports false when the
// connection is to end.
func (st *stream) process() bool {
	for {
		began := time.Now()
		status := st.s.run()
		if !st.s.shown() || !st.push() {
			return false
		}
		st.s.letGo()
		if status == needInput {
			st.s.srv.stats.rounds.Observe(time.Since(began).Seconds())
		}
		switch status {
		case needInput:
			return true
		case needFetch:
			var w wants
			st.s.wants(&w)
			st.s.fetched(st.s.srv.fetch(st.s.fetchAt(), &w))
		case needResume:
			if over := st.s.srv.pause.wait(); over != nil {
				select {
				case <-over:
				case <-st.leave:
					return false
				}
			}
		case sessionEnd:
			return false
		}
	}
}

// hold accounts for the memory that the client holds: its replies, and input bytes for its input and its session. It
// reports false if the connection is to end.
func (st *stream) hold(input int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.input = input
	return st.account()
}

// account accounts for the memory that the client holds. It reports false if the connection is to end.
//
// Preconditions: st.mu is held.
func (st *stream) account() bool {
	return st.s.mem.Hold(st.input + cap(st.pending) + st.out)
}

// push gives the session's replies to the writer. While the client has too many replies to read, push waits. It
// reports false if the connection is to end.
func (st *stream) push() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	large := st.s.TakeLarge()
	out := st.s.Out
	if large != nil {
		out = large
	}
	if len(out) > 0 {
		if large != nil && len(st.pending) == 0 {
			st.pending, large = large, nil
		} else {
			st.pending = clientmem.Append(st.pending, out)
		}
		if st.s.Out = st.s.Out[:0]; cap(st.s.Out) > 2*flushAt {
			st.s.Out = nil
		}
		st.changed.Broadcast()
	}
	clientmem.Free(large)
	if !st.account() {
		return false
	}
	srv := st.s.srv
	for len(st.pending)+st.writing > srv.cfg.ClientMemory.Allow(srv.cfg.OutputLimit) && !st.broken && !st.stopping {
		if !st.full {
			st.full = true
			st.nc.SetWriteDeadline(time.Now().Add(clientmem.Window))
		}
		st.changed.Wait()
	}
	if st.full {
		st.full = false
		st.nc.SetWriteDeadline(time.Time{})
	}
	return !st.broken && !st.stopping
}

// fed gives the writer what the feed has: lines of MONITOR, messages of channels. A client that has too much to read
// is disconnected. Any goroutine may call it.
func (st *stream) fed(f *feed.Feed) {
	st.mu.Lock()
	defer st.mu.Unlock()
	srv := st.s.srv
	lines := f.Take()
	if st.done {
		clientmem.Free(lines)
		return
	}
	if len(st.pending)+st.writing+len(lines) > srv.cfg.ClientMemory.Allow(srv.cfg.OutputLimit) {
		st.s.drop()
		st.s.kill()
	} else {
		st.pending = clientmem.Append(st.pending, lines)
		st.account()
		st.changed.Broadcast()
	}
	clientmem.Free(lines)
}

func (st *stream) write() {
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
		st.pending, st.out, st.writing = nil, cap(out), len(out)
		sent := st.send(out)
		clientmem.Free(out)
		st.out = 0
		st.account()
		if !sent {
			st.broken = true
			st.nc.SetReadDeadline(time.Unix(1, 0))
			st.changed.Broadcast()
			return
		}
	}
}

// send writes out piece by piece, to tell a client that reads slowly from one that makes no progress. St.mu is held
// when it is called, but not while it writes.
func (st *stream) send(out []byte) bool {
	for len(out) > 0 {
		st.mu.Unlock()
		n, err := st.nc.Write(out[:min(len(out), clientmem.Progress)])
		st.mu.Lock()
		if err != nil {
			if st.full && errors.Is(err, os.ErrDeadlineExceeded) {
				st.s.drop()
			}
			return false
		}
		out = out[n:]
		st.writing = len(out)
		if st.full {
			st.nc.SetWriteDeadline(time.Now().Add(clientmem.Window))
			st.changed.Broadcast()
		}
	}
	return true
}
