package maru

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"polder/internal/accept"
	"polder/share/resource"
	"polder/share/server"

	"golang.org/x/sys/unix"
)

// The resource manager's protocol: little-endian, one request and then its
// answer.
const (
	resourceMagic   = 0x4d415255
	resourceVersion = 2
	resourceHeader  = 12
	maxPayload      = 8192
	maxClientID     = 127

	allocRequest, allocResponse   = 1, 2
	freeRequest, freeResponse     = 3, 4
	statsRequest, statsResponse   = 5, 6
	accessRequest, accessResponse = 9, 10
	errorResponse                 = 255
)

// refusal is an answer that says what is wrong.
type refusal struct {
	errno unix.Errno
	text  string
	end   bool // of the connection
}

func (r *refusal) Error() string { return fmt.Sprintf("%s (%v)", r.text, r.errno) }

// token is how a region is named on this wire.
type token struct{ region, offset, length, auth uint64 }

// resourceRequest is a request of any type.
type resourceRequest struct {
	kind     uint16
	token    token
	size     uint64
	pool     string
	client   string
	id       uint64 // of the request; 0 if its answer is not to be remembered
	noClient bool
}

// parseResourceHeader reads what a request begins with.
func parseResourceHeader(b []byte) (kind uint16, length int, err error) {
	magic, version, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint32(b[8:])
	switch {
	case magic != resourceMagic:
		return 0, 0, &refusal{unix.EPROTO, "bad header", true}
	case version != resourceVersion:
		return 0, 0, &refusal{unix.EPROTO, fmt.Sprintf("bad header: version %d, this server speaks version %d", version, resourceVersion), true}
	case n > maxPayload:
		return 0, 0, &refusal{unix.EMSGSIZE, "payload too large", true}
	}
	return binary.LittleEndian.Uint16(b[6:]), int(n), nil
}

// taker takes fields from a payload.
type taker struct {
	b   []byte
	bad bool
}

func (t *taker) take(n uint64) []byte {
	if t.bad || n > uint64(len(t.b)) {
		t.bad = true
		return nil
	}
	p := t.b[:n]
	t.b = t.b[n:]
	return p
}

func (t *taker) u16() uint64 {
	if p := t.take(2); p != nil {
		return uint64(binary.LittleEndian.Uint16(p))
	}
	return 0
}

func (t *taker) u32() uint64 {
	if p := t.take(4); p != nil {
		return uint64(binary.LittleEndian.Uint32(p))
	}
	return 0
}

