package sizeclass

import "testing"

func TestSizeClassesHoldAndWasteLittle(t *testing.T) {
	last := -1
	for n := 0; n <= 300<<10; n++ {
		c := Of(n)
		size := Size(c)
		switch {
		case size < n:
			t.Fatalf("class %d of %d bytes holds %d", c, n, size)
		case n <= 256 && size-n >= unit, n > 256 && size-n > n/8+unit:
			t.Fatalf("class %d of %d bytes is %d large", c, n, size)
		case int(c) < last:
			t.Fatalf("classes go back from %d to %d at %d bytes", last, c, n)
		case Of(size) != c || Round(n) != size:
			t.Fatalf("class %d holds %d bytes, which are of class %d and rounded to %d", c, size, Of(size), Round(n))
		}
		last = int(c)
	}
}
