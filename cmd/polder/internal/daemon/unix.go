package daemon

import (
	"os"
	"strings"

	"polder/internal/scheme"
)

// DefaultSocket is where serve looks for a node on this machine if --far is not
// given.
const DefaultSocket = scheme.Unix + "/run/polder/node.sock"

func isUnix(addr string) bool { return scheme.Of(addr) == scheme.Unix }

// NodeHere returns DefaultSocket if there is a socket at it.
func NodeHere() (addr string, ok bool) {
	st, err := os.Stat(strings.TrimPrefix(DefaultSocket, scheme.Unix))
	return DefaultSocket, err == nil && st.Mode()&os.ModeSocket != 0
}
