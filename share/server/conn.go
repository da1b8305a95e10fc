package server

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"polder/internal/accept"
	"polder/internal/failpoint"
	"polder/internal/fdpass"
	"polder/internal/wal"
	"polder/share/internal/shm"
	"polder/share/internal/wire"
	"polder/share/resource"

	"golang.org/x/sys/unix"
)

// helloTimeout is how long a connection may take to say who it is.
const helloTimeout = 5 * time.Second

var errConns = errors.New("too many connections")

// conn is one connection and the request that it carries.
type conn struct {
	s      *Server
	ss     *session
	logged bool         // ss is known to be in the log
	link   closer       // what ends it
	unix   *fdpass.Conn // the connection; nil if remote
	in     wire.Reader
	out    wire.Writer
	files  []*os.File // sent with the reply and then closed
	need   need       // what the reply rests on
}

// admit counts a connection in; false if there are too many or it is too late.
func (s *Server) admit(c closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.closed || len(s.conns) >= s.opt.MaxConns {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

// acceptLocal serves the socket. The kernel says whose a connection is, so a connection of a process that may connect
// counts at once. The connection of another process is heard at the gate, and that process is told that it may not
// connect.
func (s *Server) acceptLocal() {
	s.acceptEnded(accept.Each(s.opt.Log, s.local.AcceptUnix, func(sock *net.UnixConn) {
		u, err := fdpass.New(sock)
		if err != nil {
			sock.Close()
			return
		}
		peer, err := u.Peer()
		switch {
		case err != nil:
			u.Close()
		case !s.mayConnect(peer):
			s.stats.denied.Add(1)
			s.gate.Go(sock, func(*accept.Visitor) error { return s.deny(u, peer) })
		case !s.admit(u):
			_ = u.TrySend(wire.Writer(nil).U8(uint8(wire.Busy)).Raw([]byte(errConns.Error())))
			u.Close()
			s.opt.Log.Warn("connection refused", "pid", peer.PID, "uid", peer.UID, "err", errConns)
		default:
			s.wg.Go(func() { s.serveLocal(u, peer) })
		}
	}))
}

// acceptRemote serves the address for clients on other hosts. They shake hands at
// the gate, and count when they have said hello.
func (s *Server) acceptRemote() {
	s.acceptEnded(accept.Each(s.opt.Log, s.gate.Accept(s.opt.Remote.Accept), func(nc net.Conn) {
		if s.opt.TLS != nil {
			nc = accept.TLS(nc, s.opt.TLS)
		}
		s.gate.Go(nc, func(v *accept.Visitor) error { return s.greetRemote(nc, v) })
	}))
}

func (s *Server) acceptEnded(err error) {
	if !errors.Is(err, net.ErrClosed) {
		s.opt.Log.Error("no client can connect any more", "err", err)
	}
}

// bye ends a connection.
func (s *Server) bye(c *conn) {
	c.link.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c.link)
	if c.ss != nil {
		c.ss.conns--
		delete(c.ss.links, c.link)
		c.ss.gone = s.opt.Now()
		if c.ss.watch == c.unix {
			c.ss.watch = nil
		}
		if c.ss.conns == 0 && !c.ss.logged {
			s.must(s.endSession(c.ss)) // nothing to log, so nothing can fail
		}
	}
}

// mayConnect reports whether a process of this host is served.
func (s *Server) mayConnect(peer fdpass.Peer) bool {
	return peer.UID == 0 || peer.UID == os.Getuid() || slices.Contains(s.opt.AllowUIDs, peer.UID)
}

// deny tells a process that it may not connect. It first reads what the process has sent: an answer before that would
// be lost.
func (s *Server) deny(u *fdpass.Conn, peer fdpass.Peer) error {
	_, files, err := u.RecvFDs()
	if err != nil {
		return err
	}
	fdpass.CloseAll(files)
	err = fmt.Errorf("%w: user %d may not connect", errDenied, peer.UID)
	c := &conn{s: s, unix: u}
	return errors.Join(err, c.reply(err))
}

func (s *Server) serveLocal(u *fdpass.Conn, peer fdpass.Peer) {
	c := &conn{s: s, link: u, unix: u}
	defer s.bye(c)
	if err := u.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return
	}
	msg, files, err := u.RecvFDs()
	if err != nil {
		return
	}
	c.in.Reset(msg)
	err = c.hello(peer, local, "uid:"+strconv.Itoa(peer.UID), files)
	fdpass.CloseAll(files)
	if c.reply(err) != nil || err != nil {
		return
	}
	if err := u.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	for {
		msg, err := u.Recv()
		if err != nil {
			if errors.Is(err, fdpass.ErrTooLarge) {
				_ = c.reply(fmt.Errorf("%w: %w", errInvalid, err))
			}
			return
		}
		box := c.postable(msg)
		s.poller.asked(box)
		err = c.carryOut(msg)
		u.Done()
		if c.reply(err) != nil {
			return
		}
		s.poller.answered(box)
		s.finish(false)
	}
}

