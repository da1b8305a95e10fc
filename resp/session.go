package resp

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/resp/clientmem"
	"polder/resp/commands"
	"polder/resp/feed"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

// session is one client: a state machine that turns bytes into bytes. The
// driver that owns it gives it input in `in`, calls run, and takes replies from
// `Out`. Other goroutines touch nothing but the atomic fields.
type session struct {
	srv    *Server // the server whose client it is
	parser proto.Parser
	in     []byte // input not yet consumed; the driver's memory

	commands.Client
	// The data that Access uses: srv.data or, while a command runs, the partition that has its keys.
	part *part

	authed bool
	// entering is set while the client waits at the door for its password.
	entering bool
	ending   bool // close once Out is written

	multi    bool // between MULTI and EXEC
	abort    bool // a command was refused since MULTI
	queue    []queued
	queueLen int            // bytes in queue
	messages []feed.Message // those that EXEC publishes when it has succeeded

	replica replica
	dump    *dump   // the dump that SYNC has begun; nil if there is none
	snap    *copied // the snapshot whose parts the client reads; nil if there is none

	keyspace.Sight // what unsent replies show of srv.data
	away           // what it keeps about partitions

	mute  uint8      // what CLIENT REPLY has asked for
	news  *feed.Feed // messages of channels and lines of MONITOR; nil if there is no feed
	subs  feed.Subscriptions
	clock time.Duration // when the last command ended or run was called, since srv.since
	began time.Duration // when the command that runs was first tried, since srv.since

	mem    *clientmem.Account // what the client makes the server hold
	hangUp atomic.Pointer[func()]
	killed atomic.Bool      // by CLIENT KILL, or for what its feed holds: see listen
	unread atomic.Bool      // the client is disconnected because it does not read
	fed    func(*feed.Feed) // tells the driver that news has something; any goroutine may call it
	info   clientInfo
}

// queued is a command between MULTI and EXEC.
type queued struct {
	cmd  *table.Command
	args [][]byte
}

// Errors of a client's state, and the server's. The texts are Redis's.
const (
	errLoading      reply.Error = "LOADING Redis is loading the dataset in memory"
	errAuth         reply.Error = "NOAUTH Authentication required."
	errWrongPass    reply.Error = "WRONGPASS invalid username-password pair or user is disabled."
	errNoPassword   reply.Error = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
	errExecAbort    reply.Error = "EXECABORT Transaction discarded because of previous errors."
	errNested       reply.Error = "ERR MULTI calls can not be nested"
	errExecNoMulti  reply.Error = "ERR EXEC without MULTI"
	errDiscNoMulti  reply.Error = "ERR DISCARD without MULTI"
	errWatchInMulti reply.Error = "ERR WATCH inside MULTI is not allowed"
	errNotInMulti   reply.Error = "ERR Command not allowed inside a transaction"
	errMonitors     reply.Error = "ERR Replica can't interact with the keyspace" // as Redis says it
	errDebug        reply.Error = "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server."
)

// status is why run returned.
type status uint8

const (
	needInput    status = iota // all complete commands are done
	needFlush                  // Out is large: write it and call run again
	needFetch                  // see wants; fetch and call run again
	needResume                 // call run again when the server's pause is over
	sessionLogin               // the client has given the password at the door
	sessionEnd                 // write out, then close
)

// flushAt is the size of Out at which run asks for it to be written.
const flushAt = 64 << 10

func (srv *Server) newSession() *session {
	s := &session{srv: srv, authed: srv.password() == ""}
	s.MaxBulk, s.OutputLimit, s.Partitions, s.Each = srv.cfg.MaxBulk, srv.cfg.OutputLimit, len(srv.parts), s.each
	s.moveTo(srv.data)
	s.Ver, s.Limit = 2, srv.cfg.maxReply()
	s.parser.Limits = proto.Limits{MaxBulk: srv.cfg.MaxBulk, MaxArgs: srv.cfg.MaxArgs, MaxInline: srv.cfg.MaxInlineLen}
	s.parser.Unauth = !s.authed
	s.mem = srv.cfg.ClientMemory.Join()
	s.info.id = srv.nextID.Add(1)
	s.info.since = time.Now()
	return s
}

