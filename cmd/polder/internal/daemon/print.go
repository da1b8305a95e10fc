package daemon

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"polder/internal/config"
	"polder/soft/wire"
)

// Print writes the status for people. Now is when it was taken.
func (s *Status) Print(w io.Writer, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...)) // Flush returns the error
	}
	_, _ = fmt.Fprintf(t, "polder %s, process %d, up %v, %s resident\n", s.Service, s.PID, now.Sub(s.Started).Round(time.Second), bytes(s.Resident))
	for _, service := range slices.Sorted(maps.Keys(s.Addresses)) {
		row(service, "%s", s.Addresses[service])
	}
	if m := s.Memory; m != nil {
		row("memory", "%s of %s available, bounded by %s", bytes(m.Available), bytes(m.Total), m.Bound)
	}
	if n := s.Node; n != nil {
		chunk := int64(n.ChunkSize)
		row("lent", "%s of %s, in chunks of %s", bytes(n.Lent*chunk), bytes(n.Chunks*chunk), config.FormatSize(chunk))
		row("clients", "%d connected, %d in their grace period", n.Clients, n.Sessions-n.Clients)
		for _, c := range s.Clients {
			who := c.Peer
			if who == "" {
				who = fmt.Sprintf("gone, reclaimed in %v", c.Expires.Sub(now).Round(100*time.Millisecond))
			}
			row("", "%s: %s", who, bytes(int64(c.Chunks)*chunk))
		}
		row("chunks", "%d lent, %d given back, %d reclaimed, %d refused for want of memory", n.Allocs, n.Frees, n.Reclaimed, n.NoMemory)
		row("refusals", "%d one-sided operations, %d malformed requests, %d frees of others' chunks", n.Violations, n.Malformed, n.NotOwner)
	}
	if b := s.Broker; b != nil {
		row("clients", "%d applications of %d users, %d refused, %d disconnected for what they sent", b.Apps, b.Users, b.Refused, b.Violations)
		for _, n := range b.Nodes {
			state := "up"
			if !n.Up {
				state = "down"
			}
			row("node", "%s: %s, %s in %d blocks, %d given, %d given back", n.Addr, state, bytes(n.Bytes), n.Blocks, n.Allocs, n.Frees)
		}
	}
	if h := s.Heap; h != nil {
		row("local", "%s of %s: %s logs, %s index, %s buffers", bytes(h.Resident), bytes(h.Budget),
			bytes(h.Logs), bytes(h.Index), bytes(h.Buffers+h.Staging))
		row("far", "%s in use and %s dead in %d segments", bytes(h.FarLive), bytes(h.FarDead), h.FarSegments)
		for _, m := range h.Maps {
			row("map", "%s: %d entries, %d reads local, %d from far memory", m.Name, m.Entries, m.Hits, m.Misses)
		}
		row("moved", "%s out, %s in", bytes(int64(h.BytesOut)), bytes(int64(h.BytesIn)))
		row("lost", "%d entries, %d corrupt reads", h.Lost, h.Corrupt)
	}
	if h := s.Soft; h != nil {
		row("soft", "%s, %s of it free: %d objects in %s", bytes(h.Budget), bytes(h.Free), h.Objects, bytes(h.Live))
		row("reads", "%d hits, %d misses", h.Hits, h.Misses)
		row("evicted", "%d objects by itself, %d with memory that was taken", h.EvictedObjects, h.LostObjects)
	}
	if c := s.Coordinator; c != nil {
		row("memory", "%s granted of %s that there could be, %s of it in use", bytes(c.Granted), bytes(c.Target), bytes(c.Resident))
		row("host", "%s available, %s of it in reserve", bytes(c.Available), bytes(c.Reserve))
		row("taken", "%s given back when asked, %s taken", bytes(int64(c.Cooperative)*wire.SegmentSize), bytes(int64(c.Direct)*wire.SegmentSize))
		row("clients", "%d registered, %d refused, %d malformed messages, %d ended", c.Clients, c.Refused, c.Malformed, c.Ended)
		for _, x := range c.MoreByClient {
			row("", "%s (process %d): %s granted, %s used, %d hits, %d misses, rebuilt for %v", x.Name, x.PID, bytes(x.Granted), bytes(x.Used),
				x.Hits, x.Misses, time.Duration(x.Rebuild*float64(time.Second)).Round(time.Millisecond))
		}
	}
	if i := s.Share; i != nil {
		for _, p := range i.Pools {
			row("pool", "%s: %s, %s free, %d regions", p.Name, bytes(p.Size), bytes(p.Free), p.Regions)
		}
		row("keys", "%d of %s, %d views open", i.Keys, bytes(i.Bytes), i.Views)
		row("clients", "%d in %d connections, %d requests denied", i.Sessions, i.Conns, i.Denied)
		row("since then", "%d put, %d found of %d looked up, %d deleted, %d evicted, %d expired", i.Puts, i.Hits, i.Lookups, i.Deletes, i.Evictions, i.Expired)
	}
	if p := s.Pool; p != nil {
		for _, n := range p.Nodes {
			row("node", "%s: %s, %d chunks borrowed, %d more to be had", n.Name, n.State, n.Chunks, n.Space)
			row("", "%d reads (%s), %d writes (%s), %d reconnects, %d chunks lost",
				n.Reads, bytes(n.BytesRead), n.Writes, bytes(n.BytesWritten), n.Reconnects, n.Lost)
		}
	}
	if r := s.Redis; r != nil {
		row("keys", "%d", r.Keys)
		row("redis", "%d clients, %d commands, %d errors", r.Clients, r.Commands, r.Errors)
		row("buffers", "%s of %s held by clients, %d disconnected for holding most", bytes(r.ClientMemory), bytes(r.MaxClientMemory), r.EvictedClients)
		if r.Lost+r.Timeouts+r.OutputDrops > 0 {
			row("", "%d LOST replies, %d TRYAGAIN replies, %d clients disconnected for not reading", r.Lost, r.Timeouts, r.OutputDrops)
		}
	}
	return t.Flush()
}

// bytes formats n for people.
func bytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v := float64(n)
	i := 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + units[i]
}
