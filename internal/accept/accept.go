// Package accept takes connections in from strangers. Every listener of the tree
// is served through it.
//
// Three rules hold. Accepting never waits for a peer, and never ends because the system is short of something:
// [Each]. What a peer must do before it is known, such as a TLS handshake, happens beside it, with a bound on the
// number of peers and on the time: [Gate]; TLS connections are made by [TLS] or [ListenTLS]. And only peers that have
// done it are handed on: [Listen] makes a net.Listener of this, for servers that want one.
//
// # Who gets in when too many come
//
// A full gate closes the connection that has waited longest, to let the new one in. But each connection may stay for
// [Stay], so that many honest peers who come at once do not push each other out while the processor is busy with
// them: if all connections have come within Stay, the gate closes the new one. So accepting never waits for a place,
// and as long as fewer than Places/Stay, 4,096 a second, come and do not finish, nobody is turned away who finishes
// within Stay. Peers that talk nonsense leave at once, and hardly count.
//
// A place costs a descriptor, a goroutine and in all 7 KiB, or up to 48 KiB more
// while a peer sends as much as it may before it enters: [MaxHandshake].
//
// Counting by address would be fairer towards a peer from elsewhere, but needs a
// table of addresses that strangers fill, and does not help those behind one
// address.
//
// # Concurrency
//
// Each runs in the goroutine that calls it. Everything else may be called by any
// number of goroutines. A gate's lock is a leaf.
package accept

import (
	"errors"
	"log/slog"
	"syscall"
	"time"
)

const (
	firstPause = 5 * time.Millisecond
	lastPause  = 100 * time.Millisecond
	// calm is how long nothing may have failed until a failure is news.
	calm = 10 * time.Second
)

// Each calls take for every connection that next accepts. It returns when next
// fails for good, with that error: net.ErrClosed if the listener was closed.
//
// When the system is short of descriptors or buffers, or a peer has gone before
// it was accepted, Each tries again after a short while. It says so once, and
// again only if all had been well for some time. Take must not wait for a peer.
func Each[C any](log *slog.Logger, next func() (C, error), take func(C)) error {
	var failed time.Time // when next last did
	pause := time.Duration(0)
	for {
		c, err := next()
		if err == nil {
			pause = 0
			take(c)
			continue
		}
		if !passing(err) {
			return err
		}
		if time.Since(failed) > calm {
			log.Warn("cannot accept connections for now, trying again", "err", err)
		}
		failed = time.Now()
		pause = min(max(2*pause, firstPause), lastPause)
		time.Sleep(pause)
	}
}

// passing reports whether accepting may succeed later: everything that accept(2)
// fails with, unless it says that this is no listening socket.
func passing(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EBADF, syscall.EFAULT, syscall.EINVAL, syscall.ENOTSOCK:
		return false
	}
	return true
}
