package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

func draw(t *testing.T, c Chart) string {
	t.Helper()
	var b strings.Builder
	if err := c.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("it is not XML: %v\n%s", err, b.String())
		}
	}
	for _, wrong := range []string{"NaN", "Inf", ">-0<"} {
		if strings.Contains(b.String(), wrong) {
			t.Errorf("there is %s in it:\n%s", wrong, b.String())
		}
	}
	return b.String()
}

func TestAChartShowsItsLines(t *testing.T) {
	got := draw(t, Chart{Title: "a < b & c", X: "seconds", Panels: []Panel{
		{Y: "op/s", Lines: []Line{{Name: "first", Points: []Point{{0, 0}, {10, 100}}}, {Name: "second", Points: []Point{{0, 50}, {10, 105}}}}},
		{Y: "us", Log: true, Lines: []Line{{Name: "p99", Points: []Point{{0, 10}, {5, 0}, {10, 1000}}}}},
	}, Marks: []Mark{{5, "half"}}})
	for _, want := range []string{
		"a &lt; b &amp; c", ">seconds<", ">half<", "M444.0 54.0l0 200", "M444.0 282.0l0 200", ">op/s<", ">first<", ">second<", ">p99<", ">100<", ">1k<",
		`points="84.0,254.0 804.0,72.6"`,  // from the lower left corner nearly to the upper right one
		`points="84.0,482.0 804.0,282.0"`, // the point at 0 has no logarithm
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %s in it:\n%s", want, got)
		}
	}
}

func TestAChartOfNothingIsDrawn(t *testing.T) {
	draw(t, Chart{})
	draw(t, Chart{Panels: []Panel{{}, {Log: true}, {Lines: []Line{{Name: "one", Points: []Point{{3, 3}}}}}, {Log: true, Lines: []Line{{Name: "zero", Points: []Point{{3, 0}}}}}}})
}

func TestTicksAreRound(t *testing.T) {
	for _, c := range []struct {
		a    axis
		want []float64
	}{
		{axis{lo: 0, hi: 10}, []float64{0, 2, 4, 6, 8, 10}},
		{axis{lo: 0, hi: 105}, []float64{0, 20, 40, 60, 80, 100}},
		{axis{lo: 0.3, hi: 1}, []float64{0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}},
		{axis{lo: 1, hi: 1000, log: true}, []float64{1, 10, 100, 1000}},
	} {
		got := c.a.ticks()
		if !slices.EqualFunc(got, c.want, func(x, y float64) bool { return math.Abs(x-y) < 1e-9 }) {
			t.Errorf("%+v: got %v, want %v", c.a, got, c.want)
		}
	}
}

// Points of events are not joined, and an axis that begins at about 0 begins
// there.
func TestEventsAreDots(t *testing.T) {
	got := draw(t, Chart{X: "seconds", Panels: []Panel{
		{Y: "ms", Lines: []Line{{Name: "pauses", Dots: true, Points: []Point{{0.1, 3}, {5, 4}, {9, 1}}}}},
	}})
	if n := strings.Count(got, "h0M") + strings.Count(got, `h0"`); n != 3 || strings.Contains(got, "<polyline") {
		t.Errorf("%d dots, want 3 and no line:\n%s", n, got)
	}
	if strings.Count(got, ">0<") != 2 || strings.Contains(got, ">-0<") {
		t.Errorf("the axes do not both begin at 0:\n%s", got)
	}
}
