package resp

import (
	"fmt"
	"strings"
	"testing"

	"polder/internal/docpage"
	"polder/resp/table"
)

// TestTheCommandsPageIsTrue makes docs/reference/commands.md of the command table.
func TestTheCommandsPageIsTrue(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Commands\n\n" +
		"`polder up` and `polder serve` answer as Redis 7 does, in protocol 2 and 3. There is one database, number 0. " +
		"A command in the table may be in a transaction unless it says otherwise. [errors.md](errors.md) has what they answer that Redis does not.\n\n" +
		"This page is made by `make docs`, of the table that the server goes by.\n")
	for _, g := range []struct{ name, title string }{
		{"string", "Strings"}, {"generic", "Keys"}, {"hash", "Hashes"}, {"transactions", "Transactions"}, {"connection", "Connection"}, {"pubsub", "Publish and subscribe"}, {"server", "Server"}, {"cluster", "Cluster"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| command | arguments | |\n|---|---|---|\n", g.title)
		for _, name := range table.SortedNames(commandTable().By) {
			c := commandTable().By[name]
			if c.Group != g.name {
				continue
			}
			if c.Subs == nil {
				row(&b, c)
				continue
			}
			for _, sub := range table.SortedNames(c.Subs) {
				row(&b, c.Subs[sub])
			}
		}
	}
	b.WriteString("\n`COMMAND DOCS NAME` says the same to programs.\n\n" +
		"## memcached\n\n" +
		"With `--tier soft --memcached ADDRESS`: `get`, `gets`, `gat`, `gats`, `set`, `add`, `replace`, `append`, `prepend`, `cas`, `delete`, `incr`, `decr`, `touch`, " +
		"`flush_all`, `version`, `verbosity`, `stats`, `quit`, and the meta commands `mn`, `mg`, `ms`, `md`, `ma`, `me`.\n")
	docpage.Check(t, "../docs/reference/commands.md", b.String())
}

func row(b *strings.Builder, c *table.Command) {
	var what []string
	for _, f := range []struct {
		f    table.Flags
		text string
	}{
		{table.Write, "changes keys"}, {table.Read, "reads keys"}, {table.Admin, "for operators"}, {table.NoAuth, "before the password, too"},
		{table.NoMulti, "not in a transaction"}, {table.Refused, "refused, as Redis does by default"}, {table.Each, "with `--partitions` about those of the server"},
	} {
		if c.Flags&f.f != 0 {
			what = append(what, f.text)
		}
	}
	n, more := c.Arity, ""
	if n < 0 {
		n, more = -n, " or more"
	}
	n -= 1 + strings.Count(c.Name, "|")
	fmt.Fprintf(b, "| `%s` | %d%s | %s |\n", strings.ToUpper(strings.ReplaceAll(c.Name, "|", " ")), n, more, strings.Join(what, ", "))
}
