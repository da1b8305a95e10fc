package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the files that are made of the command tree anew")

var roles = []string{"up", "node", "serve", "block", "pager", "broker", "share", "coordinator", "witness"}

// polder runs a command line in this process and returns what it prints.
func polder(t *testing.T, environ []string, args ...string) (string, error) {
	t.Helper()
	root := newRoot(environ)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	return out.String(), err
}

// TestReferenceFilesHaveEveryFlag compares the files with the flags; -update
// writes them anew.
func TestReferenceFilesHaveEveryFlag(t *testing.T) {
	for _, role := range roles {
		want, err := polder(t, nil, "config", role, "--comments")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("../../deploy/config", role+".yaml")
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what polder config %s --comments prints: go test ./cmd/polder -run ReferenceFiles -update", path, role)
		}
		// Each key, no longer a comment, is one that the daemon takes.
		var all strings.Builder
		for line := range strings.Lines(want) {
			if after, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(after, " ") && strings.Contains(after, ":") && !strings.HasSuffix(strings.TrimSpace(after), `""`) && !strings.HasSuffix(after, "[]\n") && !strings.HasSuffix(after, ": 0\n") {
				all.WriteString(after)
			}
		}
		file := filepath.Join(t.TempDir(), role+".yaml")
		if err := os.WriteFile(file, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"config", role, "--check", "--config", file}
		if role == "broker" {
			args = append(args, "--far", "127.0.0.1:7070") // which has no default
		}
		out, err := polder(t, nil, args...)
		if err != nil || out != "" {
			t.Errorf("%s with its defaults: %q, %v", role, out, err)
		}
	}
}

