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

// packageSize is how much a package has of what is not a test: files, and lines as wc -l counts them.
type packageSize struct{ lines, files int }

// mostOfAPackage is how large a package may be: who is to understand one reads it in an afternoon.
var mostOfAPackage = packageSize{lines: 6000, files: 30}

// ceilings are of packages that were larger when the rule was made: what they have, where that is more than the rule
// allows. They only shrink; add none.
var ceilings = map[string]packageSize{
	"far/heap": {lines: 6200},
}

func TestNoPackageIsTooLarge(t *testing.T) {
	sizes := map[string]packageSize{}
	for file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(file)
		s := sizes[dir]
		sizes[dir] = packageSize{s.lines + bytes.Count(b, []byte("\n")), s.files + 1}
	}
	for _, dir := range slices.Sorted(maps.Keys(ceilings)) {
		if _, ok := sizes[dir]; !ok {
			t.Errorf("there is a ceiling for %s, which is not in the tree: take it off the list", dir)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(sizes)) {
		size, ceiling := sizes[dir], ceilings[dir]
		for _, n := range []struct {
			what                string
			have, most, ceiling int
		}{
			{"lines", size.lines, mostOfAPackage.lines, ceiling.lines},
			{"files", size.files, mostOfAPackage.files, ceiling.files},
		} {
			switch {
			case n.ceiling == 0 && n.have > n.most:
				t.Errorf("%s has %d %s, want at most %d: find the part of it that is a package of its own", dir, n.have, n.what, n.most)
			case n.ceiling == 0:
			case n.have <= n.most:
				t.Errorf("%s has %d %s, which the rule allows: take its ceiling of %d off the list", dir, n.have, n.what, n.ceiling)
			case n.have > n.ceiling:
				t.Errorf("%s has %d %s, and had %d: it is too large already, and may only shrink", dir, n.have, n.what, n.ceiling)
			case n.have < n.ceiling:
				t.Errorf("%s has %d %s: lower its ceiling, which is %d, so that it does not grow again", dir, n.have, n.what, n.ceiling)
			}
		}
	}
}
