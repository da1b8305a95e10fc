package topology

import (
	"fmt"
	"strconv"
	"strings"

	"polder/partition"
	"polder/resp/reply"
)

// slotRange is a range of slots that one server has, from first to last, both included.
type slotRange struct{ first, last int }

// ranges returns the slots of a server, in as few ranges as possible.
func ranges(m *partition.Map, id string) (list []slotRange) {
	for p, owner := range m.Owner {
		if owner != id {
			continue
		}
		first, last := partition.Range(p, m.Partitions)
		if n := len(list); n > 0 && list[n-1].last+1 == first {
			list[n-1].last = last
		} else {
			list = append(list, slotRange{first, last})
		}
	}
	return list
}

// Slots replies to CLUSTER SLOTS.
func Slots(w *reply.Writer, m *partition.Map, _ string) {
	n := 0
	for _, srv := range m.Servers {
		n += len(ranges(m, srv.ID))
	}
	w.Array(n)
	for _, srv := range m.Servers {
		for _, r := range ranges(m, srv.ID) {
			host, port := SplitAddr(srv.Addr)
			w.Array(3)
			w.Int(int64(r.first))
			w.Int(int64(r.last))
			w.Array(4)
			w.Str(host)
			portOf(w, port)
			w.Str(srv.ID)
			w.Array(0)
		}
	}
}

func portOf(w *reply.Writer, port string) {
	n, _ := strconv.Atoi(port)
	w.Int(int64(n))
}

// Shards replies to CLUSTER SHARDS.
func Shards(w *reply.Writer, m *partition.Map, _ string) {
	w.Array(len(m.Servers))
	for _, srv := range m.Servers {
		host, port := SplitAddr(srv.Addr)
		list := ranges(m, srv.ID)
		w.Map(2)
		w.Str("slots")
		w.Array(2 * len(list))
		for _, r := range list {
			w.Int(int64(r.first))
			w.Int(int64(r.last))
		}
		w.Str("nodes")
		w.Array(1)
		w.Map(7)
		w.Str("id")
		w.Str(srv.ID)
		w.Str("port")
		portOf(w, port)
		for _, f := range []string{"ip", host, "endpoint", host, "role", "master"} {
			w.Str(f)
		}
		w.Str("replication-offset")
		w.Int(0)
		w.Str("health")
		w.Str("online")
	}
}

// Nodes replies to CLUSTER NODES.
func Nodes(w *reply.Writer, m *partition.Map, self string) {
	var b strings.Builder
	for _, srv := range m.Servers {
		flags := "master"
		if srv.ID == self {
			flags = "myself,master"
		}
		fmt.Fprintf(&b, "%s %s@0 %s - 0 0 %d connected", srv.ID, srv.Addr, flags, m.Epoch)
		for _, r := range ranges(m, srv.ID) {
			fmt.Fprintf(&b, " %d-%d", r.first, r.last)
		}
		b.WriteByte('\n')
	}
	w.Verbatim(b.String())
}

// Info replies to CLUSTER INFO.
func Info(w *reply.Writer, m *partition.Map) {
	served, with := 0, 0
	for _, srv := range m.Servers {
		list := ranges(m, srv.ID)
		for _, r := range list {
			served += r.last - r.first + 1
		}
		with += min(1, len(list))
	}
	state := "ok"
	if served < partition.Slots {
		state = "fail"
	}
	w.Verbatim(fmt.Sprintf("cluster_state:%s\r\ncluster_slots_assigned:%d\r\ncluster_slots_ok:%d\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:%d\r\ncluster_known_nodes:%d\r\ncluster_size:%d\r\ncluster_current_epoch:%d\r\ncluster_my_epoch:%d\r\n",
		state, served, served, partition.Slots-served, len(m.Servers), with, m.Epoch, m.Epoch))
}
