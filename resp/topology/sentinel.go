package topology

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"polder/resp/reply"
)

// Master is what is known of the server that has the heap.
type Master struct {
	Addr  string // HOST:PORT at which its clients connect; "" if that is not known
	Epoch uint64 // the epoch in which that server has the heap
	Self  bool   // this server is the one
	Down  bool   // that server has not been heard of for some time, or has given the heap up
}

// SplitAddr returns the host and the port of an address; the port is "0" if the address has none.
func SplitAddr(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, "0"
	}
	return host, port
}

// Address replies to SENTINEL GET-MASTER-ADDR-BY-NAME.
func Address(w *reply.Writer, m Master) {
	host, port := SplitAddr(m.Addr)
	w.Array(2)
	w.Str(host)
	w.Str(port)
}

// Masters replies to SENTINEL MASTERS.
func Masters(w *reply.Writer, heap string, m Master) {
	w.Array(1)
	Describe(w, heap, m)
}

// Describe replies to SENTINEL MASTER with the state of the master. Clients look at the first five fields.
func Describe(w *reply.Writer, heap string, m Master) {
	host, port := SplitAddr(m.Addr)
	flags := "master"
	if m.Down {
		flags = "s_down,o_down,master"
	}
	fieldsOf(w, "name", heap, "ip", host, "port", port, "runid", "", "flags", flags,
		"role-reported", "master", "config-epoch", strconv.FormatUint(m.Epoch, 10), "num-slaves", "0", "num-other-sentinels", strconv.Itoa(m.others()), "quorum", "1")
}

// others is how many other servers are known that answer SENTINEL.
func (m Master) others() int {
	if m.Self || m.Down {
		return 0
	}
	return 1
}

// Sentinels replies to SENTINEL SENTINELS with the server that has the heap, unless it is this one. Servers that
// stand by do not know each other.
func Sentinels(w *reply.Writer, _ string, m Master) {
	w.Array(m.others())
	if m.others() > 0 {
		host, port := SplitAddr(m.Addr)
		fieldsOf(w, "name", m.Addr, "ip", host, "port", port, "runid", "", "flags", "sentinel")
	}
}

// Replicas replies to SENTINEL REPLICAS with none: a server that stands by answers no reads.
func Replicas(w *reply.Writer, _ string, _ Master) { w.Array(0) }

func fieldsOf(w *reply.Writer, pairs ...string) {
	w.Map(len(pairs) / 2)
	for _, p := range pairs {
		w.Str(p)
	}
}

// Role replies to ROLE. It says that a server which stands by is a replica of the one that has the heap.
func Role(w *reply.Writer, m Master) {
	if m.Self {
		w.Array(3)
		w.Str("master")
		w.Int(0)
		w.Array(0)
		return
	}
	host, port := SplitAddr(m.Addr)
	n, _ := strconv.Atoi(port)
	w.Array(5)
	w.Str("slave")
	w.Str(host)
	w.Int(int64(n))
	w.Str(m.Link())
	w.Int(0)
}

// Link returns ROLE's word for the state of the connection to the master.
func (m Master) Link() string {
	if m.Addr == "" || m.Down {
		return "connect"
	}
	return "connected"
}

// Replication appends what INFO says about the master and its replicas.
func Replication(b *strings.Builder, m Master) {
	if m.Self {
		b.WriteString("role:master\r\n")
	} else {
		host, port := SplitAddr(m.Addr)
		status := "up"
		if m.Link() != "connected" {
			status = "down"
		}
		fmt.Fprintf(b, "role:slave\r\nmaster_host:%s\r\nmaster_port:%s\r\nmaster_link_status:%s\r\n", host, port, status)
	}
	b.WriteString("connected_slaves:0\r\nmaster_repl_offset:0\r\n")
}
