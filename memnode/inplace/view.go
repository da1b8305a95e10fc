package inplace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/memnode/tenancy"
	"polder/memnode/wire"
)

// ErrElsewhere is the error of Ask if the node passes no memory, for example because it is on another machine.
var ErrElsewhere = errors.New("no memory of the node's is to be read in place")

// A View is a node's memory as its client sees it. It may be used by any number of goroutines until Close.
type View struct {
	mem   *arena.Mapping
	lease *tenancy.Lease
}

// Ask asks the node at the other end of the connection from local to remote for its memory, at least size bytes, with
// the session s that has been opened over this connection. It takes at most Timeout, and ctx may end it earlier.
func Ask(ctx context.Context, local, remote string, s wire.Session, size int) (*View, error) {
	from, err := netip.ParseAddrPort(local)
	if err != nil {
		return nil, ErrElsewhere // not a TCP connection
	}
	to, err := netip.ParseAddrPort(remote)
	if err != nil || !here(to.Addr()) {
		return nil, ErrElsewhere
	}
	until := time.Now().Add(Timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	r := Request{Session: s, From: from}
	for _, at := range []netip.AddrPort{to, netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())} {
		v, err := ask(ctx, Name(at), &r, size)
		if !errors.Is(err, unix.ECONNREFUSED) {
			return v, err
		}
	}
	return nil, ErrElsewhere
}

func ask(ctx context.Context, name string, r *Request, size int) (*View, error) {
	conn, err := fdpass.DialContext(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		conn.Close()
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	peer, err := conn.Peer()
	if err != nil {
		return nil, err
	}
	if !peer.Trusted() {
		return nil, fmt.Errorf("who passes memory runs as user %d, not %d", peer.UID, os.Geteuid())
	}
	if err := conn.Send(r.Append(nil)); err != nil {
		return nil, err
	}
	b, files, err := conn.RecvFDs()
	if err != nil {
		return nil, err
	}
	defer fdpass.CloseAll(files)
	got, err := decodeAnswer(b, len(files))
	if err != nil {
		return nil, err
	}
	if got < uint64(size) {
		return nil, fmt.Errorf("%w: %d bytes of memory, of which %d are lent", wire.ErrMalformed, got, size)
	}
	return open(files[0], files[1], got)
}

// open maps the files that were passed, which stay the caller's. It refuses files that could be made smaller, since
// an access could then fault.
func open(memory, lease *os.File, size uint64) (*View, error) {
	mem, err := adopt(memory, size)
	if err != nil {
		return nil, err
	}
	word, err := adopt(lease, uint64(arena.PageSize))
	if err != nil {
		return nil, err
	}
	v := new(View)
	if v.mem, err = mem.Map(0, mem.Size(), false); err != nil {
		return nil, err
	}
	if v.lease, err = tenancy.MapLease(word); err != nil {
		v.mem.Close()
		return nil, err
	}
	return v, nil
}

func adopt(f *os.File, size uint64) (*arena.Memfd, error) {
	m, err := arena.OpenMemfd(f)
	if err != nil {
		return nil, err
	}
	if err := m.CheckShrinkSealed(); err != nil {
		return nil, err
	}
	if uint64(m.Size()) != size {
		return nil, fmt.Errorf("%w: a file of %d bytes where %d were announced", wire.ErrMalformed, m.Size(), size)
	}
	return m, nil
}

// Bytes is the memory. It must not be written to.
func (v *View) Bytes() []byte { return v.mem.Bytes() }

// Valid reports whether bytes that were read before this call may be believed.
func (v *View) Valid() bool { return v.lease.Valid() }

// Close unmaps the memory.
func (v *View) Close() error { return errors.Join(v.mem.Close(), v.lease.Close()) }
