package soft

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// hostSocket is where the coordinator of the whole host listens. Its directory is made by
// root or for the service.
const hostSocket = "/run/polder/coordinator.sock"

// CoordinatorSockets are the paths at which a coordinator may listen unless it is told otherwise, in the order in
// which they are tried. A coordinator listens at the first path: in the $RUNTIME_DIRECTORY of a service; else, unless
// the user is root, in $XDG_RUNTIME_DIR or, if that is not set, in a directory of the user's own for temporary files.
// The last path is the host's, /run/polder/coordinator.sock.
func CoordinatorSockets() []string {
	uid := os.Geteuid()
	dir, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
	switch {
	case dir != "":
	case uid == 0:
		return []string{hostSocket}
	case os.Getenv("XDG_RUNTIME_DIR") != "":
		dir = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "polder")
	default:
		dir = filepath.Join(os.TempDir(), "polder-"+strconv.Itoa(uid))
	}
	return slices.Compact([]string{filepath.Join(dir, filepath.Base(hostSocket)), hostSocket})
}

// FindCoordinator returns the path of the first of CoordinatorSockets that is there, and "" if none is. It skips a
// socket in a directory into which another user (except root) can put something, unless it is the host's socket:
// whoever serves a socket sees what a heap holds.
func FindCoordinator() string {
	for _, path := range CoordinatorSockets() {
		if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeSocket != 0 && (path == hostSocket || own(filepath.Dir(path))) {
			return path
		}
	}
	return ""
}

// own reports whether only this user and root can put something into a directory.
func own(dir string) bool {
	st, err := os.Lstat(dir)
	if err != nil || !st.IsDir() || st.Mode().Perm()&0o022 != 0 {
		return false
	}
	uid := st.Sys().(*syscall.Stat_t).Uid
	return uid == 0 || int(uid) == os.Geteuid()
}