// close forgets the session. Nothing else may be called afterwards.
func (s *session) close() {
	s.endFeed()
	if s.dump != nil {
		s.dump.close()
	}
	s.endSnapshot()
	s.unwatch()
	s.forgetSights()
	s.Settle()
	s.queue, s.queueLen = nil, 0
	s.mem.Leave()
}

// footprint is what the session holds beside its driver's buffers, in bytes.
func (s *session) footprint() int {
	n := s.parser.Held() + s.queueLen + s.WatchHeld() + s.subs.Held()
	if s.snap != nil {
		n += s.snap.Held()
	}
	return n
}

// minRoom is the least room for input in a buffer that is made or grows.
const minRoom = 4 << 10

// grow returns buf, which holds the session's input so far, with room for more. It hardly more than doubles the size:
// what a client announces costs no memory before it has come.
func (s *session) grow(buf []byte) []byte {
	missing, free := s.parser.Missing(len(buf)), cap(buf)-len(buf)
	if free > 0 && (free >= missing || free >= max(len(buf), minRoom)) {
		return buf
	}
	size := 2*len(buf) + minRoom
	if missing > 1 { // it is known how long the argument is
		size = min(size, len(buf)+missing+minRoom)
	}
	s.parser.Forget()
	s.in = nil
	return clientmem.Grow(buf, size)
}

// run executes the complete commands in s.in and consumes them.
func (s *session) run() status {
	s.clock = time.Since(s.srv.since)
	s.Arrived = s.clock // the same for commands that came together
	for !s.ending {
		args, n, err := s.parser.Next(s.in)
		if err != nil {
			s.Out = proto.AppendError(s.Out, "ERR "+err.Error())
			s.srv.stats.protocolErrors.Add(1)
			s.ending = true
			break
		}
		if n == 0 {
			if len(s.in) > s.srv.cfg.maxCommand() {
				s.ending = true // as Redis does: beyond the query buffer limit
				break
			}
			return needInput
		}
		if args != nil {
			if why := s.exec(args); why != needInput {
				return why
			}
		}
		s.in = s.in[n:]
		if s.entering && s.authed {
			s.entering = false
			return sessionLogin
		}
		if len(s.Out)-s.Base >= flushAt {
			return needFlush
		}
	}
	s.in = nil
	return sessionEnd
}

// exec runs or queues one command, appends its reply and returns needInput. If the command would have to wait, it has
// done nothing and returns needFetch or needResume. If there is more of the reply, it returns needFlush.
func (s *session) exec(args [][]byte) status {
	if s.dump != nil {
		return s.dumpOn()
	}
	s.Mark = len(s.Out)
	cmd, err := s.srv.table.Lookup(args)
	if err != nil && proto.OfHTTP(args[0]) {
		s.srv.stats.protocolErrors.Add(1)
		s.ending = true
		return needInput
	}
	if err == nil {
		err = s.admit(cmd)
	}
	if err == nil && s.srv.parts != nil && s.multi && cmd.Flags&table.Immediate == 0 {
		err = s.mayQueue(cmd, args)
	}
	switch {
	case err != nil:
		s.abort = s.abort || s.multi
		s.Out = proto.AppendError(s.Out, err.Error())
		s.srv.stats.errors.Add(1)
	case s.paused(cmd):
		return needResume
	case s.multi && cmd.Flags&table.Immediate == 0:
		s.enqueue(cmd, args)
	case s.srv.parts != nil:
		if !s.performAway(cmd, args) {
			return needFetch
		}
	case !s.perform(cmd, args):
		return needFetch
	}
	if s.mute != muteNone {
		s.Out = s.Out[:s.Mark]
		if s.mute != muteAll {
			s.mute--
		}
	}
	if s.dump != nil {
		return needFlush
	}
	return needInput
}

