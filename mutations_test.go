package polder_test

import (
	"cmp"
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
	for _, m := range mutations(t) {
		if !files.MatchString(m.file) {
			continue
		}
		t.Run(strings.ReplaceAll(m.file, "/", "_")+"_"+m.test, func(t *testing.T) {
			out, err := goTestWith(t, m.file, strings.Replace(read(t, m.file), m.was, m.is, 1), "./"+m.pkg, m.test)
			switch {
			case err == nil:
				t.Errorf("%s: with %q for %q %s stays green:\n%s", m.file, m.is, m.was, m.test, out)
			case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
				t.Errorf("%s: %q for %q does not compile:\n%s", m.file, m.is, m.was, out)
			}
		})
	}
}

// TestMutationsAreOfTextThatIsThere keeps the table from being about a tree that is no more: go test takes a test that does not exist for one
// that is green.
func TestMutationsAreOfTextThatIsThere(t *testing.T) {
	all := mutations(t)
	if len(all) == 0 {
		t.Fatal("docs/mutations.md has no rows")
	}
	for _, m := range all {
		text, err := os.ReadFile(m.file)
		if err != nil {
			t.Errorf("a row of docs/mutations.md: %v", err)
		} else if n := strings.Count(string(text), m.was); n != 1 {
			t.Errorf("%s has %q %d times, want once: mend docs/mutations.md", m.file, m.was, n)
		}
		if !strings.Contains(testsOf(t, m.pkg), "\nfunc "+m.test+"(t ") {
			t.Errorf("a row of docs/mutations.md about %s: ./%s has no %s", m.file, m.pkg, m.test)
		}
	}
}

// testsOf returns the text of the tests of a package.
func testsOf(t *testing.T, pkg string) string {
	files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		all.WriteString(read(t, f))
	}
	return all.String()
}

// mutation is a row of docs/mutations.md: with other text in a file, a test of pkg turns red.
type mutation struct{ file, was, is, pkg, test string }

func mutations(t *testing.T) (all []mutation) {
	row := regexp.MustCompile("^\\| (\\S+) \\| `(.+?)` \\| `(.*?)` \\| (?:(\\S+) )?(Test\\w+) \\|$")
	for line := range strings.Lines(read(t, "docs/mutations.md")) {
		m := row.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			if strings.Contains(line, ".go | `") {
				t.Errorf("docs/mutations.md has a row that is not understood: %s", line)
			}
			continue
		}
		unescaped := strings.NewReplacer(`\|`, "|")
		all = append(all, mutation{m[1], unescaped.Replace(m[2]), unescaped.Replace(m[3]), cmp.Or(m[4], filepath.Dir(m[1])), m[5]})
	}
	return all
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