func (t *taker) u64() uint64 {
	if p := t.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (t *taker) token() token { return token{t.u64(), t.u64(), t.u64(), t.u64()} }

// parseResourceRequest reads the payload of a request.
func parseResourceRequest(kind uint16, payload []byte) (resourceRequest, error) {
	q := resourceRequest{kind: kind}
	t := &taker{b: payload}
	name := ""
	switch kind {
	case allocRequest:
		name = "alloc"
		q.size = t.u64()
		n := t.u32()
		t.u32()
		q.pool = string(t.take(n))
		q.client = string(t.take(t.u16()))
		q.id = t.u64()
	case freeRequest:
		name = "free"
		q.token = t.token()
		q.client = string(t.take(t.u16()))
		q.id = t.u64()
	case accessRequest:
		name = "access"
		q.token = t.token()
		if q.noClient = len(t.b) == 0; !q.noClient {
			q.client = string(t.take(t.u16()))
		}
	case statsRequest:
		return q, nil
	default:
		return q, &refusal{unix.ENOSYS, "unknown request", true}
	}
	if t.bad {
		return q, &refusal{unix.EPROTO, "bad " + name + " req", true}
	}
	if kind != accessRequest && (q.client == "" || len(q.client) > maxClientID || strings.Contains(q.client, "\x00")) {
		return q, &refusal{unix.EINVAL, "missing client_id", false}
	}
	return q, nil
}

// mapper is a connection to the resource manager.
type mapper struct {
	d      *Door
	conn   net.Conn
	name   string          // what the client calls itself
	other  *server.Guest   // the session of a foreign directory server, which allocates here; or nil
	bound  []*server.Guest // the clients of our directory whose tokens it has presented: see bind
	opened map[uint64]bool // regions whose path it was told, each of which counts as mapped
}

// serveResources hears the first request at the gate, and then has the connection
// served.
func (d *Door) serveResources(nc net.Conn, v *accept.Visitor) error {
	m := &mapper{d: d, conn: nc, opened: map[uint64]bool{}}
	head := make([]byte, resourceHeader)
	if _, err := io.ReadFull(nc, head); err != nil {
		if errors.Is(err, io.EOF) {
			return net.ErrClosed // somebody has looked whether we are here
		}
		return err
	}
	if err := v.Enter(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.mappers) >= d.opt.MaxConns {
		return errCrowded
	}
	d.mappers[m] = struct{}{}
	d.wg.Go(func() { m.serve(head) })
	return nil
}

func (m *mapper) serve(head []byte) {
	defer m.leave()
	buf := make([]byte, maxPayload)
	for {
		m.d.counts.resources.Add(1)
		kind, n, err := parseResourceHeader(head)
		var reply []byte
		if err == nil {
			if m.conn.SetReadDeadline(time.Now().Add(frameTime)) != nil {
				return
			}
			if _, err := io.ReadFull(m.conn, buf[:n]); err != nil {
				return
			}
			if m.conn.SetReadDeadline(time.Time{}) != nil {
				return
			}
			reply, err = m.answer(kind, buf[:n])
		}
		var no *refusal
		if errors.As(err, &no) {
			m.d.counts.refused.Add(1)
			reply = errorReply(no)
		}
		if m.conn.SetWriteDeadline(time.Now().Add(frameTime)) != nil {
			return
		}
		if _, err := m.conn.Write(reply); err != nil || no != nil && no.end {
			return
		}
		if _, err := io.ReadFull(m.conn, head); err != nil {
			return
		}
	}
}

// leave ends the connection, and with it all the mappings of its client: a client of
// Maru's keeps the connection for as long as it has anything mapped.
func (m *mapper) leave() {
	m.conn.Close()
	for region := range m.opened {
		m.d.s.Shut(region)
	}
	m.d.mu.Lock()
	delete(m.d.mappers, m)
	for _, g := range m.bound {
		id := g.ID()
		if p := m.d.presenter[id]; p != nil {
			if p.conns--; p.conns == 0 {
				delete(m.d.presenter, id)
			}
		}
	}
	m.d.mu.Unlock()
	for _, g := range m.bound {
		g.Leave()
	}
	if m.other != nil {
		m.other.Leave()
	}
}

func response(kind uint16, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, resourceMagic)
	b = binary.LittleEndian.AppendUint16(b, resourceVersion)
	b = binary.LittleEndian.AppendUint16(b, kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

func status(b []byte, errno unix.Errno) []byte {
	return binary.LittleEndian.AppendUint32(b, uint32(-int32(errno)))
}

func text32(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

func (t token) append(b []byte) []byte {
	for _, n := range []uint64{t.region, t.offset, t.length, t.auth} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func errorReply(no *refusal) []byte {
	return response(errorResponse, text32(status(nil, no.errno), no.text))
}

// answer does what a request asks for.
func (m *mapper) answer(kind uint16, payload []byte) ([]byte, error) {
	q, err := parseResourceRequest(kind, payload)
	if err != nil {
		return nil, err
	}
	if kind != statsRequest && !q.noClient {
		if m.name == "" {
			m.name = q.client
		}
		if m.name != q.client {
			return nil, &refusal{unix.EPERM, "client_id mismatch on connection", true}
		}
	}
	switch kind {
	case allocRequest:
		return m.d.answers.once(q, func() ([]byte, error) { return m.alloc(q) })
	case freeRequest:
		return m.d.answers.once(q, func() ([]byte, error) { return m.free(q) })
	case accessRequest:
		return m.access(q)
	}
	return m.stats(), nil
}

// errnoOf says an error as a status.
func errnoOf(err error) unix.Errno {
	switch {
	case errors.Is(err, server.ErrNoRegion):
		return unix.ENOENT
	case errors.Is(err, resource.ErrFull), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		return unix.ENOMEM
	case errors.Is(err, resource.ErrQuota):
		return unix.EDQUOT
	}
	return unix.EIO
}

// directory returns the client that this connection allocates as.
func (m *mapper) directory() (*server.Guest, error) {
	if m.other == nil {
		g, err := m.d.s.AdmitDirectory(m.name)
		if err != nil {
			return nil, err
		}
		m.other = g
	}
	return m.other, nil
}

func (m *mapper) alloc(q resourceRequest) ([]byte, error) {
	fail := func(errno unix.Errno) ([]byte, error) {
		return response(allocResponse, append(status(nil, errno), make([]byte, 4+32+8+4+2)...)), nil
	}
	var pools []string
	for _, p := range m.d.s.Info().Pools {
		if p.Maru {
			pools = append(pools, p.Name)
		}
	}
	switch {
	case q.size == 0 || q.size > 1<<48:
		return fail(unix.EINVAL)
	case len(pools) == 0:
		return fail(unix.ENODEV)
	case q.pool != "" && !slices.Contains(pools, q.pool):
		return fail(unix.ENOENT)
	}
	g, err := m.directory()
	if err != nil {
		return fail(unix.EBUSY)
	}
	r, err := g.Alloc(time.Now(), m.name, int64(q.size))
	if err != nil {
		m.d.opt.Log.Warn("cannot allocate a region for a directory of Maru's", "err", err)
		return fail(errnoOf(err))
	}
	path, err := m.open(r.ID)
	if err != nil {
		return fail(errnoOf(err))
	}
	b := binary.LittleEndian.AppendUint32(status(nil, 0), 0) // a path on this machine
	b = token{r.ID, 0, uint64(r.Length), r.Token}.append(b)
	b = binary.LittleEndian.AppendUint64(b, q.size)
	return response(allocResponse, append(text32(b, path), 0, 0)), nil
}

// open returns the path of a region. From now on the client counts as one that has it
// mapped.
func (m *mapper) open(region uint64) (string, error) {
	path, err := m.d.s.Open(region)
	if err != nil {
		return "", err
	}
	if m.opened[region] {
		m.d.s.Shut(region) // it counts once
	}
	m.opened[region] = true
	m.d.claim(region)
	return path, nil
}

func (m *mapper) free(q resourceRequest) ([]byte, error) {
	holder, err := m.d.s.Holder(q.token.region, int64(q.token.offset), int64(q.token.length), q.token.auth)
	if errors.Is(err, server.ErrToken) {
		return nil, &refusal{unix.EACCES, "invalid authToken", false}
	}
	if err != nil {
		return response(freeResponse, status(nil, errnoOf(err))), nil
	}
	defer holder.Leave()
	g, err := m.directory()
	if err != nil {
		return response(freeResponse, status(nil, unix.EBUSY)), nil
	}
	if !g.Same(holder) {
		return response(freeResponse, status(nil, unix.EPERM)), nil
	}
	ok, err := g.Return(q.token.region, m.name)
	switch {
	case err != nil:
		return response(freeResponse, status(nil, errnoOf(err))), nil
	case !ok:
		return response(freeResponse, status(nil, unix.ENOENT)), nil
	}
	return response(freeResponse, status(nil, 0)), nil
}

func (m *mapper) access(q resourceRequest) ([]byte, error) {
	nothing := func(errno unix.Errno) ([]byte, error) {
		return response(accessResponse, append(status(nil, errno), make([]byte, 4+8+8+2)...)), nil
	}
	g, err := m.d.s.Holder(q.token.region, int64(q.token.offset), int64(q.token.length), q.token.auth)
	if errors.Is(err, server.ErrToken) {
		return nil, &refusal{unix.EACCES, "invalid auth token", false}
	}
	if err != nil {
		return nothing(errnoOf(err))
	}
	if err := m.bind(g); err != nil {
		return nil, err
	}
	path, err := m.open(q.token.region)
	if err != nil {
		return nothing(errnoOf(err))
	}
	b := text32(status(nil, 0), path)
	b = binary.LittleEndian.AppendUint64(b, q.token.offset)
	b = binary.LittleEndian.AppendUint64(b, q.token.length)
	return response(accessResponse, append(b, 0, 0)), nil
}

// maxBound bounds the clients that one connection may present tokens of.
const maxBound = 64

// bind ties the connection to the client g of the directory, to which a token was told
// that has just been presented here. From then on g lives at least as long as this
// connection. It fails if g's tokens have been presented under another name before, or
// if this connection has presented those of another client: then the token was
// stolen. Clients without an identity are an exception. They have a new connection to
// the directory, and so a new session, after each timeout; one connection here may
// therefore present the tokens of several such sessions.
func (m *mapper) bind(g *server.Guest) error {
	if g.Bearer() || slices.ContainsFunc(m.bound, g.Same) {
		g.Leave()
		return nil
	}
	id := g.ID()
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	p := m.d.presenter[id]
	mine := len(m.bound) == 0 || len(m.bound) < maxBound && g.Plain() && m.bound[0].Plain()
	if !mine || p != nil && p.name != m.name {
		g.Leave()
		m.d.counts.replayed.Add(1)
		return &refusal{unix.EACCES, "invalid auth token: it was issued to another instance", false}
	}
	if p == nil {
		p = &presenter{name: m.name}
		m.d.presenter[id] = p
	}
	p.conns++
	m.bound = append(m.bound, g)
	return nil
}

func (m *mapper) stats() []byte {
	var pools []byte
	n := uint32(0)
	for _, p := range m.d.s.Info().Pools {
		if !p.Maru || len(pools) > maxPayload/2 {
			continue
		}
		n++
		pools = binary.LittleEndian.AppendUint32(pools, uint32(len(p.Name)))
		pools = binary.LittleEndian.AppendUint32(pools, 1) // files
		pools = binary.LittleEndian.AppendUint64(pools, uint64(p.Size))
		pools = binary.LittleEndian.AppendUint64(pools, uint64(p.Free))
		pools = binary.LittleEndian.AppendUint64(pools, 4096)
		pools = append(pools, p.Name...)
	}
	return response(statsResponse, append(binary.LittleEndian.AppendUint32(nil, n), pools...))
}

const (
	// rememberTime is how long an answer is remembered, and maxRemembered how many.
	rememberTime  = time.Minute
	maxRemembered = 1024
)

// answers remembers the answers to requests, because a client repeats a request that it has got no answer to, on
// another connection. The zero value is ready.
type answers struct {
	mu    sync.Mutex
	known map[answerKey]*remembered
	order []answerKey // the oldest first
}

type answerKey struct {
	client string
	id     uint64
}

type remembered struct {
	done  chan struct{} // closed when reply and err are there
	at    time.Time
	reply []byte
	err   error
}

// once calls f, unless the same request of the same client has come lately: then it returns, or waits for, the answer
// to that.
func (a *answers) once(q resourceRequest, f func() ([]byte, error)) ([]byte, error) {
	if q.id == 0 {
		return f()
	}
	key := answerKey{q.client, q.id}
	a.mu.Lock()
	for len(a.order) > 0 && (len(a.order) >= maxRemembered || time.Since(a.known[a.order[0]].at) > rememberTime) {
		delete(a.known, a.order[0])
		a.order = a.order[1:]
	}
	if r := a.known[key]; r != nil {
		a.mu.Unlock()
		<-r.done
		return r.reply, r.err
	}
	if a.known == nil {
		a.known = map[answerKey]*remembered{}
	}
	r := &remembered{done: make(chan struct{}), at: time.Now()}
	a.known[key] = r
	a.order = append(a.order, key)
	a.mu.Unlock()
	r.reply, r.err = f()
	close(r.done)
	return r.reply, r.err
}
