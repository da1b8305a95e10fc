package top

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"polder/internal/console"
)

// A column of the table.
type column struct {
	name    string
	width   int // the least width; 0 for what the other columns leave
	right   bool
	text    func(*daemon) string
	compare func(a, b *daemon) int
}

var columns = []column{
	{"service", 11, false, (*daemon).service, func(a, b *daemon) int { return strings.Compare(a.service(), b.service()) }},
	{"address", 15, false, func(d *daemon) string { return d.addr }, func(a, b *daemon) int { return strings.Compare(a.addr, b.addr) }},
	{"state", 11, false, (*daemon).health, func(a, b *daemon) int { return strings.Compare(a.health(), b.health()) }},
	{"memory", 13, true, (*daemon).memory, func(a, b *daemon) int {
		usedA, _ := a.held()
		usedB, _ := b.held()
		return cmp.Compare(usedB, usedA)
	}},
	{"rss", 6, true, func(d *daemon) string { return d.bytes("process_resident_memory_bytes") }, func(a, b *daemon) int {
		return cmp.Compare(b.sum("process_resident_memory_bytes"), a.sum("process_resident_memory_bytes"))
	}},
	{"rate", 8, true, func(d *daemon) string { return rate(d.rate()) }, func(a, b *daemon) int { return cmp.Compare(nothing(b.rate()), nothing(a.rate())) }},
}

func nothing(v float64) float64 {
	if math.IsNaN(v) {
		return -1
	}
	return v
}

func (d *daemon) service() string {
	if d.state == nil {
		return "?"
	}
	return d.state.Service
}

// health is the state in a word or two.
func (d *daemon) health() string {
	switch {
	case d.err != nil:
		return "silent"
	case d.state.Problem != "":
		return "ill"
	}
	for _, metric := range []string{"polder_pool_node_up", "polder_broker_node_up"} {
		if all, up := len(d.state.Metrics.Values(metric, "node")), int(d.sum(metric)); up < all {
			return fmt.Sprintf("%d of %d up", up, all)
		}
	}
	return "well"
}

func (d *daemon) sum(metric string, match ...string) float64 {
	if d.state == nil {
		return 0
	}
	return d.state.Metrics.Sum(metric, match...)
}

func (d *daemon) bytes(metric string) string {
	if d.state == nil {
		return "-"
	}
	return short(d.sum(metric))
}

// held returns how many bytes of memory the daemon uses, of all that it may use.
func (d *daemon) held() (used, all float64) {
	for _, metric := range []string{"polder_far_local_bytes", "polder_node_memory_bytes", "polder_soft_memory_bytes"} {
		if all := d.sum(metric); all > 0 {
			return all - d.sum(metric, "use=free"), all
		}
	}
	if all := d.sum("polder_share_pool_bytes"); all > 0 {
		return all - d.sum("polder_share_pool_free_bytes"), all
	}
	if all := d.sum("polder_coordinator_target_bytes"); all > 0 {
		return d.sum("polder_coordinator_granted_bytes"), all
	}
	return d.sum("polder_broker_bytes"), 0
}

func (d *daemon) memory() string {
	used, all := d.held()
	switch {
	case d.state == nil:
		return "-"
	case all == 0:
		return short(used)
	}
	return short(used) + "/" + short(all)
}

// mainly is what daemons mainly do. The first entry whose panel a daemon has is the daemon's.
var mainly = []struct{ panel, line, lately string }{
	{"commands", "commands", "commands"}, {"lending", "lent", "lent"}, {"share-requests", "looked up", "share-requests"},
	{"broker-blocks", "given", "broker-blocks"}, {"idle", "granted", "idle"},
}

// series is a line of a panel, nil if the daemon does not have it.
func (d *daemon) series(panel, name string) *console.Series {
	if d.state != nil && d.state.History != nil {
		for _, s := range d.state.History.Series {
			if s.Panel == panel && s.Name == name {
				return s
			}
		}
	}
	return nil
}

func (d *daemon) rate() float64 {
	if d.state != nil && d.state.History != nil {
		for _, w := range mainly {
			if s := d.series(w.panel, w.line); s != nil && w.panel != "idle" {
				return d.state.History.Last(w.panel, w.line)
			}
		}
	}
	return math.NaN()
}

// lately is a sparkline of what the daemon does, or holds.
func (d *daemon) lately(width int) string {
	for _, w := range mainly {
		name := w.line
		if w.lately == "lent" {
			w.panel = "lent"
		}
		if s := d.series(w.panel, name); s != nil {
			return spark(s.Values, width)
		}
	}
	return ""
}

// table is a line for each daemon, under a head. On a screen, the line of the daemon at the cursor is marked.
func (m *model) table(screen bool) []string {
	widths := make([]int, len(columns))
	var head strings.Builder
	for i, c := range columns {
		widths[i] = c.width
		for j := range m.list {
			widths[i] = max(widths[i], len(c.text(&m.list[j])))
		}
		name := strings.ToUpper(c.name)
		if screen && i == m.sortBy {
			name += map[bool]string{false: "v", true: "^"}[m.reverse]
		}
		head.WriteString(pad(name, widths[i], c.right) + " ")
	}
	rest := max(m.width-len([]rune(head.String())), 0)
	if !screen {
		rest = 20
	}
	lines := []string{head.String() + "LATELY"}
	if screen {
		lines[0] = bold(lines[0])
	}
	for i := range m.list {
		d := &m.list[i]
		var line strings.Builder
		for i, c := range columns {
			text := pad(c.text(d), widths[i], c.right)
			if screen && c.name == "state" {
				text = stateColor(d.health(), text)
			}
			line.WriteString(text + " ")
		}
		line.WriteString(d.lately(rest))
		text := line.String()
		if screen && d.addr == m.cursor {
			text = mark(text)
		}
		lines = append(lines, text)
	}
	return lines
}
