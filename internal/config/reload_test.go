package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReloadSetsWhatTheFileSaysAnew: what the command line or the environment
// says goes on to count, and what is not to be reloaded is only named.
func TestReloadSetsWhatTheFileSaysAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "polder.yaml")
	write := func(yaml string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("local: 512MiB\ngrace: 9s\nlisten: 127.0.0.1:1\nmax-clients: 77\n")
	var s settings
	fs := flags(&s)
	if err := fs.Parse([]string{"--config", path, "--local", "128MiB"}); err != nil {
		t.Fatal(err)
	}
	if err := Load(fs, []string{"POLDER_GRACE=7s"}, nil); err != nil {
		t.Fatal(err)
	}
	names := []string{"local", "grace", "max-clients", "admin"}
	check := func(what string, wantLater []string, wantConns int, wantAdmin string) {
		t.Helper()
		later, err := Reload(fs, names...)
		if err != nil || !slices.Equal(later, wantLater) {
			t.Errorf("%s: got %q, %v, want %q for after a restart", what, later, err, wantLater)
		}
		if s.conns != wantConns || s.admin != wantAdmin {
			t.Errorf("%s: got max-clients %d and admin %q, want %d and %q", what, s.conns, s.admin, wantConns, wantAdmin)
		}
		if s.local != 128<<20 || s.grace != 7*time.Second || s.listen != "127.0.0.1:1" {
			t.Errorf("%s: got local %d, grace %v, listen %s: they were not to change", what, s.local, s.grace, s.listen)
		}
	}
	const admin = "127.0.0.1:7079" // the default
	check("unchanged", nil, 77, admin)
	write("local: 1GiB\ngrace: 1s\nlisten: 127.0.0.1:2\nmax-clients: 78\nadmin: \"off\"\n")
	check("changed", []string{"listen"}, 78, "")
	check("once more", []string{"listen"}, 78, "")
	write("listen: 127.0.0.1:1\n")
	check("no longer mentioned", nil, 10, admin)

	for yaml, want := range map[string]string{
		"admin: \"off\"\nmax-clients: many\n": `cannot use max-clients in ` + path + `:2 = "many"`,
		"admin: \"off\"\nunheard-of: 1\n":     "there is no such key",
		"admin\n":                             "expected a YAML file",
		"admin:\n":                            "expected a value after the colon",
	} {
		write(yaml)
		if _, err := Reload(fs, names...); err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, new(*Error)) {
			t.Errorf("%q: got %v, want %q", yaml, err, want)
		}
		if s.admin != admin || s.conns != 10 {
			t.Errorf("%q: got max-clients %d and admin %q, want them as they were", yaml, s.conns, s.admin)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Reload(fs, names...); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without a file: got %v", err)
	}
}

func TestWithoutAFileThereIsNothingToReload(t *testing.T) {
	var s settings
	fs := flags(&s)
	if err := Load(fs, nil, nil); err != nil {
		t.Fatal(err)
	}
	if later, err := Reload(fs, "local"); later != nil || err != nil {
		t.Errorf("got %q, %v", later, err)
	}
}

func TestASecretIsTheFirstLineOfAFileOfItsOwners(t *testing.T) {
	dir := t.TempDir()
	write := func(content string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, "secret")
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, content := range []string{"open sesame", "open sesame\n", "open sesame\r\n"} {
		if got, err := ReadSecret("password-file", write(content, 0o400)); err != nil || got != "open sesame" {
			t.Errorf("%q: got %q, %v", content, got, err)
		}
	}
	if got, err := ReadSecret("password-file", ""); got != "" || err != nil {
		t.Errorf("no file: got %q, %v", got, err)
	}
	for _, tt := range []struct{ path, want string }{
		{write("open sesame", 0o640), "expected a file of mode 0600, which only its owner can read; it has -rw-r-----"},
		{filepath.Join(dir, "none"), "cannot open the file"},
		{"/proc", "expected a file of mode 0600"},
	} {
		if _, err := ReadSecret("password-file", tt.path); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "--password-file") {
			t.Errorf("%s: got %v, want %q", tt.path, err, tt.want)
		}
	}
	for _, content := range []string{"", "\n", "two\nlines\n", strings.Repeat("two", 500)} {
		if _, err := ReadSecret("password-file", write(content, 0o600)); err == nil || strings.Contains(err.Error(), "two") {
			t.Errorf("%q: got %v, want an error that does not show the secret", content, err)
		}
	}
}
