package top

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"polder/internal/console"
)

// bold makes text bold. Bubble Tea leaves out this and the other styles here if the
// terminal has none.
func bold(s string) string  { return "\x1b[1m" + s + "\x1b[m" }
func faint(s string) string { return "\x1b[2m" + s + "\x1b[m" }

// mark shows a line in reverse video, including the parts that have styles.
func mark(s string) string {
	return "\x1b[7m" + strings.ReplaceAll(s, "\x1b[m", "\x1b[m\x1b[7m") + "\x1b[m"
}

// stateColor colours text according to a state.
func stateColor(state, text string) string {
	switch state {
	case "well":
		return "\x1b[32m" + text + "\x1b[m"
	case "ill", "silent":
		return "\x1b[1;31m" + text + "\x1b[m"
	}
	return "\x1b[33m" + text + "\x1b[m"
}

func pad(s string, width int, right bool) string {
	fill := strings.Repeat(" ", max(width-len([]rune(s)), 0))
	if right {
		return fill + s
	}
	return s + fill
}

// cut cuts a line to width cells, without counting or cutting styles.
func cut(s string, width int) string {
	var b strings.Builder
	cells, escape := 0, false
	for _, r := range s {
		switch {
		case r == '\x1b':
			escape = true
		case escape:
			escape = r != 'm'
		case cells == width:
			continue
		default:
			cells++
		}
		b.WriteRune(r)
	}
	return b.String()
}

// plain is text without control characters, which a terminal would obey: logs and the
// names of clients are text that others have written.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// clean makes all text of an answer plain.
func clean(d *daemon) {
	if d.err != nil {
		d.err = errors.New(plain(d.err.Error()))
	}
	s := d.state
	if s == nil {
		return
	}
	for _, text := range []*string{&s.Service, &s.Version, &s.Problem} {
		*text = plain(*text)
	}
	for i := range s.Advice {
		s.Advice[i] = plain(s.Advice[i])
	}
	for i := range s.Clients {
		s.Clients[i].Name = plain(s.Clients[i].Name)
	}
	for i := range s.Events {
		e := &s.Events[i]
		e.Level, e.Text, e.More = plain(e.Level), plain(e.Text), plain(e.More)
	}
	for _, metric := range s.Metrics {
		for _, sample := range metric.Samples {
			for label, value := range sample.Labels {
				sample.Labels[label] = plain(value)
			}
		}
	}
	if s.History != nil {
		for _, series := range s.History.Series {
			series.Name = plain(series.Name)
		}
	}
}

// wrap breaks text into lines at spaces.
func wrap(s string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), "  "+word
			continue
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// short is a size in at most six characters.
func short(v float64) string {
	units := []string{"B", "K", "M", "G", "T"}
	i := 0
	for v >= 1000 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 || v >= 99.95 {
		return fmt.Sprintf("%.0f%s", v, units[i])
	}
	return fmt.Sprintf("%.1f%s", v, units[i])
}

// count is a number in at most five characters.
func count(v float64) string {
	units := []string{"", "k", "M", "G"}
	i := 0
	for v >= 999.5 && i < len(units)-1 {
		v /= 1000
		i++
	}
	if v == math.Trunc(v) || v >= 99.95 {
		return fmt.Sprintf("%.0f%s", v, units[i])
	}
	return fmt.Sprintf("%.1f%s", v, units[i])
}

func rate(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return count(v) + "/s"
}

// say is a figure with its unit.
func say(v float64, unit string) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case unit == console.Bytes:
		return short(v)
	case unit == console.BytesRate:
		return short(v) + "/s"
	case unit == console.PerSecond:
		return rate(v)
	case unit == console.Seconds && v < 1e-3:
		return fmt.Sprintf("%.0f us", v*1e6)
	case unit == console.Seconds && v < 1:
		return fmt.Sprintf("%.1f ms", v*1e3)
	case unit == console.Seconds:
		return fmt.Sprintf("%.2f s", v)
	case unit == console.Cores:
		return fmt.Sprintf("%.2f", v)
	}
	return count(v)
}

var bars = []rune("▁▂▃▄▅▆▇█")

// spark draws the last values, from 0 to their highest.
func spark[F ~float32](values []F, width int) string {
	values = values[max(len(values)-width, 0):]
	top := F(0)
	for _, v := range values {
		if v > top {
			top = v
		}
	}
	var b strings.Builder
	for _, v := range values {
		switch {
		case v != v:
			b.WriteByte(' ')
		case top == 0:
			b.WriteRune(bars[0])
		default:
			b.WriteRune(bars[min(int(float64(v/top)*float64(len(bars)-1)+0.5), len(bars)-1)])
		}
	}
	return b.String()
}
