package robustness

import (
	"os"
	"os/exec"
	"testing"

	"polder/internal/proctest"
	"polder/internal/testpython"
)

// TestThePythonCache runs the tests of clients/python/polder_soft, which start the program.
func TestThePythonCache(t *testing.T) {
	t.Parallel()
	python, err := testpython.Find("socket")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-W", "error", "test_polder_soft.py")
	cmd.Dir = "../clients/python"
	cmd.Env = append(os.Environ(), "POLDER="+proctest.Binary(), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
