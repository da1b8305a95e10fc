package resp

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"polder/partition"
	"polder/resp/forward"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

// Cluster says how a server shares the partitions of a heap with others.
type Cluster struct {
	ID string // of this server in the map
	// Map returns the newest map that is known. It must not wait.
	Map func() *partition.Map
	// Doubt is called when the map may be old: no server has the partition according to the map, or the server that
	// should have it lacks it or cannot be reached. It must not wait.
	Doubt func()
	// Links are to the other servers. The caller keeps them, and closes them after the server.
	Links *forward.Links
}

// moveTo makes the session's next commands be about the data at.
func (s *session) moveTo(at *part) {
	s.part = at
	s.Use(at.Space)
}

// away is what a session keeps about partitions.
type away struct {
	at       *part         // where the last command blocked; nil if it did not, or is about all partitions
	sights   []partedSight // what unsent replies show; each keeps its partition from leaving
	watchAt  *part         // the partition here whose keys it watches; nil if there is none
	tie      *tie          // what it watches at another server; nil if nothing. If it is set, watchAt is nil
	redirect bool          // tell the client where a partition is, and do not forward its commands
	strict   bool          // redirect also while the partition is on its way here
}

// fetchAt returns the part that fetches what the session wants.
func (s *session) fetchAt() *part {
	if s.at != nil {
		return s.at
	}
	return s.part
}

// wantsHere reports whether a command's keys are in the partition where the session's command blocked, so that they
// can be fetched together. They are not if that command is about all partitions (s.at is nil).
func (s *session) wantsHere(cmd *table.Command, args [][]byte) bool {
	switch {
	case s.srv.parts == nil:
		return true
	case s.at == nil:
		return false
	}
	for key := range cmd.KeysOf(args) {
		return s.partOf(key) == s.at.number
	}
	return true
}

func (s *session) partOf(key []byte) int {
	return partition.Of(partition.Slot(key), len(s.srv.parts))
}

// unwatch makes the session watch nothing.
func (s *session) unwatch() {
	s.untie()
	at := s.part
	if s.watchAt != nil {
		at, s.watchAt = s.watchAt, nil
	}
	at.Unwatch(&s.Access)
}

const (
	errCrossSlot reply.Error = "CROSSSLOT Keys in request don't hash to the same slot"
	errNotServed reply.Error = "CLUSTERDOWN Hash slot not served"
	errUncertain reply.Error = "ERR the server that has the slot went away: it is not known whether the command was carried out"
	errNoCluster reply.Error = "ERR This instance has cluster support disabled"
	errSelect    reply.Error = "ERR SELECT is not allowed in cluster mode"
	errConnAway  reply.Error = "ERR AUTH, CLIENT, HELLO and the like cannot be in a transaction about keys at another server"
	errWholeHeap reply.Error = "ERR the command is about a whole heap, and this server has some of its partitions"
)

// sameSlot returns the slot that a command's keys share with earlier keys, whose slot is given; -1 means that there
// are no keys. It fails if they are in different slots.
func sameSlot(slot int, cmd *table.Command, args [][]byte) (int, error) {
	for key := range cmd.KeysOf(args) {
		switch n := partition.Slot(key); {
		case slot < 0:
			slot = n
		case slot != n:
			return slot, errCrossSlot
		}
	}
	return slot, nil
}

// slotOf is the slot of the keys that a command is about, -1 if there are none. EXEC is about the keys of its queue,
// and those that the session watches.
func (s *session) slotOf(cmd *table.Command, args [][]byte) (slot int, err error) {
	if cmd.Name != "exec" || !s.multi || s.abort {
		return sameSlot(-1, cmd, args)
	}
	slot = -1
	for _, q := range s.queue {
		if slot, err = sameSlot(slot, q.cmd, q.args); err != nil {
			return slot, err
		}
	}
	watched := s.watchedSlot()
	switch {
	case slot < 0:
		slot = watched
	case watched >= 0 && slot != watched:
		err = errCrossSlot
	}
	return slot, err
}

// watchedSlot is the slot of the keys that the session watches, -1 if it watches none.
func (s *session) watchedSlot() int {
	switch {
	case s.tie != nil:
		return s.tie.slot
	case s.Watches():
		return partition.Slot(s.WatchedKey())
	}
	return -1
}

// mayQueue refuses a command that a transaction on a server of partitions cannot have: it is about all keys, or its
// keys are in another slot than the transaction's, or the client is to be told that they are at another server.
func (s *session) mayQueue(cmd *table.Command, args [][]byte) error {
	if cmd.Flags&table.Each != 0 {
		return errWholeHeap
	}
	slot, err := s.slotOf(&table.Command{Name: "exec"}, nil)
	if err == nil {
		slot, err = sameSlot(slot, cmd, args)
	}
	if err != nil || slot < 0 {
		return err
	}
	m, number := s.srv.cfg.Cluster.Map(), partition.Of(slot, len(s.srv.parts))
	owner, known := m.Server(m.Owner[number])
	if known && owner.ID != s.srv.cfg.Cluster.ID && s.told(m, number) {
		return moved(slot, owner.Addr)
	}
	return nil
}

