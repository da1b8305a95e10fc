package console

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Print writes the state for people.
func (s *State) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...)) // Flush returns the error
	}
	m := s.Metrics
	bytes := func(metric string, match ...string) string { return FormatBytes(m.Sum(metric, match...)) }
	_, _ = fmt.Fprintf(t, "polder %s, process %d, up %v, %s resident\n", s.Service, s.PID, s.Now.Sub(s.Started).Round(time.Second), bytes("process_resident_memory_bytes"))
	if s.Problem != "" {
		row("not well", "%s", s.Problem)
	}
	for _, service := range slices.Sorted(maps.Keys(s.Addresses)) {
		row(service, "%s", s.Addresses[service])
	}
	if m.Has("polder_memory_limit_bytes") {
		row("memory", "%s of %s available, bounded by %s", bytes("polder_memory_available_bytes"), bytes("polder_memory_limit_bytes"), m.Label("polder_memory_limit_bytes", "bound"))
	}
	if m.Has("polder_node_memory_bytes") {
		row("lent", "%s of %s, in chunks of %s", bytes("polder_node_memory_bytes", "use=lent"), bytes("polder_node_memory_bytes"),
			bytes("polder_node_chunk_bytes"))
		clients := m.Int("polder_node_clients")
		row("clients", "%d connected, %d in their grace period", clients, m.Int("polder_node_sessions")-clients)
		for _, c := range s.Clients {
			who := c.Name
			if c.Expires != nil {
				who = fmt.Sprintf("gone, reclaimed in %v", c.Expires.Sub(s.Now).Round(100*time.Millisecond))
			}
			row("", "%s: %s", who, FormatBytes(float64(c.Bytes)))
		}
		row("chunks", "%d lent, %d given back, %d reclaimed, %d refused for want of memory", m.Int("polder_node_allocs_total"),
			m.Int("polder_node_frees_total"), m.Int("polder_node_reclaimed_total"), m.Int("polder_node_no_memory_total"))
		row("refusals", "%d one-sided operations, %d malformed requests, %d frees of others' chunks", m.Int("polder_node_violations_total"),
			m.Int("polder_node_malformed_total"), m.Int("polder_node_not_owner_total"))
	}
	if m.Has("polder_broker_applications") {
		row("clients", "%d applications of %d users, %d refused, %d disconnected for what they sent", m.Int("polder_broker_applications"),
			m.Int("polder_broker_users"), m.Int("polder_broker_refused_total"), m.Int("polder_broker_violations_total"))
		for _, n := range m.Values("polder_broker_node_up", "node") {
			node := "node=" + n
			row("node", "%s: %s, %s in %d blocks, %d given, %d given back", n, upOrDown(m.Sum("polder_broker_node_up", node)), bytes("polder_broker_bytes", node),
				m.Int("polder_broker_blocks", node), m.Int("polder_broker_allocs_total", node), m.Int("polder_broker_frees_total", node))
		}
	}
	if m.Has("polder_witness_registers") {
		row("registers", "%d, %s of names and values, %s of log", m.Int("polder_witness_registers"), bytes("polder_witness_bytes"), bytes("polder_witness_log_bytes"))
		row("clients", "%d connected; of their requests %d met another's ballot, %d came to a witness without a vote for them", m.Int("polder_witness_connections"),
			m.Int("polder_witness_answers_total", "answer=refused"), m.Int("polder_witness_answers_total", "answer=stranger")+
				m.Int("polder_witness_answers_total", "answer=no_set")+m.Int("polder_witness_answers_total", "answer=other_set")+m.Int("polder_witness_answers_total", "answer=sealed"))
	}
	for _, name := range m.Values("polder_heap_epoch", "heap") {
		heap, owned := "heap="+name, "it is this process's"
		if m.Sum("polder_heap_register_answers", heap) == 0 {
			owned = fmt.Sprintf("replies wait, since the witnesses have not said for %.1f s that it is this process's", m.Sum("polder_heap_evidence_age_seconds", heap))
		}
		row("heap", "%s, kept at nodes, epoch %d: %s", name, m.Int("polder_heap_epoch", heap), owned)
	}
	if m.Has("polder_far_local_bytes") {
		use := func(what string) string { return bytes("polder_far_local_bytes", "use="+what) }
		row("local", "%s of %s: %s hot, %s cold, %s dead, %s index, %s buffers", bytes("polder_far_local_resident_bytes"), bytes("polder_far_local_budget_bytes"),
			use("hot"), use("cold"), use("dead"), use("index"), use("buffers"))
		row("far", "%s in use and %s dead in %d segments", bytes("polder_far_live_bytes"), bytes("polder_far_dead_bytes"), m.Int("polder_far_segments"))
		for _, name := range m.Values("polder_far_entries", "map") {
			row("map", "%s: %d entries, %d reads local, %d reads and writes needed far memory", name, m.Int("polder_far_entries", "map="+name),
				m.localReads("map="+name), m.Int("polder_far_misses_total", "map="+name))
		}
		row("moved", "%s out, %s in", bytes("polder_far_written_bytes_total"), bytes("polder_far_read_bytes_total"))
		row("lost", "%d entries, %d corrupt reads", m.Int("polder_far_lost_entries_total"), m.Int("polder_far_corrupt_reads_total"))
	}
	if m.Has("polder_soft_memory_bytes") {
		row("soft", "%s, %s of it free: %d objects in %s", bytes("polder_soft_budget_bytes"), bytes("polder_soft_memory_bytes", "use=free"),
			m.Int("polder_soft_objects"), bytes("polder_soft_memory_bytes", "use=live"))
		row("reads", "%d hits, %d misses", m.Int("polder_soft_hits_total"), m.Int("polder_soft_misses_total"))
		row("evicted", "%d objects by itself, %d with memory that was taken", m.Int("polder_soft_evicted_objects_total"), m.Int("polder_soft_revoked_objects_total"))
	}
	if m.Has("polder_coordinator_clients") {
		row("granted", "%s of %s that there could be, %s of it in use", bytes("polder_coordinator_granted_bytes"),
			bytes("polder_coordinator_target_bytes"), bytes("polder_coordinator_resident_bytes"))
		row("host", "%s available, %s of it in reserve", bytes("polder_coordinator_available_bytes"), bytes("polder_coordinator_reserve_bytes"))
		row("taken", "%d segments given back when asked, %d taken", m.Int("polder_coordinator_reclaimed_segments_total", "how=cooperatively"),
			m.Int("polder_coordinator_reclaimed_segments_total", "how=directly"))
		row("clients", "%d registered, %d refused, %d malformed messages, %d ended", m.Int("polder_coordinator_clients"),
			m.Int("polder_coordinator_refused_total"), m.Int("polder_coordinator_malformed_total"), m.Int("polder_coordinator_ended_total"))
		if granted := m["polder_coordinator_client_granted_bytes"]; granted != nil {
			for _, c := range granted.Samples {
				client := "client=" + c.Labels["client"]
				row("", "%s (process %s): %s granted, %s used, %d hits, %d misses, rebuilt for %.3g s", c.Labels["name"], c.Labels["pid"], FormatBytes(c.Value),
					bytes("polder_coordinator_client_used_bytes", client), m.Int("polder_coordinator_client_hits_total", client),
					m.Int("polder_coordinator_client_misses_total", client), m.Sum("polder_coordinator_client_rebuild_seconds_total", client))
			}
		}
	}
	if m.Has("polder_share_keys") {
		for _, p := range m.Values("polder_share_pool_bytes", "pool") {
			row("pool", "%s: %s, %s free, %d regions", p, bytes("polder_share_pool_bytes", "pool="+p), bytes("polder_share_pool_free_bytes", "pool="+p),
				m.Int("polder_share_pool_regions", "pool="+p))
		}
		row("keys", "%d of %s, %d views open", m.Int("polder_share_keys"), bytes("polder_share_bytes"), m.Int("polder_share_views"))
		row("clients", "%d in %d connections, %d requests denied", m.Int("polder_share_clients"), m.Int("polder_share_connections"), m.Int("polder_share_denied_total"))
		row("since then", "%d put, %d found of %d looked up, %d deleted, %d evicted, %d expired", m.Int("polder_share_puts_total"), m.Int("polder_share_hits_total"),
			m.Int("polder_share_lookups_total"), m.Int("polder_share_deletes_total"), m.Int("polder_share_evictions_total"), m.Int("polder_share_expired_total"))
	}
	for _, n := range m.Values("polder_pool_node_up", "node") {
		node, state := "node="+n, upOrDown(m.Sum("polder_pool_node_up", "node="+n))
		if m.Sum("polder_pool_node_leaving", node) > 0 {
			state = "leaving"
		}
		row("node", "%s: %s, %s borrowed, %s more to be had", n, state, bytes("polder_pool_borrowed_bytes", node), FormatBytes(m.Max("polder_pool_available_bytes", node)))
		row("", "%d reads (%s), %d writes (%s), %d reconnects, %d chunks lost", m.Int("polder_pool_reads_total", node), bytes("polder_pool_read_bytes_total", node),
			m.Int("polder_pool_writes_total", node), bytes("polder_pool_written_bytes_total", node), m.Int("polder_pool_reconnects_total", node), m.Int("polder_pool_lost_total", node))
	}
	if m.Has("polder_resp_keys") {
		row("keys", "%d", m.Int("polder_resp_keys"))
		row("commands", "%d, %d of them refused, %d clients now", m.Int("polder_resp_commands_total"), m.Int("polder_resp_errors_total"), m.Int("polder_resp_clients"))
		row("buffers", "%s of %s held by clients, %d disconnected for holding most", bytes("polder_resp_client_memory_bytes"),
			bytes("polder_resp_client_memory_limit_bytes"), m.Int("polder_resp_evicted_clients_total"))
		lost, timeouts, drops := m.Int("polder_resp_lost_replies_total"), m.Int("polder_resp_timeout_replies_total"), m.Int("polder_resp_output_drops_total")
		if lost+timeouts+drops > 0 {
			row("", "%d LOST replies, %d TRYAGAIN replies, %d clients disconnected for not reading", lost, timeouts, drops)
		}
	}
	return t.Flush()
}

// localReads are the reads that found their entry in local memory. One that was
// fetched first, which is a read from far memory, finds it there as well.
func (m Metrics) localReads(match ...string) int64 {
	return max(m.Int("polder_far_hits_total", match...)-m.Int("polder_far_prefetched_total", match...), 0)
}

func upOrDown(up float64) string {
	if up > 0 {
		return "up"
	}
	return "down"
}

// FormatBytes formats n for people.
func FormatBytes(v float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + units[i]
}
