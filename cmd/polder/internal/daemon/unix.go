package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"polder/internal/config"
	"polder/verbs"
	"polder/verbs/shm"
)

// DefaultSocket is where serve looks for a node on this machine when it is not
// told of any.
const DefaultSocket = config.UnixScheme + "/run/polder/node.sock"

func isUnix(addr string) bool { return strings.HasPrefix(addr, config.UnixScheme) }

// NodeHere returns DefaultSocket if there is a socket at it.
func NodeHere() (addr string, ok bool) {
	st, err := os.Stat(strings.TrimPrefix(DefaultSocket, config.UnixScheme))
	return DefaultSocket, err == nil && st.Mode()&os.ModeSocket != 0
}

// allUnix reports whether the nodes at addrs are all on this machine, at Unix
// sockets, and fails if only some are.
func allUnix(addrs []string) (bool, error) {
	all := !slices.ContainsFunc(addrs, func(a string) bool { return !isUnix(a) })
	if !all && slices.ContainsFunc(addrs, isUnix) {
		return false, &config.Error{Source: "--far", Value: strings.Join(addrs, ","),
			Err: fmt.Errorf("expected unix:PATH for every node or for none")}
	}
	return all, nil
}

// listenUnix listens at a socket, in a directory that is made if need be.
func (p *process) listenUnix(dev verbs.Device, addr string) (verbs.Listener, error) {
	dir := filepath.Dir(strings.TrimPrefix(addr, config.UnixScheme))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return shm.Listen(dev, addr, shm.Config{Log: p.Logger})
}