// admit refuses commands that the client may not run now.
func (s *session) admit(cmd *table.Command) error {
	if !s.authed && cmd.Flags&table.NoAuth == 0 {
		return errAuth
	}
	if cmd.Flags&table.Loading == 0 && s.srv.data.IsLoading() && s.srv.parts == nil && (cmd.Flags&table.Standby == 0 || s.srv.masterNow().Self) {
		return errLoading
	}
	if cmd.Flags&table.Refused != 0 {
		return errDebug
	}
	if s.multi && cmd.Flags&table.NoMulti != 0 {
		return errNotInMulti
	}
	if cmd.Flags&(table.Read|table.Write) != 0 {
		if err := s.Space.Refuses(cmd.Flags&table.Write != 0); err != nil {
			return err
		}
	}
	if s.info.monitors.Load() && cmd.Flags&(table.Read|table.Write) != 0 {
		return errMonitors
	}
	if s.Ver == 2 && s.subs.Any() && cmd.Flags&table.Subscribed == 0 {
		return reply.Error("ERR Can't execute '" + cmd.Name + "': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context")
	}
	return nil
}

// perform runs a command under its locks. It reports false, and has done
// nothing, if the command would have to wait.
func (s *session) perform(cmd *table.Command, args [][]byte) bool {
	if s.Tries == 0 {
		s.began = s.clock
		s.pace(cmd, args)
	}
	once := cmd.Name == "exec" && s.runsOnce()
	if s.Tries > keyspace.MaxTries || once {
		s.waitFor(args)
	}
	ver := s.Ver
	s.CountAnew(cmd.Reads())
	s.lockFor(cmd, args)
	err := s.srv.table.run[cmd.ID](s, args)
	s.End(err)
	blocked := err != nil && s.Blocked(err)
	full := err != nil && s.Space.Kept() && errors.Is(err, far.ErrStoreFull)
	if !blocked && !full && s.srv.monitors.Load() != nil {
		s.tell(cmd, args) // under the locks: monitors see changes in the order in which they are made
	}
	if !blocked && (s.Locked() || cmd.Flags&(table.Read|table.Write) != 0) {
		s.looked()
	}
	s.Unlock()
	if err != nil {
		s.Out = s.Out[:s.Mark]
		s.Ver = ver // which a HELLO in a transaction may have changed
		if blocked {
			s.Tries++
			return false
		}
		if full && !once && s.roomier(args) {
			return s.perform(cmd, args)
		}
		if s.multi && cmd.Name == "exec" {
			s.endMulti()
		}
		s.fail(err)
	}
	s.srv.stats.hits.Add(s.Hits)
	s.srv.stats.misses.Add(s.Misses)
	s.observe(cmd, args)
	if s.Tries != 0 || s.MayWait() {
		s.Settle()
	}
	s.info.last.Store(cmd)
	return true
}

// pace has a command that writes wait if the journal is long. Other clients go on meanwhile.
func (s *session) pace(cmd *table.Command, args [][]byte) {
	n := 0
	switch {
	case !s.Space.Slows(): // fast path
		return
	case cmd.Flags&table.Write != 0:
		for _, a := range args {
			n += len(a)
		}
	case cmd.Name == "exec" && slices.ContainsFunc(s.queue, func(q queued) bool { return q.cmd.Flags&table.Write != 0 }):
		n = s.queueLen
	default:
		return
	}
	if wait := s.Space.Pace(n); wait > 0 {
		s.waitFor(args)
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.Context().Done():
		}
	}
}

// roomier waits for room in far memory for a command that has found none, and reports whether the command is to be
// tried again. Other clients go on meanwhile.
func (s *session) roomier(args [][]byte) bool {
	s.Tries++
	s.waitFor(args)
	return s.Space.AwaitRoom(s.Context())
}

