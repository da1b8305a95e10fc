// Package docpage keeps generated pages of the documents in step with what they are generated from: a test makes the
// page, and fails if the page in the tree differs. "make docs" writes the pages anew.
package docpage

import (
	"os"
	"testing"
)

// Check compares a page of the tree with what it should be, or writes it if the
// environment has POLDER_WRITE_DOCS.
func Check(tb testing.TB, path, want string) {
	tb.Helper()
	if os.Getenv("POLDER_WRITE_DOCS") != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	if string(got) != want {
		tb.Errorf("%s is out of date: make docs writes it anew. It should be:\n%s", path, want)
	}
}