// postable returns the mailbox that a message could have come by, or nil.
func (c *conn) postable(msg []byte) *mailbox {
	if len(msg) > 0 && msg[0] <= byte(wire.LastOp) && postable&(1<<msg[0]) != 0 {
		return c.ss.box.Load()
	}
	return nil
}

// carryOut does what a message asks for, and commits it.
func (c *conn) carryOut(msg []byte) error {
	err := c.handle(msg)
	if err == nil {
		err = c.s.commitNeed(c.need)
		failpoint.Hit("daemon.committed")
	}
	return err
}

// reply sends what the request has come to.
func (c *conn) reply(err error) error {
	if err != nil {
		c.out = c.errorReply(err)
		c.closeFiles()
	}
	err = c.unix.SendFDs(c.out, c.files...)
	c.closeFiles()
	if cap(c.out) > 4<<10 {
		c.out = nil // idle connections hold little
	}
	return err
}

func (c *conn) errorReply(err error) wire.Writer {
	return append(c.out[:0].U8(uint8(statusOf(err))), err.Error()...)
}

func (c *conn) closeFiles() {
	fdpass.CloseAll(c.files)
	c.files = c.files[:0]
}

// greetRemote does the handshake of a client on another host, hears its hello, and
// has it served.
func (s *Server) greetRemote(nc net.Conn, v *accept.Visitor) error {
	tenant := "remote"
	if t, ok := nc.(*tls.Conn); ok {
		if err := t.Handshake(); err != nil {
			return err
		}
		if certs := t.ConnectionState().PeerCertificates; len(certs) > 0 {
			tenant = "cn:" + certs[0].Subject.CommonName
		}
	}
	hello, err := readFrame(nc, nil)
	if err != nil {
		return err
	}
	if err := v.Enter(); err != nil {
		return err
	}
	// To end the connection, what is below TLS is closed: that does not wait for the peer.
	if !s.admit(v.Conn) {
		return errConns
	}
	s.wg.Go(func() { s.serveRemote(v.Conn, nc, tenant, hello) })
	return nil
}

// serveRemote serves metadata to a client on another host: messages as on the
// socket, each after its length in four bytes, and no descriptors. Hello is the
// first, and raw is what is below nc.
func (s *Server) serveRemote(raw, nc net.Conn, tenant string, hello []byte) {
	c := &conn{s: s, link: raw}
	defer s.bye(c)
	buf := hello
	for first := true; ; first = false {
		var err error
		if first {
			c.in.Reset(buf)
			err = c.hello(fdpass.Peer{UID: -1}, remote, tenant, nil)
		} else {
			err = c.carryOut(buf)
		}
		if err != nil {
			c.out = c.errorReply(err)
		}
		c.closeFiles()
		if err := nc.SetWriteDeadline(time.Now().Add(helloTimeout)); err != nil {
			return
		}
		frame := append(wire.Writer(nil).U32(uint32(len(c.out))), c.out...)
		if _, err := nc.Write(frame); err != nil || first && c.ss == nil {
			return
		}
		s.finish(false)
		if buf, err = readFrame(nc, buf); err != nil {
			return
		}
	}
}

