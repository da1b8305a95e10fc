package soft

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestFindCoordinatorTrustsDirectoriesOfThisUser: whoever else could have put the socket
// there would see what the heap holds.
func TestFindCoordinatorTrustsDirectoriesOfThisUser(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("RUNTIME_DIRECTORY", dir+":/nonexistent")
	path := CoordinatorSockets()[0]
	if want := filepath.Join(dir, "coordinator.sock"); path != want {
		t.Fatalf("a service's coordinator listens at %s, want %s", path, want)
	}
	host := "" // of another coordinator, which this machine may have
	if st, err := os.Stat(hostSocket); err == nil && st.Mode()&os.ModeSocket != 0 {
		host = hostSocket
	}
	find := func(when, want string) {
		t.Helper()
		if got := FindCoordinator(); got != want {
			t.Errorf("%s: found %q, want %q", when, got, want)
		}
	}
	find("nobody listens", host)
	lis, err := net.Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	for mode, want := range map[os.FileMode]string{0o755: path, 0o700: path, 0o777: host, 0o775: host} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		find("in a directory of mode "+mode.String(), want)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	find("in a directory of somebody else's", host)
}
