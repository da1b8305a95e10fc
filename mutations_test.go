package polder_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMutationsTurnTestsRed breaks the tree in every way of docs/mutations.md,
// one after the other, and runs the test that is named beside it. TEST_MUTATE
// is a regular expression of the files to break.
func TestMutationsTurnTestsRed(t *testing.T) {
	only := os.Getenv("TEST_MUTATE")
	if only == "" {
		t.Skip("TEST_MUTATE is not set: make mutate runs this, which builds a test program for every mutation")
	}
	files := regexp.MustCompile(only)
	row := regexp.MustCompile("(?m)^\\| (\\S+) \\| `(.+?)` \\| `(.*?)` \\| (?:(\\S+) )?(Test\\w+) \\|$")
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/mutations.md"), -1) {
		file, pkg, test := m[1], m[4], m[5]
		was, is := strings.ReplaceAll(m[2], `\|`, "|"), strings.ReplaceAll(m[3], `\|`, "|")
		if pkg == "" {
			pkg = filepath.Dir(file)
		}
		if !files.MatchString(file) {
			continue
		}
		t.Run(strings.ReplaceAll(file, "/", "_")+"_"+test, func(t *testing.T) {
			text := read(t, file)
			if n := strings.Count(text, was); n != 1 {
				t.Fatalf("%s has %q %d times, want once: mend docs/mutations.md", file, was, n)
			}
			out, err := goTestWith(t, file, strings.Replace(text, was, is, 1), "./"+pkg, test)
			switch {
			case err == nil:
				t.Errorf("%s: with %q for %q %s stays green:\n%s", file, is, was, test, out)
			case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
				t.Errorf("%s: %q for %q does not compile:\n%s", file, is, was, out)
			}
		})
	}
}

// goTestWith runs a test of the tree in which a file has another text.
func goTestWith(t *testing.T, file, text, pkg, test string) (string, error) {
	dir := t.TempDir()
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	mutant, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{mutant: []byte(text), overlay: replace} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Tests with rapid keep what has made them fail, which is of use for no other
	// text of the file.
	kept := filepath.Join(pkg, "testdata", "rapid", "*", "*.fail")
	before, err := filepath.Glob(kept)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		after, _ := filepath.Glob(kept) // the pattern was right before
		for _, path := range after {
			if !slices.Contains(before, path) {
				if err := os.Remove(path); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	cmd := exec.Command("go", "test", "-count=1", "-vet", "off", "-timeout", "2m", "-run", "^"+test+"$", pkg)
	// By the environment it reaches the programs, too, that tests build.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
