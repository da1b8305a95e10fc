package resp

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/partition"
	"polder/resp/keyspace"
)

// Partition configures one partition, which has a heap of its own. The fields are to that heap what Config's fields
// of the same names are to the heap of a server without partitions.
type Partition struct {
	Journal  keyspace.Journal
	Evidence keyspace.Evidence
	Ready    func(ctx context.Context) error
}

// part is data that a server has for its clients: all of its data, or one partition.
type part struct {
	*keyspace.Space
	number  int
	fetches fetcher
	spent   atomic.Int64 // nanoseconds on commands: see Server.Spent
}

func newPart(srv *Server, number int, sp *keyspace.Space) *part {
	p := &part{Space: sp, number: number}
	p.fetches.start(srv, p)
	return p
}

// close ends the fetches and closes the space. Nobody uses the data any more.
func (p *part) close() {
	p.StopWaiting()
	p.fetches.stop()
	p.Space.Close()
}

// AddPartition gives a server with a Cluster the heap of a partition. From then on the server answers commands about
// that partition. The caller closes the heap, after RemovePartition. Ctx is for the call itself.
func (srv *Server) AddPartition(ctx context.Context, number int, heap *far.Heap, p Partition) error {
	sp := keyspace.New(keyspace.Config{OpTimeout: srv.cfg.OpTimeout, Journal: p.Journal, Evidence: p.Evidence, Ready: p.Ready, Logger: srv.cfg.Logger})
	if err := sp.Open(ctx, heap); err != nil {
		sp.GiveUp()
		sp.Close()
		return err
	}
	at := newPart(srv, number, sp)
	if !srv.parts[number].CompareAndSwap(nil, at) {
		at.GiveUp()
		at.close()
		return fmt.Errorf("partition %d is served already", number)
	}
	srv.news.tell()
	return nil
}

// RemovePartition ends the use of a partition's heap. First it waits until all replies that show the partition's data
// may be sent. When ctx ends before, commands that wait for far memory fail, and replies that wait for the journal
// are not sent.
func (srv *Server) RemovePartition(ctx context.Context, number int) error {
	at := srv.parts[number].Swap(nil)
	if at == nil {
		return nil
	}
	at.Leave(ctx)
	srv.channels.Leave(func(channel string) bool {
		return partition.Of(partition.Slot([]byte(channel)), len(srv.parts)) == number
	})
	closed := make(chan struct{})
	go func() {
		at.close()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		at.GiveUp()
		<-closed
		return ctx.Err()
	}
}

// stores returns the data that this server's clients see: its own data once that is open, or the partitions that are
// here.
func (srv *Server) stores() (list []*part) {
	for p := range srv.parts {
		if at := srv.parts[p].Load(); at != nil {
			list = append(list, at)
		}
	}
	if srv.parts == nil && !srv.data.IsLoading() {
		list = append(list, srv.data)
	}
	return list
}

// use returns a partition and keeps it from leaving until EndUse. It returns nil if the partition is not here, or is
// leaving.
func (srv *Server) use(number int) *part {
	if at := srv.parts[number].Load(); at != nil && at.Stay() {
		return at
	}
	return nil
}

// bulletin tells any number of goroutines that something has changed.
type bulletin struct {
	told atomic.Pointer[chan struct{}] // nil if nobody has called next since tell
}

// next returns a channel that the next tell closes.
func (b *bulletin) next() <-chan struct{} {
	for {
		if c := b.told.Load(); c != nil {
			return *c
		}
		c := make(chan struct{})
		b.told.CompareAndSwap(nil, &c)
	}
}

// tell wakes up whoever waits.
func (b *bulletin) tell() {
	if c := b.told.Swap(nil); c != nil {
		close(*c)
	}
}

// MapChanged says that Cluster.Map returns a new map. Without this call, commands that wait notice the new map later.
func (srv *Server) MapChanged() { srv.news.tell() }

const (
	// besides is about what a command costs beside its execution: it is read, and its reply is sent. Commands that
	// come together share that cost.
	besides = 5 * time.Microsecond
	// mostSpent is the longest time that is counted for one command: what takes longer is often that the process, or
	// the machine, stood still.
	mostSpent = 20 * time.Millisecond
)

// Spent is how much time the server has spent on commands about the keys of a partition since AddPartition; 0 if the
// partition is not here. A command counts with the time since the client's input began to run or the command before
// it ended, and with a fixed time for reading it and sending its reply. A command that has waited for far memory,
// during which others went on, counts with the fixed time alone.
func (srv *Server) Spent(number int) time.Duration {
	at := srv.parts[number].Load()
	if at == nil {
		return 0
	}
	return time.Duration(at.spent.Load())
}

// spend counts a command that took so long, or an attempt at a command that is repeated after a fetch. Waits says
// that it was allowed to wait, so that others went on meanwhile.
func (p *part) spend(took time.Duration, waits bool) {
	if waits {
		took = 0
	}
	p.spent.Add(int64(min(took, mostSpent) + besides))
}

// partedSight is what unsent replies show of a partition. The session keeps the partition from leaving until shown.
type partedSight struct {
	of *part
	keyspace.Sight
}

// looked notes that the reply to be sent shows the data of s.part as it is now.
func (s *session) looked() {
	if s.part == s.srv.data {
		s.Space.Look(&s.Sight)
	} else {
		s.Space.Look(s.sightOf(s.part))
	}
}

// shown waits until it is known whether the replies that the session has may be sent, and reports it.
func (s *session) shown() bool {
	ok := s.srv.data.Shown(&s.Sight)
	for i := range s.sights {
		ok = s.sights[i].of.Shown(&s.sights[i].Sight) && ok
	}
	s.forgetSights()
	return ok
}

// sightOf returns what unsent replies show of a partition. The first time, it keeps the partition from leaving until
// forgetSights.
//
// Preconditions: the session already keeps the partition from leaving (use).
func (s *session) sightOf(at *part) *keyspace.Sight {
	for i := range s.sights {
		if s.sights[i].of == at {
			return &s.sights[i].Sight
		}
	}
	at.Hold()
	s.sights = append(s.sights, partedSight{of: at})
	return &s.sights[len(s.sights)-1].Sight
}

// forgetSights forgets what the session shows of partitions, and no longer keeps them from leaving.
func (s *session) forgetSights() {
	for i := range s.sights {
		s.sights[i].of.EndUse()
		s.sights[i].of = nil
	}
	s.sights = s.sights[:0]
}
