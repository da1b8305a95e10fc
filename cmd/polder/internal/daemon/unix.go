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

// reach returns the scheme of the addresses of nodes, "" for TCP, and fails if
// they differ in it.
func reach(addrs []string) (string, error) {
	for _, scheme := range []string{config.UnixScheme, config.RDMAScheme} {
		has := func(a string) bool { return strings.HasPrefix(a, scheme) }
		if !slices.ContainsFunc(addrs, has) {
			continue
		}
		if slices.ContainsFunc(addrs, func(a string) bool { return !has(a) }) {
			return "", &config.Error{Source: "--far", Value: strings.Join(addrs, ","),
				Err: fmt.Errorf("expected %s... for every node or for none", scheme)}
		}
		return scheme, nil
	}
	return "", nil
}

// listenUnix listens at a socket, in a directory that is made if need be.
func (p *process) listenUnix(dev verbs.Device, addr string) (verbs.Listener, error) {
	dir := filepath.Dir(strings.TrimPrefix(addr, config.UnixScheme))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return shm.Listen(dev, addr, shm.Config{Log: p.Logger})
}
