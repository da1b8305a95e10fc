//go:build !race

package far

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The fast paths are inlined, in code that is generic over T, too.
func TestFastPathsAreInlined(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "build", "-gcflags=-m", ".", "./heap", "./ahead").CombinedOutput()
	if err != nil {
		t.Fatalf("cannot compile: %v\n%s", err, out)
	}
	for _, fn := range []string{`\(\*Scope\)\.Enter`, `\(\*Scope\)\.Leave`,
		`Ptr\[go\.shape\..*\]\.Deref`, `Ptr\[go\.shape\..*\]\.DerefMut`} {
		if !regexp.MustCompile(`(?m)can inline ` + fn + `$`).Match(out) {
			t.Errorf("%s is not inlined", strings.ReplaceAll(fn, `\`, ""))
		}
	}
	for _, fn := range []string{"Enter", "Leave"} { // from another package, as in programs
		if !strings.Contains(string(out), "inlining call to heap.(*Scope)."+fn) {
			t.Errorf("Scope.%s is not inlined in other packages", fn)
		}
	}
}

// The fast path of an element is inlined into its user.
func TestElementsAreInlined(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := `package sum

import "polder/far"

func Element(a *far.Array[int64], s *far.Scope, i int) int64 { return *a.At(i).Deref(s) }
`
	file := filepath.Join(dir, "sum.go")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-gcflags=-m", file).CombinedOutput()
	if err != nil {
		t.Fatalf("cannot compile: %v\n%s", err, out)
	}
	for _, fn := range []string{`far\.\(\*Array\[.*\]\)\.At`, `far\.Elem\[.*\]\.Deref`} {
		if !regexp.MustCompile(`(?m)sum\.go:.* inlining call to ` + fn + `$`).Match(out) {
			t.Errorf("%s is not inlined:\n%s", strings.ReplaceAll(fn, `\`, ""), out)
		}
	}
}
