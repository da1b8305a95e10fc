package robustness

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/child"
	"polder/internal/proctest"
)

// TestTheReadyFileAppearsAtomically: whoever waits for the file finds all of it. The
// kernel reports everything that happens to that name in its directory: it comes by one
// rename, and nobody creates it empty or writes to it.
func TestTheReadyFileAppearsAtomically(t *testing.T) {
	for _, args := range [][]string{
		{"node", "--lend", "16MiB", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"},
		{"up", "--lend", "64MiB", "--local", "8MiB", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "ready")
			next := watchDir(t, filepath.Dir(path))
			p, err := child.Start(child.Command{Path: proctest.Binary(), Args: append(args, "--ready-file", path)})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Stop(); err != nil {
					t.Error(err)
				}
			}()
			for {
				mask, name := next()
				if name != filepath.Base(path) {
					continue // what is to be renamed
				}
				if mask != unix.IN_MOVED_TO {
					t.Errorf("the first thing that happened to the file: got event %#x of inotify, want %#x, that it was renamed", mask, unix.IN_MOVED_TO)
				}
				break
			}
			b, err := os.ReadFile(path)
			var addrs map[string]string
			if err == nil {
				err = json.Unmarshal(b, &addrs)
			}
			if err != nil || !strings.HasSuffix(string(b), "}\n") || addrs["admin"] == "" {
				t.Fatalf("the file as soon as it was there: got %q, %v; want one line of JSON with all addresses", b, err)
			}
			for service, addr := range addrs {
				if c, err := net.Dial("tcp", addr); err != nil {
					t.Errorf("%s, which is ready: %v", service, err)
				} else {
					_ = c.Close()
				}
			}
		})
	}
}

// watchDir returns a function that waits for the next thing that happens to a file of dir.
func watchDir(t *testing.T, dir string) (next func() (mask uint32, name string)) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { _ = f.Close() })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	if err := f.SetReadDeadline(time.Now().Add(hang)); err != nil {
		t.Fatal(err)
	}
	var list []byte // events that have been read: struct inotify_event and a name each
	return func() (uint32, string) {
		t.Helper()
		if len(list) == 0 {
			b := make([]byte, 4096)
			n, err := f.Read(b)
			if err != nil {
				t.Fatalf("cannot wait for the ready file: %v", err)
			}
			list = b[:n]
		}
		mask := binary.NativeEndian.Uint32(list[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(list[12:]))
		name := strings.TrimRight(string(list[unix.SizeofInotifyEvent:end]), "\x00")
		list = list[end:]
		return mask, name
	}
}
