package polder_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A function's doc comment begins with the function's name; that of a type or
// of a value may be prose, but if its first word is a name then it is its own.
// go vet and staticcheck look at exported names at most.
var (
	docWord     = regexp.MustCompile(`^(?:(?:A|An|The) )?([\w\p{L}]+)`)
	looksNamed  = regexp.MustCompile(`^[a-z]\w*$|^[A-Z][a-z]+[A-Z]\w*$`)
	ofTestsOnly = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)`)
)

func TestDocCommentsNameWhatTheyDescribe(t *testing.T) {
	fset := token.NewFileSet()
	for path := range goFiles(t) {
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		check := func(names []*ast.Ident, doc *ast.CommentGroup, prose bool) {
			m := docWord.FindStringSubmatch(doc.Text())
			if m == nil || m[1] == "Preconditions" || prose && !looksNamed.MatchString(strings.Fields(m[0])[0]) {
				return
			}
			if !slices.ContainsFunc(names, func(n *ast.Ident) bool { return n.Name == m[1] }) {
				t.Errorf("%s: the comment above %s begins with %q", fset.Position(names[0].Pos()), names[0], m[0])
			}
		}
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if !strings.HasSuffix(path, "_test.go") || !ofTestsOnly.MatchString(d.Name.Name) {
					check([]*ast.Ident{d.Name}, d.Doc, false)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						check([]*ast.Ident{s.Name}, docOf(d, s.Doc), true)
					case *ast.ValueSpec:
						check(s.Names, docOf(d, s.Doc), true)
					}
				}
			}
		}
	}
}

// docOf is the comment of one of a declaration's specifications, which for a
// declaration without parentheses is the whole one's.
func docOf(d *ast.GenDecl, doc *ast.CommentGroup) *ast.CommentGroup {
	if !d.Lparen.IsValid() {
		return d.Doc
	}
	return doc
}

func TestContributingNamesTargetsThatExist(t *testing.T) {
	for _, m := range regexp.MustCompile("`make ([a-z-]+)").FindAllStringSubmatch(read(t, "CONTRIBUTING.md"), -1) {
		if !strings.Contains(read(t, "Makefile"), "\n"+m[1]+": ") {
			t.Errorf("CONTRIBUTING.md names make %s, which Makefile does not have", m[1])
		}
	}
}
