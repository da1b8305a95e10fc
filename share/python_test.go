package share_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// python returns a Python that has numpy, if there is one.
func python(t *testing.T) string {
	t.Helper()
	for _, path := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), path, "-c", "import numpy").Run() == nil {
			return path
		}
	}
	t.Log("no Python here has numpy (make deps): its test tests nothing")
	return "python3"
}

// TestPythonClient runs the Python client's own tests against a daemon, beside
// a client in Go.
func TestPythonClient(t *testing.T) {
	_, opt := startDaemon(t, nil)
	c := open(t, opt.Socket, nil)
	put(t, c, "from-go", "hello, Python")
	dir, err := filepath.Abs("../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python(t), "-B", "-W", "error", "test_polder_share.py")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "POLDER_SHARE_SOCKET="+opt.Socket, "POLDER_SHARE_KEY=from-go", "POLDER_SHARE_VALUE=hello, Python")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the Python client's tests fail: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "OK") {
		t.Fatalf("the Python client's tests did not say that they passed:\n%s", out)
	}
	wantValue(t, c, "from-python", "hello, Go")
}
