package memnode

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"polder/memnode/component"
	"polder/memnode/wire"
	"polder/verbs"
)

// The ways of managing memory that a Node can run. wire.Managers describes each of them.
const (
	Native   = wire.Native
	OneSided = wire.OneSided
	RPCMW    = wire.RPCMW
	FineMem  = wire.FineMem
	MemFD    = wire.MemFD
	RPCMW1   = wire.RPCMW1
	FineMR   = wire.FineMR
	StaticMR = wire.StaticMR
	ODRP     = wire.ODRP
)

// A ticker is a manager that has something to do from time to time. The control goroutine calls tick with each value
// that ticks delivers.
type ticker interface {
	ticks() <-chan time.Time
	tick(woken time.Time)
	// count brings the values that stats reports up to date.
	count()
}

var _, _ ticker = (*onesided)(nil), (*finemem)(nil)

// DefaultManager is the manager of a Config that names none, if the device has an allocation verb; OtherManager is
// the manager if the device has none.
const (
	DefaultManager = Native
	OtherManager   = RPCMW
)

// A manager is the node's half of a way of managing memory: it decides which client has which chunk, and how the
// client gets it. The node does the rest: it takes connections, keeps sessions and their grace periods, and carries
// messages.
//
// Its methods are called by the control goroutine, except that stats may be
// called by anyone.
type manager interface {
	// welcome adds the manager's fields to the Welcome w for c, which connects with h.
	welcome(c *client, h *wire.Hello, w *wire.Welcome)
	// connect answers a request of c to connect a queue pair other than the management one. An error is the reason to
	// refuse it.
	connect(c *client, h *wire.Hello, req verbs.ConnRequest) error
	// answer executes a request, and sets the reply's Status and N. The
	// grants are the reply's list; they are valid until the next call.
	answer(c *client, req *wire.Request, reply *wire.Reply) []wire.Grant
	// look is called when something has happened to c: a message has come, or somebody has called n.ready.add(c)
	// because of an event. An error means that c must be disconnected.
	look(c *client) error
	// disconnect is called when c's connection is gone: it makes everything that c's session has inaccessible, and
	// releases what connect made.
	disconnect(c *client)
	// reclaim takes back everything that s has, which is disconnected, and returns how many chunks that was.
	reclaim(s *session) int
	// forget is called when the node forgets s, which has nothing any more.
	forget(s *session)
	// held is how many chunks s has.
	held(s *session) int
	// space is what s may still allocate.
	space(s *session) wire.Space
	// work does a little of the background work, and reports whether there is more to do.
	work() bool
	// stats sets those fields of s that the manager knows.
	stats(s *Stats)
	// close gives the memory back. There are no clients any more.
	close() error
}

// A restorer is a manager whose memory can outlive the process.
type restorer interface {
	// restore gives s, whose client is away, the chunks that it had in an earlier process.
	restore(s *session, chunks []uint32)
}

var _, _ restorer = (*onesided)(nil), (*rpc)(nil)

// A teller is a manager that can tell at any time, in any goroutine, which chunks a session has.
type teller interface {
	chunksOf(s *session) component.Chunks
}

var _, _ teller = (*onesided)(nil), (*rpc)(nil)

// managers has the constructor of each manager, by name. It needs n.pd, n.mem and n.cfg. MemFD's constructor is added
// by an init function.
var managers = map[string]func(n *Node) (manager, error){
	OneSided: newOneSided,
	Native:   newOneSided,
	RPCMW:    newRPC,
	RPCMW1:   newRPC,
	FineMR:   newRPC,
	StaticMR: newRPC,
	FineMem:  newFineMem,
	ODRP:     newODRP,
}

// checkManager refuses a name that is not in the table.
func checkManager(name string) error {
	if managers[name] == nil {
		return fmt.Errorf("the manager is %q, want one of %s", name, strings.Join(slices.Sorted(maps.Keys(managers)), ", "))
	}
	return nil
}
