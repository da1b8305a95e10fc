//go:build nbd

package robustness

import (
	"bytes"
	"crypto/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testaddr"
	"polder/internal/testcert"
)

// tool runs a tool of others, and returns what it says and whether it succeeded.
func tool(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	return string(out), err
}

// mustTool runs a tool that has to succeed.
func mustTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := tool(t, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// image makes a file of random bytes with a hole in the middle.
func image(t *testing.T, mib int64) string {
	t.Helper()
	b := make([]byte, mib<<20)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	clear(b[len(b)/4 : len(b)/2])
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func sameFiles(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Error("what was copied out is not what was copied in")
	}
}

// TestBlockDeviceHoldsWhatToolsWrite over a TCP connection, a Unix socket, and TLS.
func TestBlockDeviceHoldsWhatToolsWrite(t *testing.T) {
	node := proctest.Start(t, "node", "--lend", "256MiB")
	dir := t.TempDir()
	ca := testcert.NewAuthority(t, "doors")
	cert, key := ca.Issue(t, "server")
	certs := filepath.Join(dir, "certificates")
	if err := os.Mkdir(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	theirs, theirKey := ca.Issue(t, "client")
	for name, from := range map[string]string{"ca-cert.pem": ca.File, "client-cert.pem": theirs, "client-key.pem": theirKey} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(certs, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "s")
	for name, tt := range map[string]struct {
		args []string
		uri  func(addr string) string
	}{
		"tcp":  {[]string{"--listen", "127.0.0.1:0"}, func(addr string) string { return "nbd://" + addr + "/polder" }},
		"unix": {[]string{"--listen", "unix:" + socket}, func(string) string { return "nbd+unix:///polder?socket=" + socket }},
		"tls": {[]string{"--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca.File},
			func(addr string) string { return "nbds://" + addr + "/polder?tls-certificates=" + certs }},
	} {
		t.Run(name, func(t *testing.T) {
			p := proctest.Run(t, "block", append(tt.args, "--admin", "127.0.0.1:0", "--far", node.Addr("verbs"), "--local", "8MiB", "--size", "64MiB")...)
			uri, in, out := tt.uri(p.Addr("nbd")), image(t, 64), filepath.Join(t.TempDir(), "out")
			if info := mustTool(t, "nbdinfo", uri); !strings.Contains(info, "base:allocation") || !strings.Contains(info, "67108864") {
				t.Errorf("nbdinfo says\n%s", info)
			}
			mustTool(t, "nbdcopy", "--connections=4", in, uri)
			if list := mustTool(t, "nbdinfo", "--map", uri); !strings.Contains(list, "hole,zero") {
				t.Errorf("what is zeros in the image is no hole:\n%s", list)
			}
			mustTool(t, "nbdcopy", "--connections=4", uri, out)
			sameFiles(t, in, out)
			if name == "tls" {
				if out, err := tool(t, "nbdinfo", "nbd://"+p.Addr("nbd")); err == nil {
					t.Errorf("a client without TLS is told\n%s", out)
				}
				return // Debian's qemu and fio take no certificates in an address
			}
			mustTool(t, "qemu-io", "-f", "raw", "-c", "write -P 7 1000 70000", "-c", "read -P 7 1000 70000", "-c", "discard 0 64k",
				"-c", "read -P 0 0 64k", "-c", "write -z 1M 3M", "-c", "read -P 0 1M 3M", "-c", "flush", uri)
			verified := mustTool(t, "fio", "--name=verify", "--ioengine=nbd", "--uri="+uri, "--rw=randwrite", "--bsrange=512-64k", "--iodepth=16",
				"--size=64M", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--randrepeat=0")
			if !strings.Contains(verified, "err= 0") {
				t.Errorf("fio says\n%s", verified)
			}
		})
	}
}

// TestBlockDeviceWhoseNodeGoes: what is far is an I/O error while the node is stopped, and when
// it is dead; nothing hangs, and nobody is told other bytes.
func TestBlockDeviceWhoseNodeGoes(t *testing.T) {
	addr := net.JoinHostPort(testaddr.Host(), "17070")
	startAgain := func() *child.Process {
		return proctest.Run(t, "node", "--listen", addr, "--admin", "127.0.0.1:0", "--lend", "256MiB")
	}
	node := startAgain()
	p := proctest.Run(t, "block", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--far", addr, "--local", "8MiB", "--size", "64MiB", "--op-timeout", "500ms")
	uri, in := "nbd://"+p.Addr("nbd"), image(t, 64)
	mustTool(t, "nbdcopy", in, uri)
	out := filepath.Join(t.TempDir(), "out")
	if err := node.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if said, err := tool(t, "nbdcopy", uri, out); err == nil {
		t.Errorf("everything can be read while the node is stopped: %s", said)
	}
	if err := node.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	proctest.Until(t, "all can be read again", func() bool {
		_, err := tool(t, "nbdcopy", uri, out)
		return err == nil
	})
	sameFiles(t, in, out)
	node.Kill()
	if said, err := tool(t, "nbdcopy", uri, out); err == nil {
		t.Errorf("everything can be read when the node is dead: %s", said)
	}
	// Another one in its place has lost all that was far; who writes it anew has it again.
	startAgain()
	proctest.Until(t, "it can be written to again", func() bool {
		_, err := tool(t, "nbdcopy", in, uri)
		return err == nil
	})
	mustTool(t, "nbdcopy", uri, out)
	sameFiles(t, in, out)
}

// TestBlockDeviceThatIsKilled: its clients are told, at once.
func TestBlockDeviceThatIsKilled(t *testing.T) {
	node := proctest.Start(t, "node", "--lend", "64MiB")
	p := proctest.Run(t, "block", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--far", node.Addr("verbs"), "--local", "8MiB", "--size", "32MiB")
	done := make(chan error, 1)
	go func() {
		_, err := tool(t, "fio", "--name=endless", "--ioengine=nbd", "--uri=nbd://"+p.Addr("nbd"), "--rw=randrw", "--bs=4k", "--iodepth=8", "--size=32M", "--time_based", "--runtime=600")
		done <- err
	}()
	proctest.Until(t, "the client writes", func() bool {
		return proctest.State(t, p).Metrics.Sum("polder_block_requests_total", "command=write") > 100
	})
	p.Kill()
	if err := <-done; err == nil {
		t.Error("the client has noticed nothing")
	}
}

// TestABlockDeviceOnADiskIsKilled: what was flushed is there when it is started again.
func TestABlockDeviceOnADiskIsKilled(t *testing.T) {
	dir := t.TempDir()
	start := func() *child.Process {
		return proctest.Start(t, "block", "--listen", "127.0.0.1:0", "--disk", dir, "--heap", "disk", "--local", "8MiB", "--size", "64MiB")
	}
	in, out := image(t, 64), filepath.Join(t.TempDir(), "out")
	p := start()
	mustTool(t, "nbdcopy", "--flush", in, "nbd://"+p.Addr("nbd"))
	p.Kill()
	<-p.Done()
	p = start()
	mustTool(t, "nbdcopy", "nbd://"+p.Addr("nbd"), out)
	sameFiles(t, in, out)
}
