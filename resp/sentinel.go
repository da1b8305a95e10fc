package resp

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"polder/resp/proto"
	"polder/resp/reply"
)

// Master is what is known of the server that has the heap.
type Master struct {
	Addr  string // HOST:PORT at which its clients connect; "" if that is not known
	Epoch uint64 // in which it has the heap
	Self  bool   // it is this server
	Down  bool   // it has not been heard of for some time, or has given the heap up
}

const (
	errNoSentinel reply.Error = "ERR SENTINEL is answered by servers of a heap that others may take over: see --heap and --witness"
	errNoMaster   reply.Error = "ERR No such master with that name"

	switchMaster = "+switch-master"
)

// SetMaster says which server has the heap Config.Heap. Those who have subscribed to +switch-master are told when it is another
// one than before. One goroutine calls it at a time.
func (srv *Server) SetMaster(m Master) {
	var was Master
	if p := srv.master.Load(); p != nil {
		was = *p
	}
	if m.Addr == "" {
		m.Addr = was.Addr
	}
	srv.master.Store(&m)
	if was.Addr == "" || was.Addr == m.Addr {
		return
	}
	oldHost, oldPort := splitAddr(was.Addr)
	host, port := splitAddr(m.Addr)
	srv.channels.Publish([]byte(switchMaster), fmt.Appendf(nil, "%s %s %s %s %s", srv.cfg.Heap, oldHost, oldPort, host, port))
}

// masterNow is what is known of the server that has the heap: this one, if no other can have it.
func (srv *Server) masterNow() Master {
	if srv.cfg.Heap == "" {
		return Master{Self: true}
	}
	if m := srv.master.Load(); m != nil {
		return *m
	}
	return Master{}
}

func splitAddr(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, "0"
	}
	return host, port
}

// masterCalled is the master of that name.
func (s *session) masterCalled(name []byte) (Master, error) {
	m := s.srv.masterNow()
	switch {
	case s.srv.cfg.Heap == "":
		return m, errNoSentinel
	case string(name) != s.srv.cfg.Heap || m.Addr == "":
		return m, errNoMaster
	}
	return m, nil
}

func cmdSentinelGetMaster(s *session, a [][]byte) error {
	m, err := s.masterCalled(a[2])
	if err == errNoMaster {
		s.Out = proto.AppendNullArray(s.Out, s.Ver)
		return nil
	}
	if err != nil {
		return err
	}
	host, port := splitAddr(m.Addr)
	s.Array(2)
	s.Str(host)
	s.Str(port)
	return nil
}

func cmdSentinelMasters(s *session, a [][]byte) error {
	m, err := s.masterCalled([]byte(s.srv.cfg.Heap))
	if err == errNoMaster {
		s.Array(0)
		return nil
	}
	if err != nil {
		return err
	}
	s.Array(1)
	s.describeMaster(m)
	return nil
}

func cmdSentinelMaster(s *session, a [][]byte) error {
	m, err := s.masterCalled(a[2])
	if err != nil {
		return err
	}
	s.describeMaster(m)
	return nil
}

// describeMaster appends the state of the master, of which clients look at the first five fields.
func (s *session) describeMaster(m Master) {
	host, port := splitAddr(m.Addr)
	flags := "master"
	if m.Down {
		flags = "s_down,o_down,master"
	}
	s.fieldsOf("name", s.srv.cfg.Heap, "ip", host, "port", port, "runid", "", "flags", flags,
		"role-reported", "master", "config-epoch", strconv.FormatUint(m.Epoch, 10), "num-slaves", "0", "num-other-sentinels", strconv.Itoa(m.others()), "quorum", "1")
}

// others is how many other servers are known that answer SENTINEL.
func (m Master) others() int {
	if m.Self || m.Down {
		return 0
	}
	return 1
}

// cmdSentinelSentinels lists the server that has the heap, if it is another one: servers that stand by are not known to each other.
func cmdSentinelSentinels(s *session, a [][]byte) error {
	m, err := s.masterCalled(a[2])
	if err != nil {
		return err
	}
	s.Array(m.others())
	if m.others() > 0 {
		host, port := splitAddr(m.Addr)
		s.fieldsOf("name", m.Addr, "ip", host, "port", port, "runid", "", "flags", "sentinel")
	}
	return nil
}

// cmdSentinelReplicas lists none: a server that stands by answers no reads.
func cmdSentinelReplicas(s *session, a [][]byte) error {
	if _, err := s.masterCalled(a[2]); err != nil {
		return err
	}
	s.Array(0)
	return nil
}

func (s *session) fieldsOf(pairs ...string) {
	s.Map(len(pairs) / 2)
	for _, p := range pairs {
		s.Str(p)
	}
}

// cmdRole says that a server which stands by is a replica of the one that has the heap.
func cmdRole(s *session, a [][]byte) error {
	m := s.srv.masterNow()
	if m.Self {
		s.Array(3)
		s.Str("master")
		s.Int(0)
		s.Array(0)
		return nil
	}
	host, port := splitAddr(m.Addr)
	n, _ := strconv.Atoi(port)
	s.Array(5)
	s.Str("slave")
	s.Str(host)
	s.Int(int64(n))
	s.Str(m.link())
	s.Int(0)
	return nil
}

// link is how ROLE calls the state of the connection with the master.
func (m Master) link() string {
	if m.Addr == "" || m.Down {
		return "connect"
	}
	return "connected"
}

func infoReplication(srv *Server, b *strings.Builder) {
	m := srv.masterNow()
	if m.Self {
		b.WriteString("role:master\r\n")
	} else {
		host, port := splitAddr(m.Addr)
		status := "up"
		if m.link() != "connected" {
			status = "down"
		}
		fmt.Fprintf(b, "role:slave\r\nmaster_host:%s\r\nmaster_port:%s\r\nmaster_link_status:%s\r\n", host, port, status)
	}
	b.WriteString("connected_slaves:0\r\nmaster_repl_offset:0\r\n")
}
