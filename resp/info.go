package resp

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"polder/resp/proto"
	"polder/resp/topology"
)

type infoSection struct {
	name  string
	write func(srv *Server, b *strings.Builder)
}

// infoSections are the sections of INFO, with the fields that clients and
// monitoring look for.
var infoSections = []infoSection{
	{"server", func(srv *Server, b *strings.Builder) {
		up := int64(time.Since(srv.since).Seconds())
		fmt.Fprintf(b, "redis_version:%s\r\nredis_mode:%s\r\nserver_name:polder\r\nos:%s %s\r\narch_bits:64\r\n",
			proto.RedisVersion, srv.mode(), runtime.GOOS, runtime.GOARCH)
		fmt.Fprintf(b, "multiplexing_api:epoll\r\nprocess_id:%d\r\nrun_id:%s\r\ntcp_port:%d\r\nserver_time_usec:%d\r\nuptime_in_seconds:%d\r\nuptime_in_days:%d\r\n",
			os.Getpid(), srv.runID, srv.port.Load(), time.Now().UnixMicro(), up, up/86400)
	}},
	{"clients", func(srv *Server, b *strings.Builder) {
		fmt.Fprintf(b, "connected_clients:%d\r\nmaxclients:%d\r\nblocked_clients:0\r\n", srv.clients.Load(), srv.maxClients.Load())
	}},
	{"memory", func(srv *Server, b *strings.Builder) {
		m := srv.memory()
		fmt.Fprintf(b, "used_memory:%d\r\nused_memory_human:%.2fM\r\nmaxmemory:%d\r\nmaxmemory_human:%.2fM\r\nmaxmemory_policy:%s\r\nmem_allocator:polder\r\nmem_clients_normal:%d\r\nmaxmemory_clients:%d\r\n",
			m.Used, float64(m.Used)/(1<<20), m.Max, float64(m.Max)/(1<<20), m.Policy, srv.cfg.ClientMemory.Held(), srv.cfg.ClientMemory.Max())
	}},
	{"persistence", func(srv *Server, b *strings.Builder) {
		loading := srv.data.IsLoading() && srv.parts == nil
		p := srv.data.Persistence()
		last, status := p.Last, "ok"
		if last.IsZero() {
			last = srv.since
		}
		if p.Failed {
			status = "err"
		}
		fmt.Fprintf(b, "loading:%d\r\nrdb_changes_since_last_save:0\r\nrdb_bgsave_in_progress:%d\r\nrdb_last_save_time:%d\r\nrdb_last_bgsave_status:%s\r\naof_enabled:%d\r\naof_rewrite_in_progress:0\r\n",
			count(loading), count(p.Saving), last.Unix(), status, count(p.Durable))
	}},
	{"stats", func(srv *Server, b *strings.Builder) {
		st, m := srv.Stats(), srv.memory()
		fmt.Fprintf(b, "total_connections_received:%d\r\ntotal_commands_processed:%d\r\nrejected_connections:%d\r\ntotal_error_replies:%d\r\nclient_output_buffer_limit_disconnections:%d\r\nevicted_clients:%d\r\nevicted_keys:%d\r\nkeyspace_hits:%d\r\nkeyspace_misses:%d\r\n",
			st.Connections, st.Commands, st.Rejected, st.Errors, st.OutputDrops, st.EvictedClients, m.Removals, st.Hits, st.Misses)
	}},
	{"replication", func(srv *Server, b *strings.Builder) { topology.Replication(b, srv.masterNow()) }},
	{"cpu", func(_ *Server, b *strings.Builder) {
		sys, user := cpuTimes()
		fmt.Fprintf(b, "used_cpu_sys:%.6f\r\nused_cpu_user:%.6f\r\n", sys.Seconds(), user.Seconds())
	}},
	{"cluster", func(srv *Server, b *strings.Builder) {
		fmt.Fprintf(b, "cluster_enabled:%d\r\n", min(1, len(srv.parts)))
	}},
	{"keyspace", func(srv *Server, b *strings.Builder) {
		if n := srv.Stats().Keys; n > 0 {
			fmt.Fprintf(b, "db0:keys=%d,expires=0,avg_ttl=0\r\n", n)
		}
	}},
	{"polder", func(srv *Server, b *strings.Builder) {
		for _, st := range srv.statLines() {
			fmt.Fprintf(b, "%s:%s\r\n", st.Name, st.Value)
		}
	}},
}

// count is 1 if so is true, and else 0.
func count(so bool) int {
	if so {
		return 1
	}
	return 0
}

func cmdInfo(s *session, a [][]byte) error {
	want := func(name string) bool {
		if len(a) == 1 {
			return true
		}
		return slices.ContainsFunc(a[1:], func(w []byte) bool {
			return proto.Is(w, name) || proto.Is(w, "all") || proto.Is(w, "everything") || proto.Is(w, "default")
		})
	}
	var b strings.Builder
	for _, sec := range infoSections {
		if !want(sec.name) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("# " + strings.ToUpper(sec.name[:1]) + sec.name[1:] + "\r\n")
		sec.write(s.srv, &b)
	}
	s.Verbatim(b.String())
	return nil
}

func cmdPolderStats(s *session, a [][]byte) error {
	s.replyStats(s.srv.statLines())
	return nil
}

func itoa(v int64) string { return strconv.FormatInt(v, 10) }
