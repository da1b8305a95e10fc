package polder_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestWhoeverMaySkipIsRunBySomebody compares the table of CONTRIBUTING.md with the
// calls in the tree that skip a test. There is a row for each.
func TestWhoeverMaySkipIsRunBySomebody(t *testing.T) {
	explained, found := map[string]int{}, map[string]int{}
	section, _, _ := strings.Cut(after(read(t, "CONTRIBUTING.md"), "## Tests that may skip"), "\n## ")
	for _, m := range regexp.MustCompile(`(?m)^\| (\S+\.go) \| (\w+) \| .+ \| .+ \|$`).FindAllStringSubmatch(section, -1) {
		explained[m[1]+" "+m[2]]++
	}
	fset := token.NewFileSet()
	for path := range goFiles(t) {
		f, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` }) {
			continue
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				found[path+" "+fn.Name.Name] += skips(fn.Type, fn.Body)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if got, want := found[name], explained[name]; got != want {
			t.Errorf("%s: skips in %d places, of which CONTRIBUTING.md explains %d", name, got, want)
		}
		delete(explained, name)
	}
	for name := range explained {
		t.Errorf("%s: CONTRIBUTING.md says that it may skip, but there is no such function", name)
	}
}

// after is what follows the first mark in s.
func after(s, mark string) string {
	_, rest, _ := strings.Cut(s, mark)
	return rest
}

// skips counts the calls in a function that skip a test. To skip a step that rapid has
// chosen is another matter: it chooses another one.
func skips(of *ast.FuncType, body *ast.BlockStmt) (n int) {
	if body == nil {
		return 0
	}
	chosen := map[string]bool{} // parameters of rapid's type
	for _, p := range of.Params.List {
		star, _ := p.Type.(*ast.StarExpr)
		if star == nil {
			continue
		}
		sel, _ := star.X.(*ast.SelectorExpr)
		for _, name := range p.Names {
			chosen[name.Name] = sel != nil && sel.X.(*ast.Ident).Name == "rapid"
		}
	}
	ast.Inspect(body, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncLit:
			n += skips(node.Type, node.Body)
			return false
		case *ast.CallExpr:
			sel, _ := node.Fun.(*ast.SelectorExpr)
			if sel == nil || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
				return true
			}
			if x, _ := sel.X.(*ast.Ident); x == nil || !chosen[x.Name] {
				n++
			}
		}
		return true
	})
	return n
}
