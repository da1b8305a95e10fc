package swap

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A server of the tests is this program.
func TestMain(m *testing.M) {
	if i := slices.Index(os.Args, "--listen"); i > 0 {
		if err := serve(os.Args); err != nil {
			fmt.Fprintf(os.Stderr, "polder: %v\n", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// serve listens, says that it is ready, and ends as polder block does.
func serve(args []string) error {
	if slices.Contains(args, "fail") {
		return errors.New("it cannot be served")
	}
	path := strings.TrimPrefix(args[slices.Index(args, "--listen")+1], "unix:")
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	b, err := json.Marshal(map[string]string{"nbd": path})
	if err != nil {
		return err
	}
	if err := os.WriteFile(args[slices.Index(args, "--ready-file")+1], b, 0o600); err != nil {
		return err
	}
	<-end
	return l.Close()
}

// host is a machine whose kernel and tools are made of files: each tool writes down how it
// was called, does to the files what the kernel would, and fails if there is a file that says so.
func host(t *testing.T) Host {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	for _, d := range []string{"bin", "sys/module/nbd", "sys/block/nbd0", "sys/block/nbd1", "dev"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "sys/block/nbd0/pid"), "1\n") // somebody else's
	write(t, filepath.Join(dir, "swaps"), header)
	for name, does := range map[string]string{
		"nbd-client": `case $1 in -d) rm sys/block/${2##*/}/pid;; *) touch sys/block/${3##*/}/pid;; esac`,
		"mkswap":     ``,
		"swapon":     `echo "$4 partition 2097148 1024 $3" >>swaps`,
		"swapoff":    `grep -v "^$1" swaps >new; mv new swaps`,
	} {
		script := fmt.Sprintf("#!/bin/sh\ncd %s\necho \"%s $*\" >>called\n[ ! -e fail-%s ] || { echo '%s: it is to fail' >&2; exit 3; }\n%s\n", dir, name, name, name, does)
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := Host{Dir: filepath.Join(dir, "run"), Dev: filepath.Join(dir, "dev"), Sys: filepath.Join(dir, "sys"), Swaps: filepath.Join(dir, "swaps"), Free: filepath.Join(dir, "free"), Server: program, Root: true}
	t.Cleanup(func() {
		for _, d := range []string{"nbd0", "nbd1"} { // what a test that fails has left
			if err := h.stop(d); err != nil {
				t.Error(err)
			}
		}
	})
	return h
}

const header = "Filename Type Size Used Priority\n/dev/sda2 partition 100 0 -2\n"

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// called is how the tools have been called, with paths below the host's directory.
func called(t *testing.T, h Host) string {
	t.Helper()
	top := filepath.Dir(h.Dir)
	b, err := os.ReadFile(filepath.Join(top, "called"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), top+"/", "")
}

// nothingLeft fails the test if there is anything left of On.
func nothingLeft(t *testing.T, h Host) {
	t.Helper()
	files, err := os.ReadDir(h.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) || len(files) > 0 {
		t.Errorf("there is left %v, %v", files, err)
	}
	if h.connected("nbd1") {
		t.Error("the device is still connected")
	}
	if b, err := os.ReadFile(h.Swaps); string(b) != header {
		t.Errorf("it is swapped to\n%s%v", b, err)
	}
}

// TestOnIsUndoneByOff, which ends the server.
func TestOnIsUndoneByOff(t *testing.T) {
	h := host(t)
	path, err := h.On(t.Context(), Options{Priority: 7, Timeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(h.Dev, "nbd1"); path != want {
		t.Errorf("got device %s, want %s: the first is in use", path, want)
	}
	list, err := h.Status()
	if err != nil || len(list) != 1 || list[0].Server == 0 {
		t.Fatalf("got status %+v, %v", list, err)
	}
	pid := list[0].Server
	if want := (Device{path, pid, true, 2097148 << 10, 1 << 20, 7}); list[0] != want {
		t.Errorf("got status %+v, want %+v", list[0], want)
	}
	if sid, err := syscall.Getpgid(pid); err != nil || sid != pid {
		t.Errorf("the server is in group %d, %v: a signal to ours ends it", sid, err)
	}
	if _, err := h.Off(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	want := `nbd-client -unix run/nbd1.sock dev/nbd1 -N polder -C 4 -b 4096 -t 120
mkswap dev/nbd1
swapon --discard=pages -p 7 dev/nbd1
swapoff dev/nbd1
nbd-client -d dev/nbd1
`
	if got := called(t, h); got != want {
		t.Errorf("tools were called so:\n%swant:\n%s", got, want)
	}
	nothingLeft(t, h)
	if err := syscall.Kill(pid, 0); err == nil && !zombie(pid) {
		t.Error("the server runs")
	}
}

// zombie reports whether a process has ended and was not waited for: whose parent runs on,
// as this program does, unlike polder swap on.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

// TestAStepThatFailsUndoesThoseBefore, and says why it failed.
func TestAStepThatFailsUndoesThoseBefore(t *testing.T) {
	for _, step := range []string{"server", "nbd-client", "mkswap", "swapon"} {
		t.Run(step, func(t *testing.T) {
			h := host(t)
			o, says := Options{}, "exit status 3: it is to fail"
			if step == "server" {
				o.Args, says = []string{"fail"}, "its server ended: it cannot be served"
			} else {
				write(t, filepath.Join(filepath.Dir(h.Dir), "fail-"+step), "")
			}
			_, err := h.On(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("got error %v, want one that says %q", err, says)
			}
			nothingLeft(t, h)
		})
	}
}

// TestOffLeavesWhatIsInUse: as long as the kernel swaps to a device it has its server.
func TestOffLeavesWhatIsInUse(t *testing.T) {
	h := host(t)
	if _, err := h.On(t.Context(), Options{}); err != nil {
		t.Fatal(err)
	}
	fail := filepath.Join(filepath.Dir(h.Dir), "fail-swapoff")
	write(t, fail, "")
	if _, err := h.Off(t.Context(), "nbd1"); err == nil || !strings.Contains(err.Error(), "still in use") {
		t.Errorf("got error %v", err)
	}
	if list, err := h.Status(); err != nil || len(list) != 1 || !list[0].On || list[0].Server == 0 || !h.connected("nbd1") {
		t.Errorf("got status %+v, %v", list, err)
	}
	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Off(t.Context(), "nbd1"); err != nil {
		t.Error(err)
	}
	nothingLeft(t, h)
}

// TestOffAfterTheServerWasKilled clears up what is left.
func TestOffAfterTheServerWasKilled(t *testing.T) {
	h := host(t)
	if _, err := h.On(t.Context(), Options{}); err != nil {
		t.Fatal(err)
	}
	pid, err := h.server("nbd1")
	if err != nil || pid == 0 {
		t.Fatalf("got server %d, %v", pid, err)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if list, err := h.Status(); err != nil || len(list) != 1 || list[0].Server != 0 {
		t.Errorf("got status %+v, %v, want a server that has ended", list, err)
	}
	if _, err := h.Off(t.Context(), ""); err != nil {
		t.Error(err)
	}
	nothingLeft(t, h)
}

// TestWhatIsMissingIsSaid, all of it at once; nothing is left behind.
func TestWhatIsMissingIsSaid(t *testing.T) {
	h := host(t)
	top := filepath.Dir(h.Dir)
	without := func(paths ...string) {
		for _, p := range paths {
			if err := os.RemoveAll(filepath.Join(top, p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	on := func(says ...string) {
		t.Helper()
		_, err := h.On(t.Context(), Options{})
		for _, s := range says {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("got error %v, want one that says %q", err, s)
			}
		}
		nothingLeft(t, h)
	}
	write(t, filepath.Join(top, "sys/block/nbd1/pid"), "2\n")
	if _, err := h.On(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "there are 2 devices, and all of them are in use") {
		t.Errorf("got error %v", err)
	}
	if _, err := h.On(t.Context(), Options{Device: "nbd9"}); err == nil || !strings.Contains(err.Error(), "there is no device nbd9") {
		t.Errorf("got error %v", err)
	}
	without("sys/block/nbd1/pid", "sys/module/nbd")
	t.Setenv("PATH", filepath.Join(top, "bin")) // where there is no modprobe
	on(`the kernel has no NBD client, its module nbd: modprobe nbd: exec: "modprobe": executable file not found`)
	h.Config = filepath.Join(top, "config.gz")
	var built bytes.Buffer
	z := gzip.NewWriter(&built)
	if _, err := io.WriteString(z, "CONFIG_SWAP=y\n# CONFIG_BLK_DEV_NBD is not set\n"); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	write(t, h.Config, built.String())
	on("the kernel has no NBD client, its module nbd: it was built without (CONFIG_BLK_DEV_NBD is not set)")
	without("bin/mkswap", "bin/swapon")
	h.Root = false
	on("it takes root; there is no mkswap in the path (Debian: apt-get install util-linux)", "; there is no swapon in the path (Debian: apt-get install mount)")
	if _, err := h.Off(context.Background(), ""); err == nil || !strings.Contains(err.Error(), "there is no such device of polder swap on") {
		t.Errorf("got error %v", err)
	}
}

// TestAKernelThatKeepsLittleFreeIsWarnedOf, and one that keeps enough is not.
func TestAKernelThatKeepsLittleFreeIsWarnedOf(t *testing.T) {
	h := host(t)
	for kib, want := range map[string]string{"65536\n": "", "65535\n": "the kernel keeps 65535 KiB free, with which the machine may hang when memory is short: sysctl vm.min_free_kbytes=65536"} {
		write(t, h.Free, kib)
		if got, err := h.Warn(); got != want || err != nil {
			t.Errorf("%s KiB: got %q, %v, want %q", kib, got, err, want)
		}
	}
	write(t, h.Free, "plenty")
	if got, err := h.Warn(); err == nil {
		t.Errorf("got %q, want an error", got)
	}
}
