package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// In a star everybody follows node 0; the made-up graph does not fit.
func TestPageRank(t *testing.T) {
	file := filepath.Join(t.TempDir(), "star.edges")
	if err := os.WriteFile(file, []byte("1 0\n2 0\n3 0\n0 1\n0 2\n0 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, want string }{
		{file, "4 nodes, 6 edges; node 0 has the highest rank"},
		{"", "50000 nodes, 2000000 edges; node"},
	} {
		var out strings.Builder
		if err := run(t.Context(), "", c.file, &out); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), c.want) {
			t.Errorf("got %q, want %q", out.String(), c.want)
		}
	}
	if err := run(t.Context(), "", filepath.Join(t.TempDir(), "none"), &strings.Builder{}); err == nil {
		t.Error("a file that is not there is ranked")
	}
	for _, wrong := range []string{"1 2\n3\n", "one two\n", "1 4000000000\n"} {
		if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), "", file, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: got %v, want an error that names the file", wrong, err)
		}
	}
}
