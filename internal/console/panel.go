package console

// Units of what is plotted.
const (
	Bytes     = "bytes"
	PerSecond = "per second"
	BytesRate = "bytes per second"
	Seconds   = "seconds"
	Number    = "number"
	Cores     = "cores"
)

// Panel is one plot: of the page, of "polder top", and of the dashboard for Grafana.
// A daemon has those for which it has metrics.
type Panel struct {
	ID      string `json:"id"`
	Title   string `json:"title"`
	Unit    string `json:"unit"`
	Stacked bool   `json:"stacked"`
	Lines   []Line `json:"-"` // a page has the Series that come of them
}

// How a line comes from its metric.
const (
	Value    = "value"    // of a gauge
	Rate     = "rate"     // of a counter, a second
	Quantile = "quantile" // of a histogram, since the last point
)

// Line is what a panel plots of one metric: the sum over all labels, or a line for
// each value of the label By. Only the samples that Match count.
type Line struct {
	Metric string
	Name   string // in the legend; with By, the label's value is there instead
	Kind   string
	By     string
	Match  string  // label=value; "" for all
	Q      float64 // of a Quantile
	Less   string  // another counter, whose rate is subtracted from this one's
}

// quantiles are the usual lines of a histogram.
func quantiles(metric, match string) []Line {
	return []Line{
		{Metric: metric, Name: "p50", Kind: Quantile, Match: match, Q: 0.5},
		{Metric: metric, Name: "p99", Kind: Quantile, Match: match, Q: 0.99},
	}
}