func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return buf, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > fdpass.MaxMessage {
		return buf, fdpass.ErrTooLarge
	}
	// Memory follows what has come, not what is announced.
	b := bytes.NewBuffer(buf[:0])
	if _, err := io.CopyN(b, r, int64(n)); err != nil {
		return buf, err
	}
	return b.Bytes(), nil
}

// hello attaches the connection to a session, old or new.
func (c *conn) hello(peer fdpass.Peer, d door, tenant string, files []*os.File) error {
	s, in := c.s, &c.in
	op, version, flags := wire.Op(in.U8()), in.U16(), in.U8()
	var tok token
	copy(tok[:], in.Take(len(tok)))
	name := string(in.Bytes())
	refs, maps, owned := counted(in, in.U32), counted(in, in.U64), counted(in, in.U64)
	switch err := in.Err(); {
	case op != wire.Hello || err != nil || len(name) > wire.MaxName:
		return fmt.Errorf("%w: a connection begins with hello", errInvalid)
	case version != wire.Version:
		return fmt.Errorf("%w: the client speaks version %d, the daemon %d", errInvalid, version, wire.Version)
	case flags&wire.HelloLease != 0 && (d != local || len(files) != 1):
		return fmt.Errorf("%w: the lease is missing", errInvalid)
	}
	var lease *shm.Lease
	if flags&wire.HelloLease != 0 {
		var err error
		if lease, err = shm.OpenLease(files[0]); err != nil {
			return fmt.Errorf("%w: %w", errInvalid, err)
		}
	}
	s.mu.Lock()
	err := s.attach(c, peer, hello{d, tenant, name, tok, flags&wire.HelloLane != 0, refs, maps, owned})
	if err == nil && lease != nil {
		s.pages.Attach(c.ss.id, lease)
		lease = nil
	}
	if err == nil && flags&wire.HelloLane == 0 {
		s.settled(c.ss)
	}
	s.mu.Unlock()
	if lease != nil {
		lease.Close()
	}
	if err != nil {
		return err
	}
	return c.welcome(tok != token{}, flags)
}

// counted takes a count, and as many values. If the message has fewer, in notes that.
func counted[T any](in *wire.Reader, take func() T) (list []T) {
	for n := in.U32(); n > 0; n-- {
		more := in.More()
		v := take()
		if !more {
			return nil
		}
		list = append(list, v)
	}
	return list
}

// hello is what a connection says of itself.
type hello struct {
	door   door
	tenant string
	name   string
	tok    token
	lane   bool
	refs   []uint32
	maps   []uint64
	owned  []uint64
}

// attach finds or makes the session of a connection.
//
// Preconditions: s.mu is held.
func (s *Server) attach(c *conn, peer fdpass.Peer, h hello) (err error) {
	ss := s.tokens[h.tok]
	switch {
	case h.tok == token{}:
		if ss, err = s.newSession(peer, h.door, h.tenant, h.name); err != nil {
			return err
		}
		if err := s.watchAgain(c, ss, peer); err != nil {
			return err
		}
	case ss == nil:
		return fmt.Errorf("%w: the session has ended", errMissing)
	case ss.door != h.door || ss.tenant != h.tenant || h.door == local && (ss.pid != peer.PID && !ss.elsewhere || ss.uid != peer.UID):
		s.stats.denied.Add(1)
		return fmt.Errorf("%w: the token belongs to another process", errDenied)
	case !h.lane:
		if err := s.resume(ss, h); err != nil {
			return err
		}
		if err := s.watchAgain(c, ss, peer); err != nil {
			return err
		}
	}
	ss.conns++
	ss.links[c.link] = struct{}{}
	c.ss = ss
	return nil
}

