package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"polder/internal/console"
)

// detail returns the lines of the view of one daemon.
func (m *model) detail(d *daemon) []string {
	s := d.state
	lines := []string{bold(d.service()+" at "+d.addr) + "  " + stateColor(d.health(), d.health())}
	if s == nil {
		return append(lines, "", d.err.Error())
	}
	lines = append(lines, fmt.Sprintf("%s, process %d, up %s", s.Version, s.PID, s.Now.Sub(s.Started).Round(1e9)))
	if d.err != nil {
		lines = append(lines, "The last answer is of "+s.Now.Format("15:04:05")+": "+d.err.Error())
	}
	if s.Problem != "" {
		lines = append(lines, "Not well: "+s.Problem)
	}
	for _, a := range s.Advice {
		lines = append(lines, wrap(a, m.width)...)
	}
	lines = append(lines, m.bars(s)...)
	lines = append(lines, m.plots(d)...)
	for _, metric := range []string{"polder_pool_node_up", "polder_broker_node_up"} {
		for i, n := range s.Metrics.Values(metric, "node") {
			if i == 0 {
				lines = append(lines, "", bold("NODES"))
			}
			node, state := "node="+n, "down"
			if s.Metrics.Sum(metric, node) > 0 {
				state = "up"
			}
			borrowed := s.Metrics.Sum("polder_pool_borrowed_bytes", node) + s.Metrics.Sum("polder_broker_bytes", node)
			lines = append(lines, pad(n, 24, false)+" "+stateColor(map[string]string{"up": "well", "down": "ill"}[state], pad(state, 5, false))+
				fmt.Sprintf(" %8s borrowed, %d connections lost, %d chunks lost", short(borrowed),
					s.Metrics.Int("polder_pool_reconnects_total", node), s.Metrics.Int("polder_pool_lost_total", node)))
		}
	}
	if len(s.Clients) > 0 {
		lines = append(lines, "", bold("CLIENTS"))
		for _, c := range s.Clients {
			lines = append(lines, pad(c.Name, 24, false)+" "+short(float64(c.Bytes)))
		}
	}
	if granted := s.Metrics["polder_coordinator_client_granted_bytes"]; granted != nil {
		lines = append(lines, "", bold("CACHES"))
		for _, c := range granted.Samples {
			client := "client=" + c.Labels["client"]
			weight := ""
			if w := s.Metrics.Sum("polder_coordinator_client_weight", client); w != 1 && w > 0 {
				weight = fmt.Sprintf(", weight %v", w)
			}
			lines = append(lines, fmt.Sprintf("%s %8s granted, %8s used, %d hits, %d misses of %v%s", pad(c.Labels["name"], 30, false), short(c.Value),
				short(s.Metrics.Sum("polder_coordinator_client_used_bytes", client)), s.Metrics.Int("polder_coordinator_client_hits_total", client),
				s.Metrics.Int("polder_coordinator_client_misses_total", client),
				time.Duration(s.Metrics.Sum("polder_coordinator_client_miss_cost_seconds", client)*1e9).Round(time.Microsecond), weight))
		}
	}
	for _, p := range s.Metrics.Values("polder_share_pool_bytes", "pool") {
		pool := "pool=" + p
		lines = append(lines, fmt.Sprintf("%s %8s, %8s free, %d regions", pad("pool "+p, 24, false), short(s.Metrics.Sum("polder_share_pool_bytes", pool)),
			short(s.Metrics.Sum("polder_share_pool_free_bytes", pool)), s.Metrics.Int("polder_share_pool_regions", pool)))
	}
	if len(s.Events) > 0 {
		lines = append(lines, "", bold("EVENTS"))
		for _, e := range slices.Backward(s.Events) {
			lines = append(lines, e.Time.Local().Format("15:04:05")+" "+pad(e.Level, 5, false)+" "+e.Text+e.More)
		}
	}
	return lines
}

// bars returns a bar for each memory of a daemon, divided by what the memory is used for.
func (m *model) bars(s *console.State) (lines []string) {
	for _, metric := range []string{"polder_far_local_bytes", "polder_node_memory_bytes", "polder_soft_memory_bytes"} {
		all := s.Metrics.Sum(metric)
		if all <= 0 {
			continue
		}
		if lines == nil {
			lines = append(lines, "", bold("MEMORY"))
		}
		var bar, words strings.Builder
		for i, use := range []string{"hot", "live", "cold", "lent", "index", "buffers", "dirty", "dead", "free"} {
			v := s.Metrics.Sum(metric, "use="+use)
			if v <= 0 {
				continue
			}
			glyph := "@#o#=+~-."[i : i+1]
			bar.WriteString(strings.Repeat(glyph, int(v/all*40+0.5)))
			fmt.Fprintf(&words, "  %s %s %s", glyph, use, short(v))
		}
		lines = append(lines, "["+pad(cut(bar.String(), 40), 40, false)+"] "+short(all), " "+words.String())
	}
	return lines
}

// plots are the panels, a line each.
func (m *model) plots(d *daemon) (lines []string) {
	if d.state.History == nil {
		return nil
	}
	width := max(m.width-62, 12)
	for _, p := range console.Panels {
		first := true
		for _, s := range d.state.History.Series {
			if s.Panel != p.ID || len(s.Values) == 0 {
				continue
			}
			if lines == nil {
				lines = append(lines, "", bold("LATELY"))
			}
			title := ""
			if first {
				title = p.Title
			}
			first = false
			lines = append(lines, pad(cut(title, 30), 30, false)+" "+pad(cut(s.Name, 18), 18, false)+" "+
				pad(say(float64(s.Values[len(s.Values)-1]), p.Unit), 10, true)+" "+spark(s.Values, width))
		}
	}
	return lines
}