// fail appends the reply for an error.
func (s *session) fail(err error) {
	s.srv.stats.errors.Add(1)
	text := reply.Text(err)
	switch {
	case len(text) > 4 && text[:5] == "LOST ":
		s.srv.stats.lost.Add(1)
	case len(text) > 8 && text[:9] == "TRYAGAIN ":
		s.srv.stats.timeouts.Add(1)
	}
	s.Out = proto.AppendError(s.Out, text)
}

// lockFor takes the locks that a command needs for its keys.
func (s *session) lockFor(cmd *table.Command, args [][]byte) {
	write := cmd.Flags&table.Write != 0
	switch {
	case cmd.Flags&table.All != 0:
		s.WantAll()
	case cmd.Keys.First == 0 || cmd.Flags&table.Names != 0:
		write = cmd.Name == "exec" && s.wantQueue()
	case cmd.Keys.Last == cmd.Keys.First || len(args) == cmd.Keys.First+1:
		// Fast path: one key.
		s.LockKey(args[cmd.Keys.First], write, args)
		return
	default:
		s.wantKeys(cmd, args)
	}
	s.LockWanted(write, args)
}

// wantKeys adds a command's keys to those to be locked.
func (s *session) wantKeys(cmd *table.Command, args [][]byte) {
	if cmd.Flags&table.Names != 0 {
		return
	}
	for key := range cmd.KeysOf(args) {
		s.Want(key)
	}
}

// observe counts a command that has run since began.
func (s *session) observe(cmd *table.Command, args [][]byte) {
	s.clock = time.Since(s.srv.since)
	took := s.clock - s.began
	if s.srv.slow.Takes(took) {
		s.srv.slow.Add(redacted(cmd, args), took, s.info.shown(), load(&s.info.name))
	}
	s.srv.latency.Observe(cmd.ID, cmd.Flags&table.Fast != 0, took)
}

// waitFor lets the command wait from now on, until its deadline.
func (s *session) waitFor(args [][]byte) {
	if s.MayWait() {
		return
	}
	if s.OnWait != nil {
		s.OnWait(args)
	}
	s.srv.stats.waits.Add(1)
	s.Wait()
}

// maxFetch bounds the keys of one fetch for one client.
const maxFetch = 256

// wants is what sessions that blocked need fetched.
type wants struct {
	keys   [][]byte // entries
	heads  [][]byte // entries of which only the presence matters
	blocks [][]byte // blocks of large hashes
}

func (w *wants) clear() {
	clear(w.keys)
	clear(w.heads)
	clear(w.blocks)
	w.keys, w.heads, w.blocks = w.keys[:0], w.heads[:0], w.blocks[:0]
}

func (w *wants) add(cmd *table.Command, args [][]byte) {
	if cmd.Flags&table.Names != 0 {
		return
	}
	list := &w.keys
	if cmd.DoesWithout(args) {
		list = &w.heads
	}
	for key := range cmd.KeysOf(args) {
		*list = append(*list, key)
	}
}

func (w *wants) len() int { return len(w.keys) + len(w.heads) }

// wants adds what to fetch after needFetch: the keys of the command that
// blocked and of what the client has pipelined behind it.
func (s *session) wants(w *wants) {
	w.blocks = append(w.blocks, s.TakeMissedBlocks()...)
	p := proto.Parser{Limits: s.parser.Limits}
	defer p.Release()
	queue := s.queue
	start := w.len()
	for rest := s.in; w.len()-start < maxFetch; {
		args, n, err := p.Next(rest)
		if err != nil || n == 0 {
			break
		}
		rest = rest[n:]
		if args == nil {
			continue
		}
		cmd, err := s.srv.table.Lookup(args)
		if err != nil || !s.wantsHere(cmd, args) {
			continue
		}
		if cmd.Name == "exec" {
			for _, q := range queue {
				w.add(q.cmd, q.args)
			}
			queue = nil // another EXEC has another queue
		}
		w.add(cmd, args)
	}
}

// fetched tells the session that what it wanted has been fetched. If the fetch failed, the command waits on its own.
func (s *session) fetched(err error) {
	if err != nil {
		s.Tries = keyspace.MaxTries + 1
	}
}
