package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"polder/internal/operator"
)

func newTempProcess(t *testing.T) *process {
	t.Helper()
	return newProcess("test", &operator.Control{Logger: slog.New(slog.DiscardHandler)})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestStaleDirectories: what a killed process left is removed by the next one;
// what belongs to a living one, or to somebody else, is not.
func TestStaleDirectories(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	stale := filepath.Join(tmp, tempPrefix+"killed")
	foreign := filepath.Join(tmp, tempPrefix+"foreign") // no lock file
	for _, dir := range []string{stale, foreign} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{lockName, "node.sock"} {
		if err := os.WriteFile(filepath.Join(stale, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, second := newTempProcess(t), newTempProcess(t)
	alive, err := first.tempDir()
	if err != nil {
		t.Fatal(err)
	}
	if exists(stale) {
		t.Error("a dead process's directory is still there")
	}
	other, err := second.tempDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{alive, other, foreign} {
		if !exists(dir) {
			t.Errorf("%s was removed", dir)
		}
	}
	for _, p := range []*process{first, second} {
		var err error
		if p.close(&err); err != nil {
			t.Error(err)
		}
	}
	if exists(alive) || exists(other) {
		t.Error("a directory outlives the process that ended in good order")
	}
}
