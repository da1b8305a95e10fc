// Package plot draws what was measured over time as SVG: panels of lines, one
// above the other, over a common horizontal axis. It does no more than the
// benchmarks need, so that they need no other plotting library.
package plot

import (
	"bufio"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Chart is a figure.
type Chart struct {
	Title  string
	X      string // what the horizontal axis shows
	Panels []Panel
	Marks  []Mark
}

// Mark is a moment at which something happens, with a name or without.
type Mark struct {
	X    float64
	Name string
}

// Panel is one coordinate system of a chart.
type Panel struct {
	Y     string // what the vertical axis shows
	Log   bool   // the vertical axis is logarithmic; points that are not above 0 are left out
	Lines []Line
}

// Line is a series of points from left to right.
type Line struct {
	Name   string
	Points []Point
	Dots   bool // the points are events: dots that are not joined
}

// Point is a point of a line.
type Point struct{ X, Y float64 }

// Sizes in pixels.
const (
	width, height       = 720, 200 // of the inside of a panel
	left, right         = 84, 200  // beside a panel, for labels and the legend
	top, between, below = 54, 28, 52
	dash                = 5 // length of a tick
)

// style has colours that colour-blind readers can tell apart, too (Okabe and
// Ito's, in the order in which they differ most), on white and on black.
const style = `<style>
.paper{fill:#fff} .frame{fill:none;stroke:#999} .tick{stroke:#999} .grid{stroke:#999;stroke-opacity:.25}
path.mark{stroke:#999;stroke-dasharray:4 3}
text{fill:#222;font:12px system-ui,sans-serif} text.title{font-size:15px;font-weight:600} text.mark{font-size:11px}
.line{fill:none;stroke-width:1.5;stroke-linejoin:round}
.dots{stroke-width:3.6;stroke-linecap:round;stroke-opacity:.6}
.c0{stroke:#0072b2} .c1{stroke:#d55e00} .c2{stroke:#009e73} .c3{stroke:#cc79a7}
.c4{stroke:#e69f00} .c5{stroke:#222} .c6{stroke:#56b4e9} .c7{stroke:#a09000}
@media (prefers-color-scheme:dark){
.paper{fill:#14171a} text{fill:#ddd}
.c0{stroke:#4aa8e0} .c1{stroke:#f07a30} .c2{stroke:#2fc79b} .c5{stroke:#eee} .c6{stroke:#9ad7ff} .c7{stroke:#f0e442}}
</style>
`

const colours = 8

// WriteSVG draws the chart. The SVG follows the reader's light or dark colour scheme.
func (c *Chart) WriteSVG(w io.Writer) error {
	b := bufio.NewWriter(w)
	across, down := left+width+right, top+len(c.Panels)*(height+between)+below
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">`+"\n", across, down, across, down)
	_, _ = b.WriteString(style) // b keeps its first error, and Flush returns it
	fmt.Fprintf(b, `<rect class="paper" width="100%%" height="100%%"/>`+"\n")
	text(b, left, 26, "start", ` class="title"`, c.Title)
	x := c.axisX()
	for i := range c.Panels {
		y0 := float64(top + i*(height+between))
		for _, m := range c.Marks {
			at := left + x.at(m.X)*width
			line(b, "mark", at, y0, 0, height)
			if i == 0 && m.Name != "" {
				text(b, at-2, y0-5, "start", ` class="mark"`, m.Name)
			}
		}
		c.Panels[i].draw(b, x, y0)
		if i == len(c.Panels)-1 {
			for _, t := range x.ticks() {
				text(b, left+x.at(t)*width, y0+height+dash+14, "middle", "", number(t))
			}
			text(b, left+width/2, y0+height+40, "middle", "", c.X)
		}
	}
	fmt.Fprintln(b, "</svg>")
	if err := b.Flush(); err != nil {
		return fmt.Errorf("cannot write a plot: %w", err)
	}
	return nil
}

// axisX returns the common horizontal axis. It begins at 0, or at the leftmost point if that is below 0.
func (c *Chart) axisX() axis {
	a := axis{hi: math.Inf(-1)}
	for _, p := range c.Panels {
		for _, l := range p.Lines {
			for _, q := range l.Points {
				a.lo, a.hi = min(a.lo, q.X), max(a.hi, q.X)
			}
		}
	}
	return a.proper()
}

func (p *Panel) axisY() axis {
	a := axis{lo: 0, hi: math.Inf(-1), log: p.Log}
	if p.Log {
		a.lo = math.Inf(1)
	}
	for _, l := range p.Lines {
		for _, q := range l.Points {
			if !p.Log || q.Y > 0 {
				a.lo, a.hi = min(a.lo, q.Y), max(a.hi, q.Y)
			}
		}
	}
	a = a.proper()
	if p.Log {
		a.lo = math.Pow(10, math.Floor(math.Log10(a.lo)))
		a.hi = math.Pow(10, math.Ceil(math.Log10(a.hi)))
		return a.proper()
	}
	a.hi += (a.hi - a.lo) / 20
	return a
}

func (p *Panel) draw(b *bufio.Writer, x axis, y0 float64) {
	y := p.axisY()
	for _, t := range x.ticks() {
		at := left + x.at(t)*width
		line(b, "grid", at, y0, 0, height)
		line(b, "tick", at, y0+height, 0, dash)
	}
	for _, t := range y.ticks() {
		at := y0 + height - y.at(t)*height
		line(b, "grid", left, at, width, 0)
		line(b, "tick", left-dash, at, dash, 0)
		text(b, left-dash-3, at+4, "end", "", number(t))
	}
	fmt.Fprintf(b, `<rect class="frame" x="%d" y="%.0f" width="%d" height="%d"/>`+"\n", left, y0, width, height)
	mid := y0 + height/2
	text(b, 18, mid, "middle", fmt.Sprintf(` transform="rotate(-90 18 %.0f)"`, mid), p.Y)
	for i, l := range p.Lines {
		var points []string
		for _, q := range l.Points {
			if !y.log || q.Y > 0 {
				points = append(points, fmt.Sprintf("%.1f,%.1f", left+x.at(q.X)*width, y0+height-y.at(q.Y)*height))
			}
		}
		if l.Dots && len(points) > 0 {
			fmt.Fprintf(b, `<path class="dots c%d" d="M%sh0"/>`+"\n", i%colours, strings.Join(points, "h0M"))
		} else {
			fmt.Fprintf(b, `<polyline class="line c%d" points="%s"/>`+"\n", i%colours, strings.Join(points, " "))
		}
		at := y0 + 14 + float64(i)*18
		fmt.Fprintf(b, `<path class="c%d" stroke-width="3" d="M%d %.1fh16"/>`+"\n", i%colours, left+width+12, at-4)
		text(b, left+width+34, at, "start", "", l.Name)
	}
}

func line(b *bufio.Writer, class string, x, y, dx, dy float64) {
	fmt.Fprintf(b, `<path class="%s" d="M%.1f %.1fl%.0f %.0f"/>`+"\n", class, x, y, dx, dy)
}

func text(b *bufio.Writer, x, y float64, anchor, more, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>`, x, y, anchor, more)
	_ = xml.EscapeText(b, []byte(s))
	fmt.Fprintln(b, "</text>")
}

// axis maps values to the unit interval.
type axis struct {
	lo, hi float64
	log    bool
}

// proper returns the axis, widened if it has no values or only one, so that hi is above lo.
func (a axis) proper() axis {
	if a.lo > a.hi || math.IsInf(a.lo, 0) || math.IsInf(a.hi, 0) {
		a.lo, a.hi = 0, 1
		if a.log {
			a.lo = 0.1
		}
	}
	if a.lo == a.hi {
		if a.log {
			a.hi *= 10
		} else {
			a.hi++
		}
	}
	return a
}

func (a axis) at(v float64) float64 {
	if a.log {
		return math.Log(v/a.lo) / math.Log(a.hi/a.lo)
	}
	return (v - a.lo) / (a.hi - a.lo)
}

// ticks returns round values along the axis, four to ten of them, or the powers of
// ten on a logarithmic axis.
func (a axis) ticks() (list []float64) {
	if a.log {
		for v := a.lo; v <= a.hi*1.001; v *= 10 {
			list = append(list, v)
		}
		return list
	}
	d := math.Pow(10, math.Floor(math.Log10((a.hi-a.lo)/4)))
	steps := []float64{d, 2 * d, 5 * d, 10 * d}
	i, _ := slices.BinarySearchFunc(steps, (a.hi-a.lo)/8, func(s, want float64) int { return cmp.Compare(s, want) })
	d = steps[min(i, len(steps)-1)]
	for k := math.Ceil(a.lo/d - 1e-9); k*d <= a.hi*(1+1e-9); k++ {
		list = append(list, k*d+0) // + 0 turns -0 into 0
	}
	return list
}

// number returns the label of a tick: 250k for 250000.
func number(v float64) string {
	for _, u := range []struct {
		factor float64
		name   string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= u.factor {
			return strconv.FormatFloat(v/u.factor, 'g', 4, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