// performAway is perform for a server of partitions: the command runs at the partition that has its keys, here or
// elsewhere.
func (s *session) performAway(cmd *table.Command, args [][]byte) bool {
	s.at = nil
	if s.Tries == 0 {
		s.began = s.clock
	}
	slot, err := s.slotOf(cmd, args)
	if watched := s.watchedSlot(); err == nil && cmd.Name == "watch" {
		switch {
		case s.multi:
			err = errWatchInMulti
		case watched >= 0 && slot != watched:
			err = errCrossSlot
		}
	}
	switch {
	case err == nil && slot < 0 && cmd.Flags&table.Each != 0:
		return s.performEach(cmd, args)
	case err == nil && (slot < 0 || cmd.Name == "sunsubscribe"): // a subscription ends where it was made
		return s.perform(cmd, args)
	}
	if err != nil {
		s.leave(cmd, err)
		return true
	}
	if s.tie != nil && (cmd.Name == "watch" || cmd.Name == "exec") {
		s.performTied(cmd, args)
		return true
	}
	number := partition.Of(slot, len(s.srv.parts))
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		news := s.srv.news.next()
		if at := s.srv.use(number); at != nil {
			defer at.EndUse()
			return s.performAt(at, cmd, args)
		}
		if !s.elsewhere(slot, number, cmd, args, news, pause) {
			return true
		}
	}
}

// A command whose partition is not here waits until there is news, but at first only for firstLook, then for longer
// each time, at most lastLook. Then it looks again where the partition is: another server may have it before this one
// knows.
const (
	firstLook = time.Millisecond
	lastLook  = 100 * time.Millisecond
)

// performAt is perform at a partition that the session keeps from leaving (use).
func (s *session) performAt(at *part, cmd *table.Command, args [][]byte) bool {
	if cmd.Flags&(table.Read|table.Write) != 0 {
		if err := at.Refuses(cmd.Flags&table.Write != 0); err != nil {
			s.leave(cmd, err)
			return true
		}
	}
	// If so, the watched keys have gone to another server, and perhaps come back.
	if s.watchAt != nil && s.watchAt != at && s.watchAt.number == at.number {
		if cmd.Name == "watch" {
			s.unwatch()
		}
		s.Dirty.Store(true)
	}
	s.moveTo(at)
	defer s.moveTo(s.srv.data)
	began, waits := s.clock, s.Tries > keyspace.MaxTries || s.MayWait()
	done := s.perform(cmd, args)
	at.spend(s.clock-began, waits)
	switch {
	case !done:
		s.at = at
	case !s.Watches():
		s.Dirty.Store(false) // no other goroutine sets it if nothing is watched
	case cmd.Name == "watch":
		s.watchAt = at
	}
	return done
}

// performEach runs a command at every partition that is here. The reply is that of the last one. It stops at the
// first partition where the command fails or blocks.
func (s *session) performEach(cmd *table.Command, args [][]byte) bool {
	if cmd.Flags&table.Merge != 0 {
		return s.perform(cmd, args)
	}
	done := true
	s.OK() // the reply if there are no partitions here
	for number := range s.srv.parts {
		at := s.srv.use(number)
		if at == nil {
			continue
		}
		s.Out = s.Out[:s.Mark]
		done = s.performAt(at, cmd, args)
		at.EndUse()
		if !done || s.Out[s.Mark] == '-' {
			break
		}
	}
	s.at = nil
	return done
}

// each calls f for the server's data, or for every partition that is here and whose number is at least from, until f
// returns true or an error.
func (s *session) each(from int, f func(number int) (done bool, err error)) error {
	if s.srv.parts == nil {
		_, err := f(0)
		return err
	}
	defer s.moveTo(s.srv.data)
	for number := from; number < len(s.srv.parts); number++ {
		at := s.srv.use(number)
		if at == nil {
			continue
		}
		s.moveTo(at)
		done, err := f(number)
		s.looked()
		at.EndUse()
		if done || err != nil {
			return err
		}
	}
	return nil
}

