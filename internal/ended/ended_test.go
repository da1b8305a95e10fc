package ended

import (
	"fmt"
	"testing"
)

func TestSumsAreOfANameAndOfABoundedNumberOfNames(t *testing.T) {
	var s Sums[int]
	add := func(sum, n *int) { *sum += *n }
	for i := range Most + 50 {
		one := 1
		s.Add(fmt.Sprintf("thing %04d", i), &one, add)
	}
	ten := 10
	s.Add("thing 0007", &ten, add)
	all, names, last := 0, 0, ""
	for name, n := range s.All() {
		if name <= last {
			t.Errorf("%q comes after %q, want them in order", name, last)
		}
		all, names, last = all+n, names+1, name
		want := map[string]int{"thing 0007": 11, Others: 50}[name]
		if want == 0 {
			want = 1
		}
		if n != want {
			t.Errorf("the sum of %q is %d, want %d", name, n, want)
		}
	}
	if all != Most+60 || names != Most+1 {
		t.Errorf("got a sum of %d under %d names, want %d under %d", all, names, Most+60, Most+1)
	}
}
