package robustness

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"polder/internal/proctest"
)

// TestWhoMayNotServeSwapIsToldWhatIsMissing, and no device is served that swapping to might hang.
func TestWhoMayNotServeSwapIsToldWhatIsMissing(t *testing.T) {
	t.Parallel()
	args := []string{proctest.Binary(), "block", "--swap", "--far", "127.0.0.1:1", "--size", "1MiB", "--listen", "unix:" + t.TempDir() + "/s", "--admin", "off"}
	if os.Geteuid() == 0 {
		args = append([]string{"setpriv", "--bounding-set", "-sys_resource"}, args...)
	}
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	const want = "polder: cannot serve swap: cannot have the kernel's reclaim leave this process alone (PR_SET_IO_FLUSHER, Linux 5.6): operation not permitted: it needs CAP_SYS_RESOURCE\n"
	if err == nil || string(out) != want {
		t.Errorf("got %v: %swant: %s", err, out, want)
	}
}

// TestSwapOnSaysWhatIsMissing on this machine, all at once.
func TestSwapOnSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	stdout, stderr, code := proctest.Output(t, []string{"PATH=" + t.TempDir()}, "swap", "on", "--far", "127.0.0.1:7070", "--size", "1GiB")
	if code != 1 || stdout != "" {
		t.Errorf("got exit code %d, and %q", code, stdout)
	}
	for _, want := range []string{"polder: cannot swap to borrowed memory: ", "there is no nbd-client in the path (Debian: apt-get install nbd-client)", "no mkswap", "no swapon", "no swapoff"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("it says %q, want %q in it", stderr, want)
		}
	}
}
