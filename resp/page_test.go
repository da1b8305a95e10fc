package resp

import (
	"fmt"
	"strings"
	"testing"

	"polder/internal/docpage"
)

// TestTheCommandsPageIsTrue makes docs/reference/commands.md of the command table.
func TestTheCommandsPageIsTrue(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Commands\n\n" +
		"`polder up` and `polder serve` answer as Redis 7 does, in protocol 2 and 3. There is one database, number 0. " +
		"A command in the table may be in a transaction unless it says otherwise. [errors.md](errors.md) has what they answer that Redis does not.\n\n" +
		"This page is made by `make docs`, of the table that the server goes by.\n")
	for _, g := range []struct{ name, title string }{
		{"string", "Strings"}, {"generic", "Keys"}, {"hash", "Hashes"}, {"transactions", "Transactions"}, {"connection", "Connection"}, {"server", "Server"}, {"cluster", "Cluster"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| command | arguments | |\n|---|---|---|\n", g.title)
		for _, name := range sortedNames(commandTable().by) {
			c := commandTable().by[name]
			if c.group != g.name {
				continue
			}
			if c.subs == nil {
				row(&b, c)
				continue
			}
			for _, sub := range sortedNames(c.subs) {
				row(&b, c.subs[sub])
			}
		}
	}
	b.WriteString("\n`COMMAND DOCS NAME` says the same to programs.\n\n" +
		"## memcached\n\n" +
		"With `--tier soft --memcached ADDRESS`: `get`, `gets`, `gat`, `gats`, `set`, `add`, `replace`, `append`, `prepend`, `cas`, `delete`, `incr`, `decr`, `touch`, " +
		"`flush_all`, `version`, `verbosity`, `stats`, `quit`, and the meta commands `mn`, `mg`, `ms`, `md`, `ma`, `me`.\n")
	docpage.Check(t, "../docs/reference/commands.md", b.String())
}

func row(b *strings.Builder, c *command) {
	var what []string
	for _, f := range []struct {
		f    flags
		text string
	}{
		{flagWrite, "changes keys"}, {flagRead, "reads keys"}, {flagAdmin, "for operators"}, {flagNoAuth, "before the password, too"},
		{flagNoMulti, "not in a transaction"}, {flagRefused, "refused, as Redis does by default"}, {flagEach, "with `--partitions` about those of the server"},
	} {
		if c.flags&f.f != 0 {
			what = append(what, f.text)
		}
	}
	n, more := c.arity, ""
	if n < 0 {
		n, more = -n, " or more"
	}
	n -= 1 + strings.Count(c.name, "|")
	fmt.Fprintf(b, "| `%s` | %d%s | %s |\n", strings.ToUpper(strings.ReplaceAll(c.name, "|", " ")), n, more, strings.Join(what, ", "))
}