// TestConfigSaysWhereEachValueComesFrom, and what it prints is a file that says
// the same.
func TestConfigSaysWhereEachValueComesFrom(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "polder.yaml")
	if err := os.WriteFile(file, []byte("max-clients: 77\nlocal: 512MiB\nadmin: \"off\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"POLDER_OP_TIMEOUT=7s", "POLDER_LOCAL=256MiB", "POLDER_PASSWORD=open-sesame"}
	out, err := polder(t, environ, "config", "serve", "--local", "128MiB", "--far", "127.0.0.1:1,127.0.0.1:2", "--config", file)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"local": "128MiB # flag", "far": "127.0.0.1:1,127.0.0.1:2 # flag", "op-timeout": "7s # POLDER_OP_TIMEOUT",
		"max-clients": "77 # " + file, "admin": `"off" # ` + file, "#listen": "127.0.0.1:6379 # default", "#manager": `"" # default`,
	} {
		found := ""
		for line := range strings.Lines(out) {
			if v, ok := strings.CutPrefix(line, key+":"); ok {
				found = strings.Join(strings.Fields(v), " ")
			}
		}
		if found != want {
			t.Errorf("%s is %q, want %q", key, found, want)
		}
	}
	if strings.Contains(out, "sesame") || !strings.Contains(out, "password is set and not shown") {
		t.Errorf("of the password it says:\n%s", out)
	}
	again := filepath.Join(dir, "again.yaml")
	if err := os.WriteFile(again, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	same, err := polder(t, nil, "config", "serve", "--config", again)
	if err != nil {
		t.Fatal(err)
	}
	value := func(s string) string {
		var b strings.Builder
		for line := range strings.Lines(s) {
			if v, _, ok := strings.Cut(line, " # "); ok && !strings.Contains(line, "password") {
				b.WriteString(strings.TrimSpace(v) + "\n")
			}
		}
		return b.String()
	}
	if value(same) != value(out) {
		t.Errorf("what it printed is read as\n%s\nwant\n%s", value(same), value(out))
	}
}

func TestConfigCheckRefusesABadFileByLineAndKey(t *testing.T) {
	for text, want := range map[string]string{
		"# a comment\n\nlocal: lots\n":               `cannot use local in FILE:3 = "lots": expected a size such as 64MiB, 1.5GiB or 4096`,
		"local: 64MiB\nmax-client: 3\n":              "cannot use max-client in FILE:2: there is no such key; expected one of admin",
		"local: 64MiB\nlocal: 65MiB\n":               `line 2`,
		"local: 64MiB\n\tmax-clients: 3\n":           `line 2`,
		"tls-cert:\n":                                "cannot use tls-cert in FILE:1: expected a value after the colon",
		"listen: 127.0.0.1:1\nfar:\n  - there\n":     `cannot use far in FILE:2 = "there": expected HOST:PORT`,
		"listen: 127.0.0.1:1\n\nadmin:\n  port: 4\n": "cannot use admin.port in FILE:4: there is no such key",
	} {
		file := filepath.Join(t.TempDir(), "polder.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := polder(t, nil, "config", "serve", "--check", "--config", file)
		if err == nil || out != "" || !strings.Contains(err.Error(), strings.ReplaceAll(want, "FILE", file)) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// TestConfigCheckRefusesWhatTheDaemonRefuses: flags that contradict one another, in
// the daemon's own words.
func TestConfigCheckRefusesWhatTheDaemonRefuses(t *testing.T) {
	for _, tt := range []struct {
		args, want string
	}{
		{"node --lend 1MiB --chunk 2MiB", "at least one chunk"},
		{"node --listen 0.0.0.0:7070", "it can be reached from other machines"},
		{"node --device mlx5_0", "none without --fabric rdma"},
		{"node --tls-cert a.pem", "nobody would be shown it"},
		{"node --tls-ca a.pem", "expected --tls-cert and --tls-key"},
		{"node --admin 0.0.0.0:0", "it can be reached from other machines"},
		{"up --component-memory 16MiB", "0 without --node-listen"},
		{"up --lend 1MiB --chunk 2MiB", "at least one chunk"},
		{"up --max-value 16MiB", "at most half of --client-memory"},
		{"up --heap orders --witness 127.0.0.1:1", "none without --disk or --far"},
		{"up --cluster blue", "none without --far"},
		{"serve --far 127.0.0.1:1 --cluster a/b", "up to 64 letters, digits"},
		{"serve --disk /tmp --cluster blue", "none with --disk"},
		{"up --password secret", "every user of this machine can read a command line"},
		{"serve --far 127.0.0.1:1 --coordinator /nowhere", "none without --tier soft"},
		{"serve --far 127.0.0.1:1,broker:/nowhere", "a broker alone"},
		{"serve --far broker:/nowhere --manager native", "none with a broker"},
		{"serve --tier soft --max-value 16MiB", "at most half of --client-memory"},
		{"serve --tier soft --memcached 0.0.0.0:0", "it can be reached from other machines"},
		{"serve --far 127.0.0.1:1 --origin redis://127.0.0.1:1", "none without --tier soft"},
		{"serve --far 127.0.0.1:1 --origin-ca ca.pem", "none without --origin"},
		{"serve --tier soft --origin http://127.0.0.1:1", "expected redis://HOST:PORT"},
		{"serve --tier soft --origin redis://anna:hush@127.0.0.1:1", "every user of this machine can read a command line"},
		{"serve --tier soft --origin redis://127.0.0.1:1 --origin-ca ca.pem", "none without rediss://"},
		{"serve --tier soft --origin rediss://127.0.0.1:1 --origin-cert c.pem", "--origin-key with it"},
		{"serve --tier soft --origin redis://127.0.0.1:1 --password-file p", "none with --origin"},
		{"broker", "it is not given"},
		{"broker --far 127.0.0.1:1 --allow-uid anna", "the numbers of users"},
		{"coordinator --reserve 1024TiB", "want less than the host's memory"},
		{"coordinator --min-share 2", "the least share"},
		{"serve --far 127.0.0.1:1 --heap orders", "none without --disk, or --witness"},
		{"serve --far 127.0.0.1:1 --witness 127.0.0.1:2", "none without --heap"},
		{"serve --far 127.0.0.1:1 --standby", "none without --heap and --witness"},
		{"serve --far 127.0.0.1:1 --heap a --witness 127.0.0.1:2 --reads fenced", "with --witness and --durable"},
		{"serve --far 127.0.0.1:1 --heap a --witness 127.0.0.1:2 --durable=every:1s --reads fenced", "with --witness and --durable"},
		{"serve --far 127.0.0.1:1 --disk d --heap orders", "but for a heap with a name"},
		{"serve --far 127.0.0.1:1 --advertise 10.0.0.1:6379", "none without --witness"},
		{"serve --far 127.0.0.1:1 --heap orders --witness 127.0.0.1:2 --advertise 0.0.0.0:6379", "an address of one machine"},
		{"serve --far unix:/nowhere --heap orders --witness 127.0.0.1:2", "nodes at HOST:PORT or rdma://HOST:PORT with --witness"},
		{"serve --far broker:/nowhere --heap orders --witness 127.0.0.1:2", "nodes at HOST:PORT or rdma://HOST:PORT with --witness"},
		{"serve --far 127.0.0.1:1 --heap a/b --witness 127.0.0.1:2", "up to 64 letters"},
		{"serve --far 127.0.0.1:1 --heap orders --witness here", "expected HOST:PORT"},
		{"serve --far 127.0.0.1:1 --heap orders --witness etcd://127.0.0.1:2", "expected etcd://HOST:PORT/NAME"},
		{"serve --far 127.0.0.1:1 --heap orders --witness 127.0.0.1:3 --witness etcd://127.0.0.1:2/c", "one cluster in etcd alone"},
		{"serve --far 127.0.0.1:1 --heap orders --witness 127.0.0.1:3 --etcd-auth-file f", "none unless --far or --witness names"},
		{"serve --tier soft --heap orders --witness 127.0.0.1:2", "none without --tier far"},
		{"up --witness 127.0.0.1:2", "none without --heap"},
		{"block --far 127.0.0.1:1 --size 1GiB --listen 127.0.0.1:0 --witness 127.0.0.1:2", "none without --heap"},
		{"witness --dir= --listen 127.0.0.1:0", "it is empty"},
		{"witness --dir d --listen 0.0.0.0:0", "it can be reached from other machines"},
		{"share --pool disk:1GiB", "disk"},
		{"share --quota 1GiB", "TENANT=SIZE"},
		{"share --maru tcp://0.0.0.0:5555", "say --insecure"},
		{"share --listen 0.0.0.0:0", "it can be reached from other machines"},
	} {
		args := strings.Fields(tt.args)
		own := []string{}
		switch name := args[0]; name {
		case "up", "serve":
			own = append(own, "--listen", "127.0.0.1:0")
		case "broker":
			own = append(own, "--listen", filepath.Join(t.TempDir(), "s"))
		case "share", "coordinator":
			own = append(own, "--socket", filepath.Join(t.TempDir(), "s"))
		}
		if !strings.Contains(tt.args, "--admin") {
			own = append(own, "--admin", "127.0.0.1:0")
		}
		if args[0] == "share" {
			own = append(own, "--dir", t.TempDir())
		}
		_, daemon := polder(t, nil, append(args, own...)...)
		out, check := polder(t, nil, append(append([]string{"config"}, args...), append(own, "--check")...)...)
		if daemon == nil || check == nil || out != "" || daemon.Error() != check.Error() || !strings.Contains(check.Error(), tt.want) {
			t.Errorf("%s: the daemon says\n%v\nand the check\n%v\n%swant %q of both", tt.args, daemon, check, out, tt.want)
		}
	}
}

// TestNoFlagOfConfigHidesOneOfADaemon: both stand in one set.
func TestNoFlagOfConfigHidesOneOfADaemon(t *testing.T) {
	root := newRoot(nil)
	for _, role := range roles {
		cmd, _, err := root.Find([]string{role})
		if err != nil {
			t.Fatal(err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "check" || f.Name == "comments" {
				t.Errorf("polder %s has --%s, too", role, f.Name)
			}
		})
	}
}
