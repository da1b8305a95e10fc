package polder_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// How large a package may be, of what is not a test: who is to understand one reads it in an afternoon. Lines are as wc -l counts them.
const (
	mostLines = 6000
	mostFiles = 30
)

func TestNoPackageIsTooLarge(t *testing.T) {
	lines, files := map[string]int{}, map[string]int{}
	for file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(file)
		lines[dir] += bytes.Count(b, []byte("\n"))
		files[dir]++
	}
	for _, dir := range slices.Sorted(maps.Keys(lines)) {
		if lines[dir] > mostLines || files[dir] > mostFiles {
			t.Errorf("%s has %d lines in %d files, want at most %d in %d: find the part of it that is a package of its own", dir, lines[dir], files[dir], mostLines, mostFiles)
		}
	}
}
