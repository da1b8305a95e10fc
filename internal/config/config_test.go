package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

type settings struct {
	local  int64
	grace  time.Duration
	listen string
	admin  string
	far    []string
	conns  int
	chunk  int64
	file   string
}

func flags(s *settings) *pflag.FlagSet {
	*s = settings{local: 64 << 20, grace: 5 * time.Second, listen: "127.0.0.1:6379", admin: "127.0.0.1:7079", conns: 10}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.Var(NewSize(&s.local, 4<<20, 0), "local", "")
	fs.Var(NewDuration(&s.grace, 0), "grace", "")
	fs.Var(NewAddress(&s.listen, false), "listen", "")
	fs.Var(NewAddress(&s.admin, true), "admin", "")
	fs.Var(NewAddresses(&s.far), "far", "")
	fs.Var(NewInt(&s.conns, 1, 1000), "max-clients", "")
	fs.Var(NewPowerOfTwo(&s.chunk, 512, 1<<30), "chunk", "")
	fs.StringVar(&s.file, FileFlag, "", "")
	return fs
}

func load(t *testing.T, s *settings, args, environ []string, yaml string) error {
	t.Helper()
	fs := flags(s)
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "polder.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := fs.Parse(args); err != nil {
		return FlagError(err)
	}
	return Load(fs, environ, []string{"lend"})
}

func TestFlagsGoBeforeTheEnvironmentBeforeTheFile(t *testing.T) {
	var s settings
	err := load(t, &s,
		[]string{"--local", "128MiB"},
		[]string{"POLDER_LOCAL=256MiB", "POLDER_GRACE=7s", "POLDER_LEND=1GiB", "HOME=/root"},
		"local: 512MiB\ngrace: 9s\nadmin: \"off\"\nfar: [127.0.0.1:1, 127.0.0.1:2]\nmax-clients: 77\n")
	if err != nil {
		t.Fatal(err)
	}
	if s.local != 128<<20 {
		t.Errorf("local = %d, want the flag's 128MiB", s.local)
	}
	if s.grace != 7*time.Second {
		t.Errorf("grace = %v, want the environment's 7s", s.grace)
	}
	if s.admin != "" || strings.Join(s.far, " ") != "127.0.0.1:1 127.0.0.1:2" || s.conns != 77 {
		t.Errorf("admin = %q, far = %q, max-clients = %d, want the file's", s.admin, s.far, s.conns)
	}
	if s.listen != "127.0.0.1:6379" {
		t.Errorf("listen = %q, want the default", s.listen)
	}
}

func TestWrongConfigurationIsRefusedByName(t *testing.T) {
	const keys = "admin, chunk, far, grace, listen, local, max-clients"
	for _, tt := range []struct {
		name          string
		args, environ []string
		yaml          string
		want          string // FILE stands for the file's path
	}{
		{"flag, size", []string{"--local", "lots"}, nil, "",
			`cannot use --local = "lots": expected a size such as 64MiB, 1.5GiB or 4096`},
		{"flag, bound", []string{"--local", "1MiB"}, nil, "",
			`cannot use --local = "1MiB": expected at least 4MiB`},
		{"flag, power of two", []string{"--chunk", "3KiB"}, nil, "",
			`cannot use --chunk = "3KiB": expected a power of two such as 1MiB`},
		{"flag, duration", []string{"--grace", "5"}, nil, "",
			`cannot use --grace = "5": expected a duration such as 5s, 250ms or 1m30s`},
		{"flag, negative duration", []string{"--grace", "-1s"}, nil, "",
			`cannot use --grace = "-1s": expected at least 0s`},
		{"flag, address", []string{"--listen", "6379"}, nil, "",
			`cannot use --listen = "6379": expected HOST:PORT such as 127.0.0.1:7070`},
		{"flag, port", []string{"--listen", "127.0.0.1:99999"}, nil, "",
			`cannot use --listen = "127.0.0.1:99999": expected a port from 0 to 65535 after the colon`},
		{"flag, address or off", []string{"--admin", "no"}, nil, "",
			`cannot use --admin = "no": expected HOST:PORT such as 127.0.0.1:7070, or "off"`},
		{"flag, addresses", []string{"--far", "127.0.0.1:1,here"}, nil, "",
			`cannot use --far = "127.0.0.1:1,here": expected HOST:PORT such as 127.0.0.1:7070, or unix:PATH, several with commas between`},
		{"flag, twice the same", []string{"--far", "127.0.0.1:1,127.0.0.1:1"}, nil, "",
			`cannot use --far = "127.0.0.1:1,127.0.0.1:1": expected each address once`},
		{"environment", nil, []string{"POLDER_LOCAL=64 MiBs"}, "",
			`cannot use POLDER_LOCAL = "64 MiBs": expected a size such as 64MiB, 1.5GiB or 4096`},
		{"environment, unknown", nil, []string{"POLDER_LOCALE=1"}, "",
			`cannot use POLDER_LOCALE: there is no such key; expected one of ` +
				`POLDER_ADMIN, POLDER_CHUNK, POLDER_FAR, POLDER_GRACE, POLDER_LISTEN, POLDER_LOCAL, POLDER_MAX_CLIENTS`},
		{"file", nil, nil, "max-clients: many\n",
			`cannot use max-clients in FILE:1 = "many": expected a whole number from 1 to 1000`},
		{"file, unknown", nil, nil, "local: 64MiB\n# more\nlend: 1GiB\n",
			`cannot use lend in FILE:3: there is no such key; expected one of ` + keys},
		{"file, nested", nil, nil, "node:\n  lend: 1GiB\n",
			`cannot use node.lend in FILE:2: there is no such key; expected one of ` + keys},
		{"file, empty value", nil, nil, "local:\n",
			`cannot use local in FILE:1: expected a value after the colon`},
		{"file that names a file", nil, nil, "config: other.yaml\n",
			`cannot use config in FILE:1: there is no such key; expected one of ` + keys},
		{"no such file", []string{"--config", "/nonexistent/polder.yaml"}, nil, "",
			`cannot use --config = "/nonexistent/polder.yaml": there is no such file`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s settings
			err := load(t, &s, tt.args, tt.environ, tt.yaml)
			if err == nil {
				t.Fatalf("got no error, want %q", tt.want)
			}
			if got := strings.ReplaceAll(err.Error(), s.file, "FILE"); s.file != "" && tt.yaml != "" && got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			} else if tt.yaml == "" && err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "4096": 4096, "1B": 1, "1KiB": 1 << 10, "64MiB": 64 << 20, "64 MiB": 64 << 20, "1.5GiB": 3 << 29,
		"2TiB": 2 << 40, "1kB": 1000, "1MB": 1e6, "1GB": 1e9, "1TB": 1e12, "0.5KiB": 512,
	} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "B", "-1", "-1MiB", "1mib", "64M", "1e9", "NaN", "Inf", "infB", "0x10", "1_000", "0.3B", "99999999TiB", "1 2"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", s, got)
		}
	}
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"64MiB", "1.5GiB", "9223372036854775807", "8388608TiB", "NaN", ".5kB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		if n < 0 {
			t.Fatalf("ParseSize(%q) = %d", s, n)
		}
		if again, err := ParseSize(FormatSize(n)); err != nil || again != n {
			t.Fatalf("ParseSize(FormatSize(%d)) = %d, %v", n, again, err)
		}
	})
}
