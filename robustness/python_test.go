package robustness

import (
	"os"
	"os/exec"
	"testing"

	"polder/internal/proctest"
	"polder/internal/testpython"
)

// TestThePythonCache runs the tests of clients/python/polder_soft, which start the program.
func TestThePythonCache(t *testing.T) { runPython(t, "test_polder_soft.py", "socket") }

// TestThePythonMapping likewise runs those of clients/python/polder_pages.
func TestThePythonMapping(t *testing.T) { runPython(t, "test_polder_pages.py", "numpy") }

func runPython(t *testing.T, file string, modules ...string) {
	t.Helper()
	t.Parallel()
	python, err := testpython.Find(modules...)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-W", "error", file)
	cmd.Dir = "../clients/python"
	cmd.Env = append(os.Environ(), "POLDER="+proctest.Binary(), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
