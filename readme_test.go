package polder_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTheTwoCommands: a newcomer types one command to have a server and one
// to check everything. The README gives them verbatim, each in a block of its
// own; continuous integration runs the second, and package robustness has the
// server that the first one starts execute the README's session.
func TestTheTwoCommands(t *testing.T) {
	readme := read(t, "README.md")
	for _, command := range []string{"go run ./cmd/polder up", "make test"} {
		if !strings.Contains(readme, "\n```\n"+command+"\n```\n") {
			t.Errorf("README.md has no block with the command %q", command)
		}
	}
	if ci := read(t, ".ci/run"); !strings.HasSuffix(ci, "\nexec make test\n") {
		t.Errorf(".ci/run does not run make test:\n%s", ci)
	}
	if _, err := os.Stat("cmd/polder/main.go"); err != nil {
		t.Error(err)
	}
	if !strings.Contains(read(t, "Makefile"), "\ntest: ") {
		t.Error("Makefile has no target test")
	}
}

// TestLinksBetweenDocumentsLead follows the relative links of the documents.
func TestLinksBetweenDocumentsLead(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	code := regexp.MustCompile("(?s)```.*?```")
	for _, doc := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(read(t, doc), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}

// TestPathsInDocumentsExist looks for every path in code spans that names a
// file or directory of the tree.
func TestPathsInDocumentsExist(t *testing.T) {
	path := regexp.MustCompile("`((?:cmd|resp|far|pool|memnode|verbs|internal|robustness|examples|docs|\\.ci)/[a-zA-Z0-9_./-]*)`")
	for _, doc := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} {
		for _, m := range path.FindAllStringSubmatch(read(t, doc), -1) {
			if _, err := os.Stat(strings.TrimSuffix(m[1], "/")); err != nil {
				t.Errorf("%s names %s: %v", doc, m[1], err)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