// Panels are all panels, in the order in which they are shown.
var Panels = []Panel{
	{"commands", "Redis commands", PerSecond, false, []Line{
		{Metric: "polder_resp_commands_total", Name: "commands", Kind: Rate},
		{Metric: "polder_resp_errors_total", Name: "error replies", Kind: Rate},
	}},
	{"reads", "Reads of values", PerSecond, false, []Line{
		{Metric: "polder_far_hits_total", Name: "local", Kind: Rate, Less: "polder_far_prefetched_total"},
		{Metric: "polder_far_misses_total", Name: "far", Kind: Rate},
	}},
	{"round", "Time to serve what is local", Seconds, false, quantiles("polder_resp_round_seconds", "")},
	{"fetch", "Time to fetch what is far", Seconds, false, quantiles("polder_resp_fetch_seconds", "")},
	{"read-latency", "Time of a READ at a node", Seconds, false, quantiles("polder_pool_operation_seconds", "op=read")},
	{"write-latency", "Time of a WRITE at a node", Seconds, false, quantiles("polder_pool_operation_seconds", "op=write")},
	{"moved", "Moved to and from far memory", BytesRate, false, []Line{
		{Metric: "polder_far_read_bytes_total", Name: "fetched", Kind: Rate},
		{Metric: "polder_far_written_bytes_total", Name: "evacuated", Kind: Rate},
		{Metric: "polder_far_cleaned_bytes_total", Name: "cleaned", Kind: Rate},
	}},
	{"evacuation", "Entries evacuated", PerSecond, false, []Line{
		{Metric: "polder_far_evacuated_entries_total", Name: "written", Kind: Rate},
		{Metric: "polder_far_evacuated_clean_entries_total", Name: "dropped, far copy good", Kind: Rate},
	}},
	{"local", "Local memory of the heap", Bytes, true, []Line{
		{Metric: "polder_far_local_bytes", Kind: Value, By: "use"},
	}},
	{"far", "Far memory of the heap", Bytes, true, []Line{
		{Metric: "polder_far_live_bytes", Name: "live", Kind: Value},
		{Metric: "polder_far_dead_bytes", Name: "dead", Kind: Value},
	}},
	{"nodes", "Borrowed from each node", Bytes, true, []Line{
		{Metric: "polder_pool_borrowed_bytes", Kind: Value, By: "node"},
	}},
	{"lent", "Memory of this node", Bytes, true, []Line{
		{Metric: "polder_node_memory_bytes", Kind: Value, By: "use"},
	}},
	{"lending", "Chunks lent and given back", PerSecond, false, []Line{
		{Metric: "polder_node_allocs_total", Name: "lent", Kind: Rate},
		{Metric: "polder_node_frees_total", Name: "given back", Kind: Rate},
		{Metric: "polder_node_reclaimed_total", Name: "reclaimed", Kind: Rate},
		{Metric: "polder_node_no_memory_total", Name: "refused", Kind: Rate},
	}},
	{"borrowers", "Clients of this node", Number, false, []Line{
		{Metric: "polder_node_clients", Name: "connected", Kind: Value},
		{Metric: "polder_node_sessions", Name: "with those in their grace period", Kind: Value},
	}},
	{"soft", "Soft memory of this cache", Bytes, true, []Line{
		{Metric: "polder_soft_memory_bytes", Kind: Value, By: "use"},
	}},
	{"soft-reads", "Reads of the cache", PerSecond, false, []Line{
		{Metric: "polder_soft_hits_total", Name: "hits", Kind: Rate},
		{Metric: "polder_soft_misses_total", Name: "misses", Kind: Rate},
	}},
	{"soft-lost", "Entries that had to go", PerSecond, false, []Line{
		{Metric: "polder_soft_evicted_objects_total", Name: "evicted by the cache", Kind: Rate},
		{Metric: "polder_soft_revoked_objects_total", Name: "taken with their memory", Kind: Rate},
	}},
	{"grants", "Granted to each cache", Bytes, true, []Line{
		{Metric: "polder_coordinator_client_granted_bytes", Kind: Value, By: "name"},
	}},
	{"idle", "Idle memory of the host", Bytes, false, []Line{
		{Metric: "polder_coordinator_available_bytes", Name: "available", Kind: Value},
		{Metric: "polder_coordinator_target_bytes", Name: "may be granted", Kind: Value},
		{Metric: "polder_coordinator_granted_bytes", Name: "granted", Kind: Value},
	}},
	{"taken", "Memory taken back", PerSecond, false, []Line{
		{Metric: "polder_coordinator_reclaimed_segments_total", Kind: Rate, By: "how"},
	}},
	{"share-requests", "Keys registered and looked up", PerSecond, false, []Line{
		{Metric: "polder_share_puts_total", Name: "put", Kind: Rate},
		{Metric: "polder_share_lookups_total", Name: "looked up", Kind: Rate},
		{Metric: "polder_share_hits_total", Name: "found", Kind: Rate},
		{Metric: "polder_share_deletes_total", Name: "deleted", Kind: Rate},
		{Metric: "polder_share_evictions_total", Name: "evicted", Kind: Rate},
	}},
	{"share-free", "Free memory of each pool", Bytes, false, []Line{
		{Metric: "polder_share_pool_free_bytes", Kind: Value, By: "pool"},
	}},
	{"views", "Open views", Number, false, []Line{
		{Metric: "polder_share_views", Name: "views", Kind: Value},
		{Metric: "polder_share_clients", Name: "clients", Kind: Value},
	}},
	{"brokered", "Held by applications at each node", Bytes, true, []Line{
		{Metric: "polder_broker_bytes", Kind: Value, By: "node"},
	}},
	{"broker-blocks", "Blocks given and freed", PerSecond, false, []Line{
		{Metric: "polder_broker_allocs_total", Name: "given", Kind: Rate},
		{Metric: "polder_broker_frees_total", Name: "freed", Kind: Rate},
	}},
	{"client-memory", "Held for Redis clients", Bytes, false, []Line{
		{Metric: "polder_resp_client_memory_bytes", Name: "held", Kind: Value},
		{Metric: "polder_resp_client_memory_limit_bytes", Name: "limit", Kind: Value},
	}},
	{"resident", "Resident memory of the process", Bytes, false, []Line{
		{Metric: "process_resident_memory_bytes", Name: "resident", Kind: Value},
	}},
	{"cpu", "Processor time of the process", Cores, false, []Line{
		{Metric: "process_cpu_seconds_total", Name: "cores", Kind: Rate},
	}},
}
