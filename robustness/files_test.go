package robustness

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
	softblocks "polder/soft/blocks"
)

// TestFilesAreServedWholeAndAsTheyAre: clients ask for files and parts of files, of which one
// is replaced and one is overwritten again and again, while the coordinator comes and goes
// and takes memory. What they get is one version of the file, whole, and no older than the
// one that was there when they asked; a response that a change overtakes breaks off.
func TestFilesAreServedWholeAndAsTheyAre(t *testing.T) {
	t.Parallel()
	rounds := uint64(3)
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 30
	}
	const size, word = 300<<10 + 24, 24 // a file is its version again and again
	names := []string{"replaced", "overwritten", "calm"}
	dir, socket := t.TempDir(), filepath.Join(t.TempDir(), "s")
	contents := func(version uint64) []byte { return bytes.Repeat(fmt.Appendf(nil, "%023d\n", version), size/word) }
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range names {
		if err := os.WriteFile(path(name), contents(1), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	coordinator := startCoordinator(t, socket, "--grace", "10ms")
	server := proctest.RunCommand(t, child.Command{Path: proctest.Binary(),
		Args: []string{"serve", "files", dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--coordinator", socket, "--budget", "16MiB"}})
	client := &http.Client{Timeout: hang}
	defer client.CloseIdleConnections()

	var there [3]atomic.Uint64 // the version of each file, once it is whole
	for i := range there {
		there[i].Store(1)
	}
	var whole, parts, broken atomic.Int64
	ask := func(rnd *rand.Rand) error {
		i := rnd.IntN(len(names))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr("http")+"/"+names[i], nil)
		if err != nil {
			return err
		}
		from, want := 0, size
		if rnd.IntN(2) == 0 {
			from = rnd.IntN(size/word-1) * word
			want = (1 + rnd.IntN(min(2000, (size-from)/word))) * word
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+want-1))
		}
		before := there[i].Load()
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil && names[i] == "overwritten" {
			broken.Add(1)
			return nil
		}
		if err != nil || resp.StatusCode/100 != 2 {
			return fmt.Errorf("%s from %d: got %s, %w", names[i], from, resp.Status, err)
		}
		if names[i] == "overwritten" && len(got) < want {
			return nil // it had just been truncated
		}
		if len(got) != want {
			return fmt.Errorf("%s from %d: got %d bytes, want %d", names[i], from, len(got), want)
		}
		version, err := strconv.ParseUint(string(got[:word-1]), 10, 64)
		if err != nil || version < before {
			return fmt.Errorf("%s from %d: got version %d, %w, but %d was there before", names[i], from, version, err, before)
		}
		if !bytes.Equal(got, contents(version)[from:from+want]) {
			return fmt.Errorf("%s from %d: version %d is mixed with another", names[i], from, version)
		}
		if want == size {
			whole.Add(1)
		} else {
			parts.Add(1)
		}
		return nil
	}
	end := make(chan struct{})
	var going sync.WaitGroup
	defer going.Wait()
	stop := sync.OnceFunc(func() { close(end) })
	defer stop()
	for n := range 3 {
		going.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(n), 7))
			for {
				select {
				case <-end:
					return
				case <-time.After(time.Millisecond): // the machine has others to serve
				}
				if err := ask(rnd); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for version := uint64(2); version < 2+rounds; version++ {
		for i, name := range names[:2] {
			to := path(name)
			if name == "replaced" {
				to = filepath.Join(dir, ".new")
			}
			if err := os.WriteFile(to, contents(version), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(to, path(name)); err != nil {
				t.Fatal(err)
			}
			there[i].Store(version)
		}
		coordinator.Kill()
		coordinator = startCoordinator(t, socket, "--grace", "10ms")
		proctest.Until(t, "the files are settled, and have been asked for", func() bool {
			st, err := os.Stat(path("overwritten"))
			if err != nil {
				t.Fatal(err)
			}
			_, settled := softblocks.Version(st)
			return settled
		})
		asked := whole.Load() + parts.Load()
		proctest.Until(t, "they have been asked for", func() bool { return t.Failed() || whole.Load()+parts.Load() > asked+50 })
	}
	stop()
	going.Wait()
	m := proctest.State(t, server).Metrics
	t.Logf("%d files, %d parts, %d broken off; %.0f blocks from disk, %.0f from memory", whole.Load(), parts.Load(), broken.Load(), m.Sum("polder_soft_rebuilds_total"), m.Sum("polder_soft_hits_total"))
	if whole.Load() == 0 || parts.Load() == 0 || m.Sum("polder_soft_hits_total") == 0 || m.Sum("polder_soft_rebuilds_total") == 0 {
		t.Errorf("got %d files, %d parts, %v hits and %v rebuilds, want some of each", whole.Load(), parts.Load(), m.Sum("polder_soft_hits_total"), m.Sum("polder_soft_rebuilds_total"))
	}
}
