package far

import (
	"errors"
	"testing"

	"polder/far/heap"
)

func TestLookingThroughWhatWasFreedFails(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	v, err := NewVector[int64](h, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	v.Free()
	if _, err := Aggregate(t.Context(), v, Itself[int64]()); !errors.Is(err, ErrFreed) {
		t.Errorf("Aggregate: got %v, want ErrFreed", err)
	}
	if _, err := Count(t.Context(), v); !errors.Is(err, ErrFreed) {
		t.Errorf("Count: got %v, want ErrFreed", err)
	}
	n := 0
	for _, err := range Filter(t.Context(), v) {
		if n++; !errors.Is(err, ErrFreed) {
			t.Errorf("Filter: got %v, want ErrFreed", err)
		}
	}
	if n != 1 {
		t.Errorf("Filter: %d steps, want one with the error", n)
	}
}

// The zero Field is a number at the beginning of the element, which need not have room for it.
func TestAZeroFieldThatIsLargerThanTheElementIsRefused(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	v, err := NewVector[int8](h, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Append(t.Context(), make([]int8, 3000)...); err != nil {
		t.Fatal(err)
	}
	if sum, err := Aggregate(t.Context(), v, Field[int8, int64]{}); err == nil {
		t.Errorf("got %+v, want an error", sum)
	}
}
