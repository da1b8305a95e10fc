package share_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"polder/internal/testpython"
)

// pythonRun runs a command in dir, with the package that is installed in target.
func pythonRun(t *testing.T, dir, target string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONPATH="+target, "PYTHONDONTWRITEBYTECODE=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_CACHE_DIR=1")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s fails: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestPythonClient builds the Python client's wheel from the tree, without a
// network, installs it, checks its types as those see it who use it, and runs
// its tests against a daemon, beside a client in Go.
func TestPythonClient(t *testing.T) {
	_, opt := startDaemon(t, nil)
	c := open(t, opt.Socket, nil)
	put(t, c, "from-go", "hello, Python")
	python, err := testpython.Find("setuptools", "wheel", "pip", "numpy")
	if err != nil {
		t.Fatal(err)
	}

	// The build writes to its sources, and the tests must not find them.
	src, wheels, target, tests := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.CopyFS(src, os.DirFS("../clients/python")); err != nil {
		t.Fatal(err)
	}
	pythonRun(t, src, "", nil, python, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", wheels, ".")
	built, err := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if err != nil || len(built) != 1 || !strings.HasSuffix(built[0], "-py3-none-any.whl") {
		t.Fatalf("got the wheels %q, %v, want one for every Python 3", built, err)
	}
	pythonRun(t, wheels, "", nil, python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", target, built[0])
	var got []string
	for _, pattern := range []string{"*", "polder_pages/*", "polder_share/*", "polder_soft/*"} {
		paths, err := filepath.Glob(filepath.Join(target, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if !strings.Contains(path, "dist-info") {
				got = append(got, strings.TrimPrefix(path, target+"/"))
			}
		}
	}
	if got, want := strings.Join(got, " "), "polder_pages polder_share polder_soft polder_pages/__init__.py polder_pages/_keeper.py polder_pages/py.typed polder_share/__init__.py polder_share/_client.py polder_share/_memory.py polder_share/_wire.py polder_share/aio.py polder_share/py.typed polder_soft/__init__.py polder_soft/py.typed"; got != want {
		t.Errorf("the wheel has %q, want %q", got, want)
	}

	user := filepath.Join(tests, "user.py")
	if err := os.WriteFile(user, []byte(typedProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	pythonRun(t, tests, target, []string{"MYPYPATH=" + target}, "mypy", "--strict", "--no-error-summary", "--cache-dir", t.TempDir(), "user.py", filepath.Join(target, "polder_pages"), filepath.Join(target, "polder_share"), filepath.Join(target, "polder_soft"))

	test, err := os.ReadFile("../clients/python/test_polder_share.py")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tests, "test_polder_share.py"), test, 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"POLDER_SHARE_SOCKET=" + opt.Socket, "POLDER_SHARE_KEY=from-go", "POLDER_SHARE_VALUE=hello, Python"}
	out := pythonRun(t, tests, target, env, python, "-W", "error", "test_polder_share.py")
	if !strings.Contains(out, "\nOK\n") {
		t.Fatalf("the Python client's tests did not say that all of them passed:\n%s", out)
	}
	wantValue(t, c, "from-python", "hello, Go")
}

// typedProgram uses the package with types: what it returns is not Any.
const typedProgram = `import polder_share
import polder_share.aio


def sync(c: polder_share.Client) -> bytes:
    page = c.alloc()
    stored: bool = c.put("key", page, 5)
    view: polder_share.View | None = c.get_all(["key"])[0]
    assert stored and view is not None
    c.delete(5)  # type: ignore[arg-type]
    return bytes(view.buffer)


async def asynchronous(c: polder_share.aio.Client) -> bytes:
    with await c.get(b"key") as view:
        return bytes(view.buffer)
`
