package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWordsAreFound(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.go": "package a // far far away", "b.go": "package b", "c.txt": "far"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := run(t.Context(), "", dir, []string{"far", "package", "none"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"far is in 1 files\n\t" + filepath.Join(dir, "a.go"), "package is in 2 files", "none is in 0 files", "words in 2 files"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %q", want, out.String())
		}
	}
	if err := run(t.Context(), "", t.TempDir(), nil, &out); err == nil {
		t.Error("a directory without Go files is indexed")
	}
}