// resume brings the session of a client that is back up to date. It releases regions that the session has been
// allocated and the client does not have: their descriptors may never have reached it. If the daemon has restarted
// meanwhile, it notes what the client looks at and maps.
//
// Preconditions: s.mu is held.
func (s *Server) resume(ss *session, h hello) error {
	for r := range s.res.Regions() {
		if r.Owner != ss.id || r.State != resource.Allocated || slices.Contains(h.owned, r.ID) {
			continue
		}
		if _, err := s.append(s.rec[:0].U8(recReleased).U64(r.ID)); err != nil {
			return err
		}
		s.must(s.applyReleased(r))
		s.settle(r)
	}
	if !ss.recovered {
		return nil
	}
	for _, page := range h.refs {
		if s.pageState(page) != shm.Free { // else it never held what the client thinks, or the client lies
			s.pages.Ref(page, ss.id)
		}
	}
	for _, id := range h.maps {
		if r := s.res.Region(id); r != nil && r.Owner != ss.id && !ss.maps[id] && r.Step(resource.ReaderMaps) == nil {
			r.Readers++
			ss.maps[id] = true
		}
	}
	return nil
}

func (s *Server) pageState(page uint32) shm.PageState {
	if page < shm.FirstPage || page >= shm.MaxPages {
		return shm.Free
	}
	return s.pages.Word(page).State()
}

// welcome replies to hello, which had the flags asked.
func (c *conn) welcome(resumed bool, asked uint8) error {
	s := c.s
	flags := uint8(0)
	if s.opt.LRU {
		flags |= wire.HelloLRU
	}
	if resumed {
		flags |= wire.HelloResumed
	}
	c.out = c.out[:0].U8(uint8(wire.OK)).U64(c.ss.id).Raw(c.ss.token[:]).U8(flags)
	s.mu.Lock()
	var owned []uint64
	for r := range s.res.Regions() {
		if r.Owner == c.ss.id {
			owned = append(owned, r.ID)
		}
	}
	s.mu.Unlock()
	c.out = c.out.U32(uint32(len(owned)))
	for _, id := range owned {
		c.out = c.out.U64(id)
	}
	if c.unix == nil {
		return nil
	}
	fd, err := unix.FcntlInt(s.pages.Table().File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot hand out the table: %w", err)
	}
	c.files = append(c.files, os.NewFile(uintptr(fd), "table"))
	if asked&wire.HelloMailbox == 0 || asked&wire.HelloLane != 0 {
		return nil
	}
	box, file, err := shm.NewMailbox()
	if err != nil {
		return err
	}
	c.files = append(c.files, file)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.ss.ended {
		return box.Close()
	}
	c.ss.setMailbox(newMailbox(box, conn{s: s, ss: c.ss}))
	return nil
}

// statusOf says an error in one byte.
func statusOf(err error) wire.Status {
	for _, m := range []struct {
		err    error
		status wire.Status
	}{
		{errBusy, wire.Busy},
		{errDenied, wire.Denied},
		{resource.ErrHandle, wire.Denied},
		{errMissing, wire.NotFound},
		{resource.ErrUnknown, wire.NotFound},
		{resource.ErrFull, wire.Full},
		{resource.ErrQuota, wire.Quota},
		{resource.ErrSize, wire.Invalid},
		{errInvalid, wire.Invalid},
		{wire.ErrMessage, wire.Invalid},
		{wal.ErrTooLarge, wire.Invalid},
		{errLog, wire.NoLog},
		{unix.ENOSPC, wire.NoLog},
		{unix.ENOMEM, wire.Full},
	} {
		if errors.Is(err, m.err) {
			return m.status
		}
	}
	return wire.Failed
}
