package robustness

import (
	"bufio"
	"context"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"polder/internal/child"
	"polder/internal/proctest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestWrongArgumentsAreExplained runs the program with one mistake after the
// other. Each is refused at once, with exit code 2 and one line that names
// what is wrong and what was expected.
func TestWrongArgumentsAreExplained(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var b strings.Builder
	for _, tt := range []struct {
		env  []string
		args []string
	}{
		{nil, []string{"upp"}},
		{nil, []string{"up", "now"}},
		{nil, []string{"up", "--loca", "1MiB"}},
		{nil, []string{"up", "--local"}},
		{nil, []string{"up", "--local", "1MB"}},
		{nil, []string{"up", "--local", "plenty"}},
		{nil, []string{"up", "--op-timeout", "soon"}},
		{nil, []string{"up", "--max-clients", "0"}},
		{nil, []string{"up", "--admin", "7079"}},
		{nil, []string{"up", "--log-level", "loud"}},
		{nil, []string{"up", "--password", "open sesame"}},
		{[]string{"POLDER_PASSWORD=open sesame"}, []string{"up", "--password-file", filepath.Join(dir, "none")}},
		{nil, []string{"up", "--password-file", filepath.Join(dir, "none")}},
		{nil, []string{"node", "--admin-token-file", file("short", "open sesame")}},
		{nil, []string{"up", "--tls-cert", "a.pem", "--tls-key", "b.pem"}},
		{nil, []string{"serve"}},
		{nil, []string{"serve", "--far", "localhost"}},
		{nil, []string{"serve", "--far", "dns://"}},
		{nil, []string{"serve", "--far", "dns://nodes.test:7070,127.0.0.1:7070"}},
		{nil, []string{"serve", "--far", "etcd://10.0.0.1:2379"}},
		{nil, []string{"serve", "--far", "127.0.0.1:7070,etcd://10.0.0.1:2379/production"}},
		{nil, []string{"serve", "--far", "etcd://192.0.2.1:2379/production", "--listen", "127.0.0.1:0", "--admin", "off"}},
		{nil, []string{"node", "--directory", "etcd://127.0.0.1:2379/production", "--listen", "0.0.0.0:0", "--insecure"}},
		{nil, []string{"node", "--directory", "etcd://127.0.0.1:2379/production", "--advertise", "0.0.0.0:7070"}},
		{nil, []string{"node", "--directory", "etcd://127.0.0.1:2379/a/b"}},
		{nil, []string{"node", "--advertise", "10.0.0.1:7070"}},
		{nil, []string{"block", "--far", "127.0.0.1:7070"}},
		{nil, []string{"block", "--far", "127.0.0.1:7070", "--size", "5000"}},
		{nil, []string{"node", "--drain", "-1s"}},
		{nil, []string{"node", "--in-place", "--listen", "unix:/nonexistent/node.sock"}},
		{nil, []string{"node", "--in-place", "--fabric", "rdma"}},
		{nil, []string{"node", "--in-place", "--manager", "finemem"}},
		{nil, []string{"node", "--in-place", "--keep"}},
		{nil, []string{"drain"}},
		{nil, []string{"drain", "127.0.0.1:7071", "127.0.0.1:7073"}},
		{nil, []string{"drain", "127.0.0.1:7071", "--within", "0s"}},
		{nil, []string{"help", "upp"}},
		{nil, []string{"help", "up", "now"}},
		{nil, []string{"heap", "copy"}},
		{nil, []string{"heap", "info", "--disk", dir}},
		{nil, []string{"heap", "rm", "--disk", dir}},
		{nil, []string{"heap", "forget", "127.0.0.1:1", ""}},
		{nil, []string{"rdb", "check"}},
		{nil, []string{"share", "ls", "a", "b"}},
		{nil, []string{"coordinator", "now"}},
		{nil, []string{"man"}},
		{nil, []string{"drain", ""}},
		{nil, []string{"drain", "127.0.0.1"}},
		{nil, []string{"lend", "127.0.0.1:7071", "plenty"}},
		{nil, []string{"heap", "forget", "127.0.0.1:99999", "orders"}},
		{nil, []string{"swap", "up"}},
		{nil, []string{"swap", "on", "--far", "127.0.0.1:7070"}},
		{nil, []string{"swap", "on", "--far", "127.0.0.1:7070", "--size", "5000"}},
		{nil, []string{"swap", "on", "--far", "127.0.0.1:7070", "--size", "1GiB", "--priority", "-1"}},
		{nil, []string{"swap", "on", "--far", "127.0.0.1:7070", "--size", "1GiB", "--nbd", "/dev/nbd0"}},
		{nil, []string{"swap", "off", "nbd0"}},
		{nil, []string{"pager", "--far", "127.0.0.1:7070", "--listen", "127.0.0.1:7000"}},
		{nil, []string{"pager", "--far", "127.0.0.1:7070", "--frames", "64KiB"}},
		{nil, []string{"node", "--chunk", "1TiB"}},
		{nil, []string{"serve", "--tier", "soft", "--budget", "1TiB"}},
		{nil, []string{"serve", "files", dir, "--budget", "1TiB"}},
		{nil, []string{"share", "--dir", dir, "--pool", "x"}},
		{nil, []string{"share", "--dir", dir, "--pool", "memfd:plenty"}},
		{nil, []string{"share", "--dir", dir, "--pool", "file:here"}},
		{nil, []string{"share", "--dir", dir, "--keep", "--pool", "tape:/dev/st0"}},
		{nil, []string{"share", "--dir", dir, "--socket-mode", "999"}},
		{nil, []string{"share", "--dir", dir, "--socket", ""}},
		{nil, []string{"config", "share", "--check", "--allow-uid", "4294967296"}},
		{nil, []string{"config", "share", "--check", "--quota", "uid:anna=1GiB"}},
		{nil, []string{"share", "--dir", dir, "--maru", "here"}},
		{nil, []string{"config", "share", "--check", "--pool", "x"}},
		{nil, []string{"coordinator", "--min-share", "5"}},
		{nil, []string{"coordinator", "--max", "1MiB"}},
		{nil, []string{"coordinator", "--weight", "web=2"}},
		{nil, []string{"coordinator", "--weights", filepath.Join(dir, "none")}},
		{nil, []string{"bench", "alloc", "--asap", "--short"}},
		{nil, []string{"sim", "kv", "--seed", "-1"}},
		{[]string{"POLDER_LEND=half"}, []string{"node"}},
		{[]string{"POLDER_LENT=1GiB"}, []string{"node", "--log-level", "warn"}},
		{nil, []string{"node", "--config", file("a.yaml", "lend: [1GiB, 2GiB]\n")}},
		{nil, []string{"node", "--config", file("b.yaml", "local: 64MiB\n")}},
		{nil, []string{"node", "--config", file("c.yaml", "lend 64MiB\n")}},
		{nil, []string{"node", "--config", filepath.Join(dir, "none.yaml")}},
	} {
		stdout, stderr, code := proctest.Output(t, tt.env, tt.args...)
		line := strings.Join(append(tt.env, append([]string{"polder"}, tt.args...)...), " ")
		b.WriteString(strings.ReplaceAll("$ "+line+"\n"+stdout+stderr+"\n", dir, "DIR"))
		if code != 2 {
			t.Errorf("%s: got exit code %d, want 2", line, code)
		}
	}
	golden(t, "usage", b.String())
}

// TestWhatCannotWorkIsExplained has mistakes that show when the daemon tries.
func TestWhatCannotWorkIsExplained(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	addr, dir := taken.Addr().String(), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "keeper.lock"), 0o700); err != nil { // no keeper can lock it
		t.Fatal(err)
	}
	var b strings.Builder
	for _, args := range [][]string{
		{"up", "--listen", addr, "--admin", "off"},
		{"up", "--listen", "127.0.0.1:0", "--admin", addr},
		{"node", "--listen", addr, "--admin", "off"},
		{"up", "--listen", "0.0.0.0:6379"},
		{"up", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"},
		{"node", "--listen", ":7070"},
		{"up", "--tls-cert", "a.pem"},
		{"up", "--tls-cert", "a.pem", "--tls-key", "b.pem", "--tls-ca", "c.pem"},
		{"node", "--chunk", "3MiB", "--listen", "127.0.0.1:0", "--admin", "off"},
		{"node", "--lend", "1MiB", "--chunk", "2MiB", "--listen", "127.0.0.1:0", "--admin", "off"},
		{"node", "--keep", "--dir", dir, "--listen", "127.0.0.1:0", "--admin", "off"},
		{"node", "--listen", "unix:/proc/" + strings.Repeat("long", 30), "--admin", "off"},
		{"status", "--admin", "127.0.0.1:1"},
		{"serve", "--far", "127.0.0.1:1", "--far-wait", "0s", "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "error"},
		{"demo", "--dir", "/nonexistent"},
	} {
		stdout, stderr, code := proctest.Output(t, nil, args...)
		line := strings.Join(append([]string{"polder"}, args...), " ")
		b.WriteString(strings.NewReplacer(addr, "ADDR", dir, "DIR").Replace("$ " + line + "\n" + stdout + stderr + "\n"))
		if code == 0 {
			t.Errorf("%s: got exit code 0", line)
		}
	}
	golden(t, "refused", b.String())
}

// TestHelpThatCannotBeWrittenIsAnError, as is everything else that a command prints.
func TestHelpThatCannotBeWrittenIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{nil, {"--help"}, {"help"}, {"help", "up"}, {"heap"}, {"up", "--help"}, {"version"}, {"doctor"}} {
		cmd := exec.Command(proctest.Binary(), args...)
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = full, &said
		err := cmd.Run()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "no space left on device") {
			t.Errorf("polder %q: %v, and it says %q, want exit code 1, and why", args, err, said.String())
		}
	}
}

// TestSignalsEndEverythingCleanly stops every kind of daemon by the signals
// that people and supervisors send.
func TestSignalsEndEverythingCleanly(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		node := startNode(t, "64MiB")
		server := startServer(t, node.Addr("verbs"), "8MiB")
		up := proctest.Start(t, "up", "--local", "8MiB", "--lend", "64MiB")
		for _, p := range []*child.Process{server, up} {
			if err := connect(t, p).Set(context.Background(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range []*child.Process{up, server, node} {
			if err := p.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if code := p.ExitCode(); code != 0 {
				t.Errorf("after %v: exit code %d: %s", sig, code, p.Stderr())
			}
		}
	}
}

// TestTheSecondSignalEndsAtOnce uses a command that waits for its standard
// input to end, whatever the first signal says.
func TestTheSecondSignalEndsAtOnce(t *testing.T) {
	cmd := exec.Command(proctest.Binary(), "bench", "verbs-server")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Errorf("cannot read its addresses: %v", err)
	}
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("got exit code %d (%v), want 130", cmd.ProcessState.ExitCode(), err)
	}
}
