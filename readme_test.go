package polder_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheTwoCommands: a newcomer types one command to have a server and one
// to check everything. The README gives them verbatim, each in a block of its
// own; continuous integration runs the second, and package robustness runs the
// first one, and all other commands of all documents.
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
	for _, doc := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(read(t, doc), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}

// TestPathsInDocumentsExist looks for every path in code spans that names a
// file or directory of the tree.
func TestPathsInDocumentsExist(t *testing.T) {
	path := regexp.MustCompile("`((?:cmd|resp|far|pool|memnode|verbs|internal|robustness|examples|docs|\\.ci)/[a-zA-Z0-9_./-]*)`")
	for _, doc := range documents(t) {
		for _, m := range path.FindAllStringSubmatch(read(t, doc), -1) {
			if _, err := os.Stat(strings.TrimSuffix(m[1], "/")); err != nil {
				t.Errorf("%s names %s: %v", doc, m[1], err)
			}
		}
	}
}

// documents are all that a reader is sent to.
func documents(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, more...)
	}
	if len(list) < 15 {
		t.Errorf("found %d documents, want at least 15", len(list))
	}
	return list
}

// TestNoDocumentIsLeftOut: each can be reached from the README.
func TestNoDocumentIsLeftOut(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	reached, todo := map[string]bool{}, []string{"README.md"}
	for len(todo) > 0 {
		doc := todo[0]
		todo = todo[1:]
		if reached[doc] || !strings.HasSuffix(doc, ".md") {
			continue
		}
		reached[doc] = true
		for _, m := range link.FindAllStringSubmatch(read(t, doc), -1) {
			if !strings.Contains(m[1], "://") {
				todo = append(todo, filepath.Join(filepath.Dir(doc), m[1]))
			}
		}
	}
	for _, doc := range documents(t) {
		if !reached[doc] {
			t.Errorf("no link leads from README.md to %s", doc)
		}
	}
}

// TestTheErrorsPageNamesWhatThereIs: every message, reply and error on
// docs/reference/errors.md is in the code, and the page has all sentinels of far and pool
// and all replies of their own kind.
func TestTheErrorsPageNamesWhatThereIs(t *testing.T) {
	page := read(t, "docs/reference/errors.md")
	var code strings.Builder
	for file := range goFiles(t) {
		if !strings.HasSuffix(file, "_test.go") {
			code.WriteString(read(t, file))
		}
	}
	all := code.String()
	first := regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|")
	span := regexp.MustCompile("`([^`]+)`")
	sentinel := regexp.MustCompile(`^\*?(?:far|pool)\.(\w+)$`)
	named := map[string]bool{}
	for _, row := range first.FindAllStringSubmatch(page, -1) {
		for _, m := range span.FindAllStringSubmatch(row[1], -1) {
			text := strings.TrimPrefix(m[1], "-")
			named[strings.TrimPrefix(text, "*")] = true
			if s := sentinel.FindStringSubmatch(text); s != nil {
				text = s[1]
			}
			if !strings.Contains(all, text) {
				t.Errorf("the page names %q, which the code does not say", m[1])
			}
		}
	}
	for _, pkg := range []string{"far", "pool"} {
		for _, m := range regexp.MustCompile(`(?m)^\t(Err\w+) +=`).FindAllStringSubmatch(read(t, pkg+"/errors.go"), -1) {
			if !named[pkg+"."+m[1]] {
				t.Errorf("the page lacks %s.%s", pkg, m[1])
			}
		}
	}
	replied := regexp.MustCompile(`Error(?: = |\()"([A-Z]{3,}) [^"]`)
	codes := regexp.MustCompile(`"([A-Z]{3,}) [^"]`).FindAllStringSubmatch(read(t, "resp/reply/errors.go"), -1)
	for _, file := range []string{"resp/session.go", "resp/partitions.go"} {
		codes = append(codes, replied.FindAllStringSubmatch(read(t, file), -1)...)
	}
	for _, m := range codes {
		if code := m[1]; code != "ERR" && !named["-"+code] && !named[code] && code != "WRONGTYPE" {
			t.Errorf("the page lacks the reply %s", code)
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
