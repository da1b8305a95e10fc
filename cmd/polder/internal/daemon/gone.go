package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/directory"
)

// goneWithin is how long an address may take to answer that is asked whether anybody listens there.
const goneWithin = 250 * time.Millisecond

// ownerGone is named.Config.Gone for a process that calls itself me: an owner has died if its machine says that nobody listens at
// its address, or if it is this process that does.
func ownerGone(me string) func(ctx context.Context, owner string) bool {
	return func(ctx context.Context, owner string) bool {
		if directory.CheckAddress(owner) != nil {
			return false // a tool, which has no address
		}
		if a, err := netip.ParseAddrPort(owner); err == nil && a.Addr().IsLoopback() {
			return false // it may be of another machine
		}
		if owner == me {
			return true
		}
		d := net.Dialer{Timeout: goneWithin}
		c, err := d.DialContext(ctx, "tcp", owner)
		if err == nil {
			_ = c.Close() // nothing was said
		}
		return errors.Is(err, unix.ECONNREFUSED)
	}
}
