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

// Partition is one partition of a heap, which is a heap by itself: what a Config is without it. See Config.
type Partition struct {
	Journal  keyspace.Journal
	Evidence keyspace.Evidence
	Ready    func(ctx context.Context) error
}

// part is data that a server has for its clients: all that there is, or one partition.
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

// close ends what is done with the data. Nobody uses it any more.
func (p *part) close() {
	p.StopWaiting()
	p.fetches.stop()
	p.Space.Close()
}

// AddPartition gives a server with a Cluster the heap of a partition. Clients are told what is there from then on. The caller
// closes the heap, after RemovePartition. Ctx is for the call itself.
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

// RemovePartition ends the use of a partition's heap, when the replies have been sent that show what it has, or when ctx ends: then
// commands that wait for far memory fail, and replies that wait for the journal are not sent.
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

// stores are the data that this server's clients see: its own, or its partitions.
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

// use returns a partition that does not go before EndUse; nil if it is not here.
func (srv *Server) use(number int) *part {
	if at := srv.parts[number].Load(); at != nil && at.Stay() {
		return at
	}
	return nil
}

// bulletin tells any number of goroutines that something has changed.
type bulletin struct {
	told atomic.Pointer[chan struct{}] // nil before somebody has asked
}

// next is closed at the next news.
func (b *bulletin) next() <-chan struct{} {
	for {
		if c := b.told.Load(); c != nil {
			return *c
		}
		c := make(chan struct{})
		b.told.CompareAndSwap(nil, &c)
	}
}

// tell has whoever waits know.
func (b *bulletin) tell() {
	if c := b.told.Swap(nil); c != nil {
		close(*c)
	}
}

// MapChanged says that Cluster.Map returns another map than before. Without it, commands that wait find that out later.
func (srv *Server) MapChanged() { srv.news.tell() }

const (
	// besides is about what a command costs beside the time in which it is carried out: to read it and to send its reply, which commands that come together share.
	besides = 5 * time.Microsecond
	// mostSpent is how much of its time a command counts at most: what takes longer is often that the process, or the machine, stood still.
	mostSpent = 20 * time.Millisecond
)

// Spent is how much time the server has spent on commands about the keys of a partition since AddPartition; 0 if the partition is not here. A command counts from when
// the one before it ended, and with what it takes to read it and to send its reply; one that has waited for far memory, during which others went on, with that alone.
func (srv *Server) Spent(number int) time.Duration {
	at := srv.parts[number].Load()
	if at == nil {
		return 0
	}
	return time.Duration(at.spent.Load())
}

// spend counts a command, or an attempt that has to be repeated when something was fetched.
func (p *part) spend(took time.Duration, waits bool) {
	if waits {
		took = 0
	}
	p.spent.Add(int64(min(took, mostSpent) + besides))
}

// partedSight is what the replies to be sent show of a partition, which the session uses until it is shown.
type partedSight struct {
	of *part
	keyspace.Sight
}

// looked takes note that the reply to be sent shows what the heap has now.
func (s *session) looked() {
	if s.part == s.srv.data {
		s.Space.Look(&s.Sight)
	} else {
		s.Space.Look(s.sightOf(s.part))
	}
}

// shown reports whether the replies that the session has may be sent, and waits until that is known.
func (s *session) shown() bool {
	ok := s.srv.data.Shown(&s.Sight)
	for i := range s.sights {
		ok = s.sights[i].of.Shown(&s.sights[i].Sight) && ok
	}
	s.forgetSights()
	return ok
}

// sightOf is what the replies to be sent show of a partition that the session uses.
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

// forgetSights ends what the session shows of partitions.
func (s *session) forgetSights() {
	for i := range s.sights {
		s.sights[i].of.EndUse()
		s.sights[i].of = nil
	}
	s.sights = s.sights[:0]
}
