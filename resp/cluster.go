package resp

import (
	"polder/far"
	"polder/partition"
	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/topology"
)

// mode is the mode in which the server runs, by the name that INFO and HELLO have for it.
func (srv *Server) mode() string {
	if srv.parts != nil {
		return "cluster"
	}
	return "standalone"
}

// clustered makes run a handler that a server without partitions refuses.
func clustered(run handler) handler {
	return func(s *session, a [][]byte) error {
		if s.srv.parts == nil {
			return errNoCluster
		}
		return run(s, a)
	}
}

// mapped is the handler of a command that shows clients the map of partitions. A client that has asked for the map
// knows what to do with MOVED, and is sent it from then on.
func mapped(run func(w *reply.Writer, m *partition.Map, self string)) handler {
	return clustered(func(s *session, a [][]byte) error {
		s.redirect = true
		run(&s.Writer, s.srv.cfg.Cluster.Map(), s.srv.cfg.Cluster.ID)
		return nil
	})
}

func cmdClusterInfo(s *session, a [][]byte) error {
	topology.Info(&s.Writer, s.srv.cfg.Cluster.Map())
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

// cmdReadOnly has the client be told MOVED for a slot that is not here, as clients of a cluster and other servers
// expect.
func cmdReadOnly(s *session, a [][]byte) error {
	s.redirect, s.strict = true, true
	s.OK()
	return nil
}

// cmdReadWrite has the client's commands forwarded again.
func cmdReadWrite(s *session, a [][]byte) error {
	s.redirect, s.strict = false, false
	s.OK()
	return nil
}

// cmdAsking does nothing: for a slot that is on its way here, a command waits anyway until the slot is here.
func cmdAsking(s *session, a [][]byte) error {
	s.OK()
	return nil
}
