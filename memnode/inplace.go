package memnode

import (
	"errors"
	"fmt"
	"net/netip"

	"polder/internal/arena"
	"polder/memnode/inplace"
	"polder/memnode/wire"
	"polder/verbs"
)

// checkInPlace returns why a node with this configuration cannot let clients read its memory in place, or nil.
func (c *Config) checkInPlace(attr verbs.DeviceAttr) error {
	if !c.InPlace {
		return nil
	}
	switch entry, _ := wire.ManagerNamed(c.Manager); {
	case !entry.Keeps:
		return fmt.Errorf("what is lent by %s cannot be read in place, since its clients could not be kept from believing what they read: want %s, %s or %s",
			c.Manager, Native, OneSided, RPCMW)
	case c.Outliving != nil:
		return errors.New("memory that outlives the node cannot be read in place: the secrets of clients are in the same file")
	case attr.Pinned:
		return fmt.Errorf("what is lent over %s cannot be read in place: want TCP", attr.Name)
	}
	return nil
}

// openDoor opens the door at which clients of l on this machine are passed the memory. It returns nil if the node
// does not lend memory to be read in place, or if the door cannot be opened, for example because l does not listen on
// TCP; those clients then read over the fabric.
func (n *Node) openDoor(l verbs.Listener) *inplace.Door {
	if n.mem.shared == nil {
		return nil
	}
	addr, err := netip.ParseAddrPort(l.Addr())
	if err == nil {
		var door *inplace.Door
		if door, err = inplace.Open(addr, n.mem.shared, n.lease, n.log); err == nil {
			return door
		}
	}
	n.log.Warn("clients on this machine do not read in place", "listener", l.Addr(), "error", err)
	return nil
}

// Why a client is not passed memory.
var (
	errNoSession   = errors.New("no client of that session is connected, or it has not shown the secret")
	errOtherConn   = errors.New("the session is used over another connection")
	errPassedTwice = errors.New("the memory has been passed over this connection")
)

// lease implements inplace.Grant.
func (n *Node) lease(r *inplace.Request) (file *arena.Memfd, err error) {
	if !n.run(func() { file, err = n.beginLease(r) }) {
		return nil, verbs.ErrClosed
	}
	return file, err
}

// beginLease does the work of lease, in the control goroutine.
func (n *Node) beginLease(r *inplace.Request) (*arena.Memfd, error) {
	s := n.sessions[r.Session.ID]
	switch {
	case s == nil || !s.knows(&r.Session) || s.client == nil:
		return nil, errNoSession
	case !r.Is(s.client.conn.RemoteAddr()):
		return nil, errOtherConn
	case s.client.lease != nil:
		return nil, errPassedTwice
	}
	lease, file, err := inplace.NewLease()
	if err != nil {
		return nil, err
	}
	s.client.lease = lease
	n.log.Info("client reads in place", "peer", s.client.conn.RemoteAddr(), "session", s.wire.ID)
	return file, nil
}

// revoke ends reading in place: c believes nothing that it reads from now on.
func (c *client) revoke() {
	if c.lease != nil {
		c.lease.Revoke()
		c.lease.Close()
		c.lease = nil
	}
}
