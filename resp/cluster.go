package resp

import (
	"fmt"
	"strconv"
	"strings"

	"polder/far"
	"polder/partition"
	"polder/resp/proto"
	"polder/resp/reply"
)

// mode is what Redis calls the way in which the server runs.
func (srv *Server) mode() string {
	if srv.parts != nil {
		return "cluster"
	}
	return "standalone"
}

// clustered is a handler for servers of partitions alone.
func clustered(run handler) handler {
	return func(s *session, a [][]byte) error {
		if s.srv.parts == nil {
			return errNoCluster
		}
		return run(s, a)
	}
}

// whereabouts returns the map of the partitions to a client, which then knows what to do with MOVED.
func (s *session) whereabouts() *partition.Map {
	s.redirect = true
	return s.srv.cfg.Cluster.Map()
}

// slotRange are slots, from first to last, that one server has.
type slotRange struct{ first, last int }

// ranges are the slots of a server, as few ranges as there are.
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

func cmdClusterSlots(s *session, a [][]byte) error {
	m := s.whereabouts()
	n := 0
	for _, srv := range m.Servers {
		n += len(ranges(m, srv.ID))
	}
	s.Array(n)
	for _, srv := range m.Servers {
		for _, r := range ranges(m, srv.ID) {
			host, port := splitAddr(srv.Addr)
			s.Array(3)
			s.Int(int64(r.first))
			s.Int(int64(r.last))
			s.Array(4)
			s.Str(host)
			s.portOf(port)
			s.Str(srv.ID)
			s.Array(0)
		}
	}
	return nil
}

func (s *session) portOf(port string) {
	n, _ := strconv.Atoi(port)
	s.Int(int64(n))
}

func cmdClusterShards(s *session, a [][]byte) error {
	m := s.whereabouts()
	s.Array(len(m.Servers))
	for _, srv := range m.Servers {
		host, port := splitAddr(srv.Addr)
		list := ranges(m, srv.ID)
		s.Map(2)
		s.Str("slots")
		s.Array(2 * len(list))
		for _, r := range list {
			s.Int(int64(r.first))
			s.Int(int64(r.last))
		}
		s.Str("nodes")
		s.Array(1)
		s.Map(7)
		s.Str("id")
		s.Str(srv.ID)
		s.Str("port")
		s.portOf(port)
		for _, f := range []string{"ip", host, "endpoint", host, "role", "master"} {
			s.Str(f)
		}
		s.Str("replication-offset")
		s.Int(0)
		s.Str("health")
		s.Str("online")
	}
	return nil
}

func cmdClusterNodes(s *session, a [][]byte) error {
	m := s.whereabouts()
	var b strings.Builder
	for _, srv := range m.Servers {
		flags := "master"
		if srv.ID == s.srv.cfg.Cluster.ID {
			flags = "myself,master"
		}
		fmt.Fprintf(&b, "%s %s@0 %s - 0 0 %d connected", srv.ID, srv.Addr, flags, m.Epoch)
		for _, r := range ranges(m, srv.ID) {
			fmt.Fprintf(&b, " %d-%d", r.first, r.last)
		}
		b.WriteByte('\n')
	}
	s.Verbatim(b.String())
	return nil
}

func cmdClusterInfo(s *session, a [][]byte) error {
	m := s.srv.cfg.Cluster.Map()
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
	s.Verbatim(fmt.Sprintf("cluster_state:%s\r\ncluster_slots_assigned:%d\r\ncluster_slots_ok:%d\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:%d\r\ncluster_known_nodes:%d\r\ncluster_size:%d\r\ncluster_current_epoch:%d\r\ncluster_my_epoch:%d\r\n",
		state, served, served, partition.Slots-served, len(m.Servers), with, m.Epoch, m.Epoch))
	return nil
}

func cmdClusterMyID(s *session, a [][]byte) error {
	s.Str(s.srv.cfg.Cluster.ID)
	return nil
}

func cmdClusterKeySlot(s *session, a [][]byte) error {
	s.Int(int64(partition.Slot(a[2])))
	return nil
}

// cmdClusterCountKeys looks at every key of the partition. As in Redis, a server has no keys in the slots of others.
func cmdClusterCountKeys(s *session, a [][]byte) error {
	slot, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	if slot < 0 || slot >= partition.Slots {
		return reply.Error("ERR Invalid slot")
	}
	n := 0
	number := partition.Of(int(slot), len(s.srv.parts))
	err := s.each(number, func(at int) (bool, error) {
		if at != number {
			return true, nil
		}
		for cursor := uint64(0); ; {
			var err error
			cursor, err = s.Scan(cursor, func(key []byte, _ far.Entry) {
				if partition.Slot(key) == int(slot) {
					n++
				}
			})
			if err != nil || cursor == 0 {
				return true, err
			}
		}
	})
	if err == nil {
		s.Int(int64(n))
	}
	return err
}

// cmdReadOnly has the client be told where a slot is that is not here, as clients of a cluster expect it, and other servers.
func cmdReadOnly(s *session, a [][]byte) error {
	s.redirect, s.strict = true, true
	s.OK()
	return nil
}

// cmdReadWrite has the client's commands be forwarded.
func cmdReadWrite(s *session, a [][]byte) error {
	s.redirect, s.strict = false, false
	s.OK()
	return nil
}

// cmdAsking is for a slot that is on its way: a server waits until it is there.
func cmdAsking(s *session, a [][]byte) error {
	s.OK()
	return nil
}
