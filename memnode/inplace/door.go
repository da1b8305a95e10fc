package inplace

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"polder/internal/accept"
	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/memnode/tenancy"
)

// Memory is the memory that a node lends, in a file of its own that can be passed to clients.
type Memory struct {
	file   *arena.Memfd
	mem    *arena.Mapping
	reader *os.File // file, opened for reading only
}

// NewMemory makes memory of size bytes, a multiple of the page size, which reads as zero.
func NewMemory(size int) (*Memory, error) {
	m := new(Memory)
	var err error
	if m.file, err = arena.NewMemfd("polder-lent", size); err != nil {
		return nil, err
	}
	if err = m.file.SealForGood(); err == nil {
		m.mem, err = m.file.Map(0, size, true)
	}
	if err == nil {
		m.reader, err = arena.Reopen(m.file.File(), os.O_RDONLY)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Mapping is the memory, which is m's.
func (m *Memory) Mapping() *arena.Mapping { return m.mem }

// Punch gives the pages of [off, off+n) back to the operating system. For everybody who has mapped them they then
// read as zero.
func (m *Memory) Punch(off, n int) error { return m.file.Punch(off, n) }

// Close gives the memory up. Whoever has mapped it keeps it.
func (m *Memory) Close() error {
	err := m.file.Close()
	if m.reader != nil {
		err = errors.Join(err, m.reader.Close())
	}
	if m.mem != nil {
		err = errors.Join(err, m.mem.Close())
	}
	return err
}

// NewLease makes the lease of a connection. It returns the lease, with which the node revokes it, and the file that
// the client is passed.
func NewLease() (*tenancy.Lease, *arena.Memfd, error) {
	file, err := arena.NewMemfd("polder-lease", arena.PageSize)
	if err != nil {
		return nil, nil, err
	}
	var lease *tenancy.Lease
	if err = file.SealForGood(); err == nil {
		lease, err = tenancy.MapLease(file)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return lease, file, nil
}

// A Grant decides whether a client is passed memory, and returns the file of the client's lease, which the caller
// must close. The client is told the error. Several goroutines may call it at a time.
type Grant func(*Request) (lease *arena.Memfd, err error)

// A Door is a socket where memory is passed.
type Door struct {
	lis   *net.UnixListener
	mem   *Memory
	grant Grant
	gate  *accept.Gate
	done  chan struct{} // closed when nothing is accepted any more
}

// Open listens at the socket that belongs to addr, the address of a node's listener, and passes mem to the clients
// that grant allows. Close ends it; until then mem must stay open.
func Open(addr netip.AddrPort, mem *Memory, grant Grant, log *slog.Logger) (*Door, error) {
	lis, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: Name(addr), Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen for clients on this machine: %w", err)
	}
	d := &Door{lis: lis, mem: mem, grant: grant, gate: accept.NewGate(log, Timeout), done: make(chan struct{})}
	go func() {
		defer close(d.done)
		next := d.gate.Accept(lis.Accept)
		if err := accept.Each(log, next, func(nc net.Conn) { d.gate.Go(nc, d.serve) }); !errors.Is(err, net.ErrClosed) {
			log.Error("memory is not passed to clients on this machine any more", "error", err)
		}
	}()
	return d, nil
}

// serve answers the client at the other end of v.
func (d *Door) serve(v *accept.Visitor) error {
	sock := v.Conn.(*net.UnixConn)
	peer, err := fdpass.PeerOf(sock)
	if err != nil {
		return err
	}
	if !peer.Trusted() {
		return fmt.Errorf("the peer runs as user %d, not %d", peer.UID, os.Geteuid())
	}
	conn, err := fdpass.New(sock)
	if err != nil {
		return err
	}
	b, err := conn.Recv()
	if err != nil {
		return fmt.Errorf("who asks for memory says nothing: %w", err)
	}
	var r Request
	err = r.Decode(b)
	conn.Done()
	var lease *arena.Memfd
	if err == nil {
		lease, err = d.grant(&r)
	}
	if err != nil {
		_ = conn.Send(appendAnswer(nil, 0, err.Error()))
		return err
	}
	defer lease.Close()
	if err := conn.SendFDs(appendAnswer(nil, d.mem.file.Size(), ""), d.mem.reader, lease.File()); err != nil {
		return fmt.Errorf("cannot pass memory: %w", err)
	}
	if err := v.Enter(); err != nil {
		return err
	}
	return sock.Close()
}

// Close ends the door, and returns when it serves no client any more. It is idempotent, and does nothing to a nil
// Door.
func (d *Door) Close() {
	if d == nil {
		return
	}
	d.lis.Close()
	d.gate.Close()
	<-d.done
}
