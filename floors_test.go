// Package polder_test checks rules that concern the whole tree.
package polder_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// floor is a part of the house: the package trees that stand on it, and how
// high they stand. A package may import packages of its own floor and of
// those below.
type floor struct {
	height int
	tree   string // import path below the module's, and all that is under it
}

// floors is the table of ARCHITECTURE.md. The longest tree that matches a
// package decides. soft, share
// and holder stand on internal and codec alone, beside the others; partition stands on holder.
var floors = []floor{
	{0, "internal"},
	{0, "codec"},
	{1, "verbs"},
	{1, "soft"},
	{1, "share"},
	{1, "holder"},
	{1, "partition"},
	{2, "memnode"},
	{3, "pool"},
	{4, "far"},
	{4, "race"},
	{5, "resp"},
	{5, "memcached"},
	{5, "files"},
	{5, "pages"},
	{6, "measure"},
	{7, "cmd"},
	{7, "robustness"},
	{7, "examples"},
}

// apart lists trees that must not see each other although the heights would
// let them, from the importer's side.
var apart = map[string][]string{
	"soft":   {"verbs", "memnode", "pool", "far", "share"},
	"share":  {"verbs", "memnode", "pool", "far", "soft"},
	"holder": {"verbs", "soft", "share", "partition"},
	"verbs":  {"soft", "share", "partition"},

	"partition": {"verbs", "soft", "share"},
}

// farImports is all of the module that package far and those under it may import: the heap
// knows a Store, and nothing of what is behind it, and a Store knows nothing of the heap.
var farImports = map[string][]string{
	"far":         {"internal", "codec", "far/heap", "far/object", "far/farlog", "far/store", "far/bytemap", "far/objects", "far/ahead", "far/look", "far/record", "far/saved"},
	"far/heap":    {"internal", "far/object", "far/farlog", "far/store", "far/record"},
	"far/object":  {"far/record"},
	"far/pagelog": {"internal", "far/heap", "far/store", "far/record"},
	"far/farlog":  {"internal", "far/store", "far/record"},
	"far/store":   {"internal"},
	"far/index":   {"internal"},
	"far/objects": {"internal", "far/heap", "far/record", "far/object", "far/pagelog"},
	"far/ahead":   {"far/heap", "far/object", "far/objects"},
	"far/look":    {"internal", "far/ahead", "far/farlog", "far/heap", "far/object", "far/objects", "far/store"},
	"far/bytemap": {"internal", "far/heap", "far/pagelog", "far/farlog", "far/store", "far/entry", "far/index", "far/record"},
	"far/entry":   {"far/heap", "far/index", "far/record", "far/object"},
	"far/record":  {},
	"far/saved":   {"far/farlog", "far/store", "far/record"},

	"far/ordered": {"internal", "codec", "far"},
	"far/disk":    {"far/store", "far/record"},
	"far/copies":  {"internal", "far/store"},
	"far/named":   {"internal/brief", "internal/turns", "holder", "far/copies", "far/store", "far/record"},
}

// respImports is all of the module that the packages below resp, of which it is made, may import: none of them knows the server.
var respImports = map[string][]string{
	"resp/commands": {"far", "resp/glob", "resp/hashes", "resp/keyspace", "resp/proto", "resp/reply"},
	"resp/feed":     {"resp/clientmem", "resp/glob", "resp/proto"},
	"resp/glob":     {},
	"resp/latency":  {"resp/proto", "resp/reply", "resp/table"},
	"resp/hashes":   {"far/record"},
	"resp/keyspace": {"far", "far/record", "far/saved", "internal/invariants", "internal/wal", "resp/hashes", "resp/proto", "resp/reply", "soft"},
	"resp/topology": {"partition", "resp/reply"},
	"resp/table":    {"resp/proto", "resp/reply"},
	"resp/reply":    {"far", "resp/clientmem", "resp/glob", "resp/proto"},
}

const module = "polder"

func TestNoFloorImportsOneAbove(t *testing.T) {
	for _, p := range listPackages(t) {
		from, ok := floorOf(p.ImportPath)
		if !ok {
			t.Errorf("%s stands on no floor: add it to the table", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module+"/") {
				continue
			}
			to, ok := floorOf(imp)
			switch {
			case !ok:
				t.Errorf("%s imports %s, which stands on no floor", p.ImportPath, imp)
			case to.height > from.height:
				t.Errorf("%s (floor %s) imports %s (floor %s above it)", p.ImportPath, from.tree, imp, to.tree)
			case slices.Contains(apart[from.tree], to.tree):
				t.Errorf("%s imports %s: %s and %s stand apart", p.ImportPath, imp, from.tree, to.tree)
			}
		}
	}
}

