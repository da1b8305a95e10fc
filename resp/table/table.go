package table

import (
	"iter"
	"strings"

	"polder/resp/proto"
	"polder/resp/reply"
)

// Flags say what a command does, and when it may.
type Flags uint32

const (
	Write      Flags = 1 << iota // changes keys: locks them for writing
	Read                         // reads keys
	Fast                         // constant time
	Admin                        // for operators
	NoAuth                       // allowed before AUTH
	NoMulti                      // refused in a transaction
	Immediate                    // runs at once in a transaction, and is not queued
	Refused                      // DEBUG, which Redis too refuses by default
	Loading                      // allowed while the server has no memory yet
	Blind                        // needs to know whether its keys exist, and not their values
	Unpaused                     // runs during CLIENT PAUSE
	Subscribed                   // allowed to a subscriber with version 2 of the protocol
	Standby                      // allowed while another server has the heap
	Each                         // if no key is given, it is about all partitions that are here
	Merge                        // with Each: its handler goes through the partitions
	All                          // changes all keys
	Conn                         // about the client's connection: no server carries it out for another
	Names                        // its keys are names of channels: they have a slot like keys, and that is all
)

var flagNames = []struct {
	f    Flags
	name string
}{
	{Write, "write"}, {Read, "readonly"}, {Fast, "fast"},
	{Admin, "admin"}, {NoAuth, "no_auth"}, {NoMulti, "no_multi"},
}

// Command is an entry of a table, immutable once the table is made.
type Command struct {
	ID    int    // its place in the table
	Name  string // lower case; "config|get" for a subcommand
	Arity int    // number of arguments, the name included; if negative, at least -Arity
	Flags Flags
	Keys  At
	Group string
	Subs  map[string]*Command
}

// At is where a command has its keys: the position of the first key, that of the last (counted from the end if
// negative), and the distance from one key to the next.
type At struct{ First, Last, Step int }

// Reads reports whether the command reads keys that are among its arguments. WATCH does not read its keys, and
// RANDOMKEY has none.
func (c *Command) Reads() bool { return c.Flags&(Read|Immediate) == Read && c.Keys.First != 0 }

// WritesOrPublishes reports whether CLIENT PAUSE WRITE stops the command, as in Redis.
func (c *Command) WritesOrPublishes() bool {
	return c.Flags&Write != 0 || c.Name == "publish" || c.Name == "spublish"
}

// KeysOf iterates over the keys in args. There may be too few arguments.
func (c *Command) KeysOf(args [][]byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if c.Keys.First == 0 {
			return
		}
		last := c.Keys.Last
		if last < 0 {
			last += len(args)
		}
		for i := c.Keys.First; i <= last && i < len(args); i += c.Keys.Step {
			if !yield(args[i]) {
				return
			}
		}
	}
}

// DoesWithout reports whether the command, with these arguments, does not need the present values of its keys.
func (c *Command) DoesWithout(args [][]byte) bool {
	if c.Flags&Blind == 0 {
		return false
	}
	for i := 3; c.Name == "set" && i < len(args); i++ {
		if proto.Is(args[i], "get") {
			return false
		}
	}
	return true
}

// Table finds commands by name. New makes a table, and Define fills it; after that, any number of goroutines may look
// commands up.
type Table struct {
	By    map[string]*Command
	n     int
	group string
}

// New makes an empty table.
func New() *Table { return &Table{By: make(map[string]*Command)} }

// Len is how many commands and subcommands there are.
func (t *Table) Len() int { return t.n }

// Group sets the group of the commands that are defined next.
func (t *Table) Group(name string) { t.group = name }

// Define adds a command, or a subcommand of a command that was added before.
func (t *Table) Define(name string, arity int, f Flags, k At) *Command {
	c := &Command{ID: t.n, Name: name, Arity: arity, Flags: f, Keys: k, Group: t.group}
	t.n++
	parent, sub, nested := strings.Cut(name, "|")
	if !nested {
		t.By[name] = c
		return c
	}
	p := t.By[parent]
	if p.Subs == nil {
		p.Subs = make(map[string]*Command)
	}
	p.Subs[sub] = c
	return c
}

// maxName is the length of the longest possible command name.
const maxName = 32

// find looks up a name in any case, without allocating.
func find(m map[string]*Command, name []byte) *Command {
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

// Lookup finds the command or subcommand that args name, and checks the
// number of arguments.
func (t *Table) Lookup(args [][]byte) (*Command, error) {
	cmd := find(t.By, args[0])
	if cmd == nil {
		return nil, unknownCommand(args)
	}
	if cmd.Subs != nil && len(args) > 1 {
		sub := find(cmd.Subs, args[1])
		if sub == nil {
			return nil, reply.Error("ERR unknown subcommand '" + proto.Clip(args[1], 128) + "'. Try " + strings.ToUpper(cmd.Name) + " HELP.")
		}
		cmd = sub
	}
	if len(args) != cmd.Arity && (cmd.Arity > 0 || len(args) < -cmd.Arity) {
		return nil, reply.Error("ERR wrong number of arguments for '" + cmd.Name + "' command")
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
