package resp

import (
	"fmt"

	"polder/resp/feed"
	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/topology"
)

const (
	errNoSentinel reply.Error = "ERR SENTINEL is answered by servers of a heap that others may take over: see --heap and --witness"
	errNoMaster   reply.Error = "ERR No such master with that name"

	switchMaster = "+switch-master"
)

// SetMaster says which server has the heap Config.Heap. If its address is another than before, those who have
// subscribed to +switch-master are told. One goroutine calls it at a time.
func (srv *Server) SetMaster(m topology.Master) {
	var was topology.Master
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
	oldHost, oldPort := topology.SplitAddr(was.Addr)
	host, port := topology.SplitAddr(m.Addr)
	srv.channels.Publish(feed.Channel, []byte(switchMaster), fmt.Appendf(nil, "%s %s %s %s %s", srv.cfg.Heap, oldHost, oldPort, host, port))
}

// masterNow is what is known of the server that has the heap. If no other server can have it, that is this one.
func (srv *Server) masterNow() topology.Master {
	if srv.cfg.Heap == "" {
		return topology.Master{Self: true}
	}
	if m := srv.master.Load(); m != nil {
		return *m
	}
	return topology.Master{}
}

// masterCalled returns the server that has the heap of that name.
func (s *session) masterCalled(name []byte) (topology.Master, error) {
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
	switch err {
	case nil:
		topology.Address(&s.Writer, m)
	case errNoMaster:
		s.Out, err = proto.AppendNullArray(s.Out, s.Ver), nil
	}
	return err
}

func cmdSentinelMasters(s *session, a [][]byte) error {
	m, err := s.masterCalled([]byte(s.srv.cfg.Heap))
	switch err {
	case nil:
		topology.Masters(&s.Writer, s.srv.cfg.Heap, m)
	case errNoMaster:
		s.Array(0)
		err = nil
	}
	return err
}

// ofMaster is the handler of a command that names a heap, and is about the server that has it.
func ofMaster(run func(w *reply.Writer, heap string, m topology.Master)) handler {
	return func(s *session, a [][]byte) error {
		m, err := s.masterCalled(a[2])
		if err == nil {
			run(&s.Writer, s.srv.cfg.Heap, m)
		}
		return err
	}
}

func cmdRole(s *session, a [][]byte) error {
	topology.Role(&s.Writer, s.srv.masterNow())
	return nil
}
