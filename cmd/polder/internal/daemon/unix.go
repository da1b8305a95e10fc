package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"polder/internal/scheme"
	"polder/verbs"
	"polder/verbs/shm"
)

// DefaultSocket is where serve looks for a node on this machine when it is not
// told of any.
const DefaultSocket = scheme.Unix + "/run/polder/node.sock"

func isUnix(addr string) bool { return scheme.Of(addr) == scheme.Unix }

// NodeHere returns DefaultSocket if there is a socket at it.
func NodeHere() (addr string, ok bool) {
	st, err := os.Stat(strings.TrimPrefix(DefaultSocket, scheme.Unix))
	return DefaultSocket, err == nil && st.Mode()&os.ModeSocket != 0
}

// listenUnix listens at a socket, in a directory that is made if need be.
func (p *process) listenUnix(dev verbs.Device, addr string) (verbs.Listener, error) {
	dir := filepath.Dir(strings.TrimPrefix(addr, scheme.Unix))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return shm.Listen(dev, addr, shm.Config{Log: p.Logger})
}
