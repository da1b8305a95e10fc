// Package plot draws what was measured over time as SVG: panels of lines, one
// above the other, over a common horizontal axis. It is no more than the
// benchmarks need, so that they need nobody else's.
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
}

// Panel is one coordinate system of a chart.
type Panel struct {
	Y     string // what the vertical axis shows
	Log   bool   // the vertical axis is logarithmic; what is not above 0 is left out
	Lines []Line
}

// Line is a series of points from left to right.
type Line struct {
	Name   string
	Points []Point
	Dots   bool // the points are events, and not joined
}

// Point is a point of a line.
type Point struct{ X, Y float64 }

// Sizes in pixels.
const (
	width, height       = 720, 200 // of the inside of a panel
	left, right         = 80, 170  // beside it: labels and the legend
	top, between, below = 40, 24, 50
	dash                = 5 // of a tick
)

// colours are told apart by those who see few of them, too (Okabe and Ito).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442"}

// WriteSVG draws the chart.
func (c *Chart) WriteSVG(w io.Writer) error {
	b := bufio.NewWriter(w)
	total := top + len(c.Panels)*(height+between) + below
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", left+width+right, total)
	fmt.Fprintf(b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	text(b, left, 24, "start", ` font-size="15"`, c.Title)
	x := c.axisX()
	for i := range c.Panels {
		y0 := float64(top + i*(height+between))
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

func (c *Chart) axisX() axis {
	a := axis{lo: math.Inf(1), hi: math.Inf(-1)}
	for _, p := range c.Panels {
		for _, l := range p.Lines {
			for _, q := range l.Points {
				a.lo, a.hi = min(a.lo, q.X), max(a.hi, q.X)
			}
		}
	}
	if a.lo > 0 && a.lo < a.hi/10 {
		a.lo = 0 // it begins at about the origin
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
	fmt.Fprintf(b, `<rect x="%d" y="%.0f" width="%d" height="%d" fill="none" stroke="#888"/>`+"\n", left, y0, width, height)
	for _, t := range x.ticks() {
		line(b, left+x.at(t)*width, y0+height, 0, dash)
	}
	for _, t := range y.ticks() {
		at := y0 + height - y.at(t)*height
		line(b, left-dash, at, dash, 0)
		text(b, left-dash-3, at+4, "end", "", number(t))
	}
	mid := y0 + height/2
	text(b, 16, mid, "middle", fmt.Sprintf(` transform="rotate(-90 16 %.0f)"`, mid), p.Y)
	for i, l := range p.Lines {
		colour := colours[i%len(colours)]
		var points []string
		for _, q := range l.Points {
			if y.log && q.Y <= 0 {
				continue
			}
			at, up := left+x.at(q.X)*width, y0+height-y.at(q.Y)*height
			if l.Dots {
				fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="1.8" fill="%s" fill-opacity="0.6"/>`+"\n", at, up, colour)
			}
			points = append(points, fmt.Sprintf("%.1f,%.1f", at, up))
		}
		if !l.Dots {
			fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="1.3" points="%s"/>`+"\n", colour, strings.Join(points, " "))
		}
		text(b, left+width+10, y0+14+float64(i)*16, "start", fmt.Sprintf(` fill="%s"`, colour), l.Name)
	}
}

func line(b *bufio.Writer, x, y, dx, dy float64) {
	fmt.Fprintf(b, `<path d="M%.1f %.1fl%.0f %.0f" stroke="#888"/>`+"\n", x, y, dx, dy)
}

func text(b *bufio.Writer, x, y float64, anchor, more, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>`, x, y, anchor, more)
	_ = xml.EscapeText(b, []byte(s)) // the writer remembers its errors
	fmt.Fprintln(b, "</text>")
}

// axis maps values to the unit interval.
type axis struct {
	lo, hi float64
	log    bool
}

// proper makes an axis without values, or with only one, show something.
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

// ticks are round values along the axis, four to ten of them, or the powers of
// ten.
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
		list = append(list, k*d+0) // -0 is 0
	}
	return list
}

// number writes a tick: 250000 is 250k.
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
