package resp

import (
	"iter"
	"polder/resp/proto"
	"polder/resp/reply"
	"strings"
)

// handler runs a command. It appends the reply to s.out, or returns an error,
// which becomes the reply. It may be run again if it returns
// far.ErrWouldBlock without having changed anything.
type handler func(s *session, a [][]byte) error

type flags uint16

const (
	flagWrite      flags = 1 << iota // changes keys: locks them for writing
	flagRead                         // reads keys
	flagFast                         // constant time
	flagAdmin                        // for operators
	flagNoAuth                       // allowed before AUTH
	flagNoMulti                      // refused in a transaction
	flagImmediate                    // runs at once in a transaction
	flagRefused                      // DEBUG, which Redis too refuses by default
	flagLoading                      // allowed while the server has no memory yet
	flagBlind                        // needs to know whether its keys exist, and not their values
	flagUnpaused                     // runs during CLIENT PAUSE
	flagSubscribed                   // allowed to a subscriber with version 2 of the protocol
	flagStandby                      // allowed while another server has the heap
	flagEach                         // without a key: about all partitions that are here
	flagMerge                        // its handler goes through them
)

var flagNames = []struct {
	f    flags
	name string
}{
	{flagWrite, "write"}, {flagRead, "readonly"}, {flagFast, "fast"},
	{flagAdmin, "admin"}, {flagNoAuth, "no_auth"}, {flagNoMulti, "no_multi"},
}

// command is an entry of the command table, immutable once the table is made.
type command struct {
	id                int    // its place in the table
	name              string // lower case; "config|get" for a subcommand
	arity             int    // number of arguments with the name; at least -arity if negative
	flags             flags
	first, last, step int // positions of keys; last counts from the end if negative
	run               handler
	subs              map[string]*command
	group             string

	// lockAll, if set, reports whether the command locks everything.
	lockAll func(s *session) bool
	// lockKeys, if set, adds stripes to s.wanted and reports whether they are
	// to be locked for writing.
	lockKeys func(s *session) bool
}

// reads reports whether the command reads keys that it is told: WATCH does not read them, and
// RANDOMKEY is told none.
func (c *command) reads() bool { return c.flags&(flagRead|flagImmediate) == flagRead && c.first != 0 }

// keys iterates over the keys among args, which may be too few.
func (c *command) keys(args [][]byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if c.first == 0 {
			return
		}
		last := c.last
		if last < 0 {
			last += len(args)
		}
		for i := c.first; i <= last && i < len(args); i += c.step {
			if !yield(args[i]) {
				return
			}
		}
	}
}

// blind reports whether the command does without the present values of its
// keys.
func (c *command) blind(args [][]byte) bool {
	if c.flags&flagBlind == 0 {
		return false
	}
	for i := 3; c.name == "set" && i < len(args); i++ {
		if proto.Is(args[i], "get") {
			return false
		}
	}
	return true
}

// table finds commands by name.
type table struct {
	by map[string]*command
	n  int // commands and subcommands
}

// maxName is the length of the longest command name that there may be.
const maxName = 32

// find looks up a name in any case, without allocating.
func find(m map[string]*command, name []byte) *command {
	var lower [maxName]byte
	if len(name) > maxName {
		return nil
	}
	for i, c := range name {
		if c-'A' < 26 {
			c |= 0x20
		}
		lower[i] = c
	}
	return m[string(lower[:len(name)])]
}

// lookup finds the command or subcommand that args name, and checks the
// number of arguments.
func (t *table) lookup(args [][]byte) (*command, error) {
	cmd := find(t.by, args[0])
	if cmd == nil {
		return nil, unknownCommand(args)
	}
	if cmd.subs != nil && len(args) > 1 {
		sub := find(cmd.subs, args[1])
		if sub == nil {
			return nil, reply.Error("ERR unknown subcommand '" + proto.Clip(args[1], 128) + "'. Try " + strings.ToUpper(cmd.name) + " HELP.")
		}
		cmd = sub
	}
	if len(args) != cmd.arity && (cmd.arity > 0 || len(args) < -cmd.arity) {
		return nil, reply.Error("ERR wrong number of arguments for '" + cmd.name + "' command")
	}
	return cmd, nil
}

func unknownCommand(args [][]byte) error {
	var list strings.Builder
	for _, a := range args[1:] {
		if list.Len() >= 128 {
			break
		}
		list.WriteString("'" + proto.Clip(a, 128-list.Len()) + "' ")
	}
	return reply.Error("ERR unknown command '" + proto.Clip(args[0], 128) + "', with args beginning with: " + list.String())
}