// elsewhere handles a command about a partition that is not here. It forwards the command, or tells the client where
// the partition is. If no server is found that has the partition, it waits for news, but no longer than pause, and
// reports true: the command is to be tried again.
func (s *session) elsewhere(slot, number int, cmd *table.Command, args [][]byte, news <-chan struct{}, pause time.Duration) (again bool) {
	c := s.srv.cfg.Cluster
	m := c.Map()
	owner, known := m.Server(m.Owner[number])
	err := error(errNotServed)
	switch {
	case !known:
	case owner.ID == c.ID:
		err = errLoading
	case cmd.Name == "exec" && s.Watches(): // the watched keys have gone to another server
		s.Out = proto.AppendNullArray(s.Out, s.Ver)
		return s.leave(cmd, nil)
	case cmd.Name == "ssubscribe" || s.told(m, number) || c.leaves(m): // later messages of the first have no way back
		return s.leave(cmd, moved(slot, owner.Addr))
	}
	if !s.showsFirst(cmd) {
		return false
	}
	if known && owner.ID != c.ID {
		s.waitFor(args)
		if cmd.Name == "watch" {
			err = s.watchAway(owner.Addr, slot, cmd, args)
		} else {
			err = s.forward(nil, owner.Addr, cmd, args)
		}
		if !errors.Is(err, forward.ErrUnsent) {
			return s.leave(cmd, err)
		}
		err = errNotServed
	}
	s.waitFor(args)
	c.Doubt()
	select {
	case <-s.Context().Done():
		return s.leave(cmd, err)
	case <-news:
	case <-time.After(pause):
	}
	return true
}

// showsFirst waits until the session's replies so far may be sent. It is called before a command waits for another
// server, since until then the partitions that the replies show cannot leave. If it reports false, the replies may
// not be sent: they are dropped, and the session ends with an error.
func (s *session) showsFirst(cmd *table.Command) bool {
	if s.shown() {
		return true
	}
	s.Out, s.Mark, s.ending = s.Out[:s.Base], s.Base, true
	return s.leave(cmd, errUncertain)
}

// told reports whether the client is to be told where a partition is that is not here. While the partition is on its
// way here, only strict clients are: the others have perhaps just been sent here by the server that had it, and would
// be sent to and fro until this server sees the partition in the map, too.
func (s *session) told(m *partition.Map, number int) bool {
	return s.strict || s.redirect && m.Next[number] != s.srv.cfg.Cluster.ID
}

// leaves reports whether the server is leaving the map, or is no longer in it. It will soon not be there to forward
// anything, and many cluster clients look at the map again only when they have been told MOVED.
func (c *Cluster) leaves(m *partition.Map) bool {
	me, ok := m.Server(c.ID)
	return !ok || me.Leaving
}

// leave ends a command that was not carried out here. If err is not nil it is the reply. It returns false: the
// command is not to be tried again.
func (s *session) leave(cmd *table.Command, err error) (again bool) {
	if cmd.Name == "exec" {
		s.endMulti()
	}
	if err != nil {
		s.fail(err)
	}
	s.observe(cmd, nil)
	s.info.last.Store(cmd)
	s.Settle()
	return false
}

func moved(slot int, addr string) error {
	return reply.Error("MOVED " + strconv.Itoa(slot) + " " + addr)
}

// onlyReads reports whether a command only reads, and so may be carried out twice.
func (s *session) onlyReads(cmd *table.Command) bool {
	if cmd.Name == "exec" {
		return !slices.ContainsFunc(s.queue, func(q queued) bool { return q.cmd.Flags&table.Read == 0 })
	}
	return cmd.Flags&table.Read != 0
}

// forward has another server carry out a command, by the link h or by a pooled link if h is nil, and appends the
// reply. ErrUnsent says that the command may be tried again: it was not sent, or it only reads, or the server replied
// MOVED. A server that replies MOVED does not have the partition and has carried out nothing; the map may name a
// server too early or too late.
func (s *session) forward(h *forward.Held, addr string, cmd *table.Command, args [][]byte) error {
	cmds := [][][]byte{args}
	var out []byte
	var err error
	if cmd.Name == "exec" {
		cmds = [][][]byte{{[]byte("multi")}}
		for _, q := range s.queue {
			if q.cmd.Flags&table.Conn != 0 { // the other server would take it to be about the link
				return errConnAway
			}
			cmds = append(cmds, q.args)
		}
		cmds = append(cmds, args)
	}
	s.srv.stats.forwarded.Add(1)
	if h != nil {
		out, err = h.Do(s.Context(), s.Ver, s.Out, cmds...)
	} else {
		out, err = s.srv.cfg.Cluster.Links.Do(s.Context(), addr, s.Ver, s.Out, cmds...)
	}
	var refused *forward.ReplyError
	switch {
	case errors.As(err, &refused):
		err = reply.Error(refused.Text)
	case errors.Is(err, forward.ErrUncertain) && !s.onlyReads(cmd):
		return errUncertain
	case errors.Is(err, forward.ErrTooLong):
		return reply.ErrOutput
	case errors.Is(err, forward.ErrUncertain):
		return forward.ErrUnsent
	case err == nil && bytes.HasPrefix(out[len(s.Out):], []byte("-MOVED ")):
		return forward.ErrUnsent
	case err == nil:
		s.Out = out
	}
	if refused != nil && strings.HasPrefix(refused.Text, "MOVED ") {
		return forward.ErrUnsent
	}
	return err
}
