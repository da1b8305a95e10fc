package table

import (
	"maps"
	"slices"
	"strings"

	"polder/resp/proto"
	"polder/resp/reply"
)

// List replies to COMMAND. It, like the methods below, appends the reply to w, or returns the error with which the
// command fails.
func (t *Table) List(w *reply.Writer, _ [][]byte) error {
	names := SortedNames(t.By)
	w.Array(len(names))
	for _, n := range names {
		describe(w, t.By[n])
	}
	return nil
}

// Count replies to COMMAND COUNT.
func (t *Table) Count(w *reply.Writer, a [][]byte) error {
	w.Int(int64(len(t.By)))
	return nil
}

// Info replies to COMMAND INFO.
func (t *Table) Info(w *reply.Writer, a [][]byte) error {
	if len(a) == 2 {
		return t.List(w, a)
	}
	w.Array(len(a) - 2)
	for _, n := range a[2:] {
		if c := t.Full(n); c != nil {
			describe(w, c)
		} else {
			w.Out = proto.AppendNullArray(w.Out, w.Ver)
		}
		if err := w.Over(); err != nil {
			return err
		}
	}
	return nil
}

// Names replies to COMMAND LIST.
func (t *Table) Names(w *reply.Writer, a [][]byte) error {
	names := SortedNames(t.By)
	w.Array(len(names))
	for _, n := range names {
		w.Str(n)
	}
	return nil
}

// Docs replies to COMMAND DOCS with the little that a table knows: the rest is in Redis's documentation.
func (t *Table) Docs(w *reply.Writer, a [][]byte) error {
	var list []*Command
	if len(a) == 2 {
		for _, n := range SortedNames(t.By) {
			list = append(list, t.By[n])
		}
	}
	for _, n := range a[2:] {
		if c := t.Full(n); c != nil {
			list = append(list, c)
		}
	}
	w.Map(len(list))
	for _, c := range list {
		w.Str(c.Name)
		w.Map(2)
		w.Str("summary")
		w.Str("As in Redis " + proto.RedisVersion)
		w.Str("group")
		w.Str(c.Group)
		if err := w.Over(); err != nil {
			return err
		}
	}
	return nil
}

// GetKeys replies to COMMAND GETKEYS.
func (t *Table) GetKeys(w *reply.Writer, a [][]byte) error {
	c, err := t.Lookup(a[2:])
	if err != nil {
		if find(t.By, a[2]) == nil {
			return reply.Error("ERR Invalid command specified")
		}
		return reply.Error("ERR Invalid number of arguments specified for command")
	}
	var keys [][]byte
	for k := range c.KeysOf(a[2:]) {
		if c.Flags&Names != 0 {
			break
		}
		keys = append(keys, k)
	}
	if keys == nil {
		return reply.Error("ERR The command has no key arguments")
	}
	w.Array(len(keys))
	for _, k := range keys {
		w.Bulk(k)
	}
	return nil
}

// Full finds a command by its full name, such as "config" or "config|get".
func (t *Table) Full(name []byte) *Command {
	parent, sub, nested := strings.Cut(string(name), "|")
	c := find(t.By, []byte(parent))
	if c != nil && nested {
		return find(c.Subs, []byte(sub))
	}
	return c
}

// describe appends what COMMAND INFO says of a command.
func describe(w *reply.Writer, c *Command) {
	w.Array(10)
	w.Str(c.Name)
	w.Int(int64(c.Arity))
	var names []string
	for _, f := range flagNames {
		if c.Flags&f.f != 0 {
			names = append(names, f.name)
		}
	}
	w.Out = proto.AppendSet(w.Out, w.Ver, len(names))
	for _, n := range names {
		w.Status(n)
	}
	w.Int(int64(c.Keys.First))
	w.Int(int64(c.Keys.Last))
	w.Int(int64(c.Keys.Step))
	w.Out = proto.AppendSet(w.Out, w.Ver, 1)
	w.Status("@" + c.Group)
	w.Array(0) // tips
	w.Array(0) // key specifications
	subs := SortedNames(c.Subs)
	w.Array(len(subs))
	for _, n := range subs {
		describe(w, c.Subs[n])
	}
}

// Help lists the subcommands of a container.
func (t *Table) Help(w *reply.Writer, a [][]byte) error {
	c := find(t.By, a[0])
	names := SortedNames(c.Subs)
	w.Array(len(names) + 1)
	w.Status(strings.ToUpper(c.Name) + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")
	for _, n := range names {
		w.Status(strings.ToUpper(n))
	}
	return nil
}

// SortedNames returns the names of commands in the order in which they are shown.
func SortedNames(m map[string]*Command) []string {
	return slices.Sorted(maps.Keys(m))
}
