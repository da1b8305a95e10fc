package maru

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"polder/internal/testpython"
)

// python finds an interpreter that has what the independent client needs.
func python(t *testing.T) string {
	t.Helper()
	path, err := testpython.Find("zmq", "msgpack")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAnIndependentClientInPython runs the client's own tests: both kinds of
// clients, over both kinds of sockets.
func TestAnIndependentClientInPython(t *testing.T) {
	h := build(t, nil)
	dir, err := filepath.Abs("../../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python(t), "-B", "-W", "error::SyntaxWarning", "test_maru_client.py")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "POLDER_MARU_URL="+h.tcp+","+h.ipc, "POLDER_SHARE_SOCKET="+h.opt.Socket)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\nOK") {
		t.Fatalf("the independent client's tests fail: %v\n%s", err, out)
	}
}

// TestTheExampleOfAPrefixCache has several processes share what they have computed.
func TestTheExampleOfAPrefixCache(t *testing.T) {
	h := build(t, nil)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python(t), "-B", "examples/maruprefix/prefix_cache.py", "--url", h.tcp,
		"--engines", "3", "--requests", "60", "--block", "16384")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "clients/python"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "60 requests") || !strings.Contains(string(out), " 0 wrong") || strings.Contains(string(out), " 0 found") {
		t.Fatalf("the example fails: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}
