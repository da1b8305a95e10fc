package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"polder/share"
	"polder/share/resource"
	"polder/share/server"
)

func runShare(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newShare()
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestToolsLookIntoARunningDaemon(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	s, err := server.Start(server.Options{
		Dir: filepath.Join(dir, "state"), Socket: socket, Pools: []resource.Spec{{Kind: resource.Memfd, Size: 1 << 20}},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := share.Open(context.Background(), share.Config{Socket: socket, PageSize: 4096, RegionSize: 16384, Name: "the tester"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, key := range []string{"a/1", "a/2", "b/1"} {
		p, err := c.Alloc(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(context.Background(), key, p, 5); err != nil {
			t.Fatal(err)
		}
	}
	wants := []struct {
		args []string
		want []string
	}{
		{[]string{"ls"}, []string{"KEY", `"a/1"`, `"a/2"`, `"b/1"`}},
		{[]string{"ls", "b"}, []string{`"b/1"`}},
		{[]string{"ls", "--regions"}, []string{"active", "memfd", "16KiB"}},
		{[]string{"ls", "--clients"}, []string{"the tester", "polder share ls"}},
		{[]string{"stats"}, []string{"memfd", "keys", "of 15 bytes"}},
	}
	for _, w := range wants {
		out, err := runShare(t, append(w.args, "--socket", socket)...)
		if err != nil {
			t.Fatalf("%v: %v", w.args, err)
		}
		for _, s := range w.want {
			if !strings.Contains(out, s) {
				t.Errorf("%v does not say %q:\n%s", w.args, s, out)
			}
		}
	}
	out, err := runShare(t, "stats", "--json", "--socket", socket)
	var info share.Info
	if err == nil {
		err = json.Unmarshal([]byte(out), &info)
	}
	if err != nil || info.Keys != 3 {
		t.Fatalf("stats --json: %v, %d keys, want 3", err, info.Keys)
	}
	if _, err := runShare(t, "rm", "missing", "--socket", socket); err == nil {
		t.Error("removing a key that is not there is no error")
	}
	if _, err := runShare(t, "rm", "--prefix", "a/", "--socket", socket); err != nil {
		t.Fatal(err)
	}
	if n := s.Info().Keys; n != 1 {
		t.Fatalf("after rm --prefix a/: got %d keys, want 1", n)
	}
}

func TestWrongConfigurationIsRefusedWithWhatWasExpected(t *testing.T) {
	for want, args := range map[string][]string{
		"one of the kinds":    {"--pool", "tape:/dev/st0"},
		"expected TENANT=S":   {"--quota", "x"},
		"ed permissions su":   {"--socket-mode", "rw"},
		"takes no argument":   {"now"},
		"expected a size":     {"--pool", "memfd:lots"},
		"no such file or dir": {"ls", "--socket", "/nowhere/s"},
		"--socket says where": {"stats", "--socket", "/nowhere/s"},
		"needs the keys":      {"rm"},
		"want tcp://HOST":     {"--maru", "maru://127.0.0.1:5555"},
		"say --insecure":      {"--maru", "tcp://0.0.0.0:5555"},
		"--maru-resources 0.": {"--maru", "ipc:///tmp/x", "--maru-resources", "0.0.0.0:9850"},
		"memory by its path":  {"--maru", "tcp://127.0.0.1:0", "--pool", "hugetlb:2MiB"},
	} {
		dir := t.TempDir()
		if strings.HasPrefix(args[0], "-") || args[0] == "now" {
			args = append([]string{"--dir", dir, "--socket", filepath.Join(dir, "s")}, args...)
		}
		if _, err := runShare(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
}

// TestRegionsAreNotLostToADaemonThatIsJustEnding: a daemon without --maru has the regions of the one before it, also
// if that still has their directory locked; but it does not wait for ever for one that goes on.
func TestRegionsAreNotLostToADaemonThatIsJustEnding(t *testing.T) {
	for name, c := range map[string]struct {
		ends time.Duration
		ours bool
	}{"just ends": {lockTime / 2, true}, "goes on": {time.Hour, false}} {
		synctest.Test(t, func(t *testing.T) {
			opt := server.Options{Dir: t.TempDir()}
			if err := (&maruFlags{directory: []string{"tcp://127.0.0.1:0"}}).options(&opt); err != nil {
				t.Fatal(err)
			}
			dir := opt.MaruDir
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(dir)
			other, err := os.Open(dir)
			if err == nil {
				err = resource.LockPool(other)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			time.AfterFunc(c.ends, func() { other.Close() })
			if err := new(maruFlags).options(&opt); err != nil || (opt.MaruDir == dir) != c.ours {
				t.Errorf("the daemon before it %s: got the directory %q, %v, want that of the regions: %v", name, opt.MaruDir, err, c.ours)
			}
		})
	}
}
