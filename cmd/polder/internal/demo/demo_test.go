package demo

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"polder/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// tree writes files of random bytes, from empty ones to one that is larger
// than what the server takes.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	r := rand.NewChaCha8([32]byte{})
	for i := range 400 {
		path := filepath.Join(dir, fmt.Sprint("d", i%7), fmt.Sprint("file", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, []int{0, 1, 1000, 100_000, 200_000}[i%5])
		_, _ = r.Read(b) // never fails
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 2<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("large", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTheDemonstrationComparesEveryFile(t *testing.T) {
	var out bytes.Buffer
	err := Run(context.Background(), Config{Polder: proctest.Binary(), Dir: tree(t), Local: 4 << 20, Out: &out})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		": 401 files, ", "local budget 4MiB", "keys         400\n", "400 of 400 the same",
		"1 files larger than the server's limit of 1MiB", "local hits", "far reads", "bytes moved", "resident", "MiB/s",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\r") {
		t.Error("there is a progress bar in a pipe")
	}
}

func TestTheDemonstrationShowsProgressOnATerminal(t *testing.T) {
	var out, progress bytes.Buffer
	err := Run(context.Background(), Config{Polder: proctest.Binary(), Dir: tree(t), Local: 4 << 20, Out: &out, Progress: &progress})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"store", "read back"} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("the progress bar never says %q: %q", want, progress.String())
		}
	}
}

func TestWhatIsDifferentIsFound(t *testing.T) {
	r := report{}
	r.count(&file{path: "same", stored: true, equal: true})
	r.count(&file{path: "left out"})
	if err := r.verdict(); err != nil {
		t.Errorf("got %v", err)
	}
	r.count(&file{path: "other", stored: true})
	if err := r.verdict(); err == nil || !strings.Contains(err.Error(), "1 files are not what they were: other") {
		t.Errorf("got %v", err)
	}
	if r.keys != 2 || r.tooLarge != 1 {
		t.Errorf("counted %d keys and %d too large, want 2 and 1", r.keys, r.tooLarge)
	}
}

// TestABitThatHasChangedIsFound changes files behind the demonstration's back,
// between storing and reading.
func TestABitThatHasChangedIsFound(t *testing.T) {
	ctx := t.Context()
	server, err := startChild(ctx, proctest.Binary(), "serve", "--tier", "soft")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	files, err := list(tree(t))
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(server.Addr("redis"), Config{})
	defer func() { _ = c.close() }()
	if _, err := c.store(ctx, files, 1, 1<<20); err != nil {
		t.Fatal(err)
	}
	changed := map[string]bool{}
	for _, f := range files {
		if f.size == 1000 && len(changed) < 3 {
			b, err := os.ReadFile(f.full)
			if err != nil {
				t.Fatal(err)
			}
			b[333*len(changed)] ^= 1
			if err := c.redis.Set(ctx, f.path, b, 0).Err(); err != nil {
				t.Fatal(err)
			}
			changed[f.path] = true
		}
	}
	if _, err := c.compare(ctx, files, 1); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if want := f.stored && !changed[f.path]; f.equal != want {
			t.Errorf("%s, changed %t: found the same %t, want %t", f.path, changed[f.path], f.equal, want)
		}
	}
}

func TestAnInterruptedDemonstrationEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out bytes.Buffer
	if err := Run(ctx, Config{Polder: proctest.Binary(), Dir: tree(t), Local: 4 << 20, Out: &out}); err == nil {
		t.Error("got no error")
	}
}

func TestAnEmptyTreeIsRefused(t *testing.T) {
	err := Run(context.Background(), Config{Polder: proctest.Binary(), Dir: t.TempDir(), Local: 4 << 20})
	if err == nil || !strings.Contains(err.Error(), "there are none") {
		t.Errorf("got %v", err)
	}
}
