package polder_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every package and every test is a correct program for arm64, too. Types are
// checked from source, those of other modules and of the standard library
// without function bodies: "GOARCH=arm64 go vet" finds no more that depends on
// the processor, and compiles all of them first, which takes minutes.
func TestTheTreeIsCorrectForArm64(t *testing.T) {
	for _, err := range typeErrors(t, "arm64", "./...") {
		t.Error(err)
	}
}

// What exists for another processor only is found, in tests as well.
func TestWhatOnlyAmd64HasIsFound(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module one\n\ngo 1.26.0\n",
		"clock_amd64.go": "package one\n\nfunc clock() int { return 1 }\n",
		"one.go":         "package one\n",
		"one_test.go":    "package one\n\nvar _ = clock()\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	errs := typeErrors(t, "arm64", "./...")
	if len(errs) == 0 || !strings.Contains(errs[0].Error(), "undefined: clock") {
		t.Errorf("got %v, want an error that names clock", errs)
	}
	if errs := typeErrors(t, "amd64", "./..."); len(errs) > 0 {
		t.Errorf("for amd64 got %v, want no error", errs)
	}
}

// typeErrors returns the type errors of the packages that pattern matches and
// of their tests, compiled for processor without cgo.
func typeErrors(t *testing.T, processor, pattern string) (errs []error) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,DepOnly", pattern)
	cmd.Env = append(os.Environ(), "GOARCH="+processor, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	for decoder := json.NewDecoder(out); ; { // dependencies come before what needs them
		var p struct {
			ImportPath, Dir string
			GoFiles         []string
			ImportMap       map[string]string
			DepOnly         bool
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue // the generated main package of a test
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		config := types.Config{
			IgnoreFuncBodies: p.DepOnly,
			Sizes:            types.SizesFor("gc", processor),
			Error: func(err error) {
				if !p.DepOnly {
					errs = append(errs, err)
				}
			},
			Importer: importerFunc(func(path string) (*types.Package, error) {
				if mapped, ok := p.ImportMap[path]; ok {
					path = mapped
				}
				if pkg := checked[path]; pkg != nil {
					return pkg, nil
				}
				return nil, errors.New("go list says nothing of " + path)
			}),
		}
		// The errors have gone to config.Error.
		checked[p.ImportPath], _ = config.Check(p.ImportPath, fset, files, nil)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return errs
}

type importerFunc func(string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }
