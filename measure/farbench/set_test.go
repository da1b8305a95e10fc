package farbench

import (
	"testing"
	"time"

	"polder/far"
)

func TestSetsSayWhatTheyMove(t *testing.T) {
	o, out := tiny()
	for _, fabric := range fabrics {
		if err := runSet(t.Context(), o, setScale{local: far.MinLocal, times: 2, full: []int64{40}, span: 50 * time.Millisecond, warm: 0.1}, fabric); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []string{"tcp, 40% of far memory live", "shm, 40% of far memory live"} {
		if v := out.of("set")[c]; v <= 0 {
			t.Errorf("%s: %v sets a second", c, v)
		}
		if v := out.of("moved")[c]; v < 0 {
			t.Errorf("%s: %v bytes moved", c, v)
		}
		if v := out.of("far memory used")[c]; v < 1 || v > 3 {
			t.Errorf("%s: far memory used is %v of what lives, want 1 to 3", c, v)
		}
		if index, data := out.of("local: index")[c], out.of("local: data")[c]; index <= 0 || data <= 0 || index+data > 100 {
			t.Errorf("%s: %v %% index, %v %% data", c, index, data)
		}
	}
}

func TestWordsAreIndexed(t *testing.T) {
	o, out := tiny()
	o.Corpus = ".."
	if err := runWords(t.Context(), o, 1<<20); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, row := range *out {
		if row.Metric == "postings" {
			if n++; row.Value <= 0 || row.Ratio <= 0 {
				t.Errorf("got the row %+v, want postings a second, beside Go's map", row)
			}
		}
	}
	if n != len(fabrics) {
		t.Errorf("got %d rows of postings, want one for each of %v", n, fabrics)
	}
}