// TestFloorsExistAndAreListed keeps the table above and the one of
// ARCHITECTURE.md in step with each other and with the tree.
func TestFloorsExistAndAreListed(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "ARCHITECTURE.md"), "\n## Floors\n")
	_, section, _ = strings.Cut(section, "\n```\n")
	table, _, _ := strings.Cut(section, "\n```\n")
	var listed []string // the first word of each line
	for line := range strings.Lines(table) {
		listed = append(listed, strings.TrimSuffix(strings.Fields(line)[0], "/"))
	}
	for _, tree := range listed {
		if !isDir(tree) {
			t.Errorf("ARCHITECTURE.md lists %s, which is not in the tree", tree)
		}
	}
	for _, f := range floors {
		if !isDir(f.tree) {
			t.Errorf("floor %s is not in the tree", f.tree)
		}
		if !slices.Contains(listed, f.tree) {
			t.Errorf("ARCHITECTURE.md does not list floor %s", f.tree)
		}
	}
	for _, tree := range slices.Concat(slices.Collect(maps.Keys(apart)), slices.Concat(slices.Collect(maps.Values(apart))...), farImports["far"]) {
		if !isDir(tree) {
			t.Errorf("a rule about imports names %s, which is not in the tree", tree)
		}
	}
}

func TestFarKnowsNothingOfTheFabric(t *testing.T) {
	for _, p := range listPackages(t) {
		name, _ := strings.CutPrefix(p.ImportPath, module+"/")
		allowed, ok := farImports[name]
		if !ok {
			continue
		}
		for _, imp := range p.Imports {
			rest, ours := strings.CutPrefix(imp, module+"/")
			if ours && !slices.ContainsFunc(allowed, func(tree string) bool { return within(rest, tree) }) {
				t.Errorf("%s imports %s: it may know its Store only", name, imp)
			}
			if strings.HasPrefix(imp, "github.com/prometheus/") {
				t.Errorf("%s imports %s, which far/prom is for", name, imp)
			}
		}
	}
}

func TestPartsOfRespDoNotKnowTheServer(t *testing.T) {
	seen := 0
	for _, p := range listPackages(t) {
		name, _ := strings.CutPrefix(p.ImportPath, module+"/")
		allowed, ok := respImports[name]
		if !ok {
			continue
		}
		seen++
		for _, imp := range p.Imports {
			if rest, ours := strings.CutPrefix(imp, module+"/"); ours && !slices.Contains(allowed, rest) {
				t.Errorf("%s imports %s: it may import %v", name, imp, allowed)
			}
		}
	}
	if seen != len(respImports) {
		t.Errorf("%d of the packages of resp are in the tree, want %d", seen, len(respImports))
	}
}

func TestUnsafeAndCgoStayWhereTheyBelong(t *testing.T) {
	for file, imports := range goFiles(t) {
		name := strings.TrimSuffix(strings.TrimSuffix(file, ".go"), "_test")
		if slices.Contains(imports.paths, "unsafe") && !strings.HasSuffix(name, "_unsafe") {
			t.Errorf("%s imports unsafe: that belongs in a file named *_unsafe.go", file)
		}
		if slices.Contains(imports.paths, "C") && !imports.ibverbs {
			t.Errorf("%s uses cgo outside the build tag ibverbs", file)
		}
	}
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

func floorOf(path string) (floor, bool) {
	if path == module {
		return floor{height: 1 << 10, tree: "."}, true // this directory holds tests only
	}
	rest := strings.TrimPrefix(path, module+"/")
	var best floor
	for _, f := range floors {
		if within(rest, f.tree) && len(f.tree) > len(best.tree) {
			best = f
		}
	}
	return best, best.tree != ""
}

func within(path, tree string) bool {
	return path == tree || strings.HasPrefix(path, tree+"/")
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("cannot list packages: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("cannot list packages: %v", err)
	}
	var list []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatalf("cannot read the list of packages: %v", err)
		}
		list = append(list, p)
	}
}

type fileImports struct {
	paths   []string
	ibverbs bool // built with the tag ibverbs only
}

// goFiles parses every Go file of the module, whatever its build constraints.
func goFiles(t *testing.T) map[string]fileImports {
	t.Helper()
	files := map[string]fileImports{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != "." && (strings.HasPrefix(name, ".") || name == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		var imports fileImports
		for _, spec := range f.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			imports.paths = append(imports.paths, p)
		}
		for _, group := range f.Comments {
			if group.Pos() > f.Package {
				break
			}
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "//go:build ") && strings.Contains(c.Text, "ibverbs") && !strings.Contains(c.Text, "!ibverbs") {
					imports.ibverbs = true
				}
			}
		}
		files[path] = imports
		return nil
	})
	if err != nil {
		t.Fatalf("cannot read the tree: %v", err)
	}
	if len(files) == 0 {
		t.Fatal("found no Go files")
	}
	return files
}
