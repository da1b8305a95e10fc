package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/internal/config"
	"polder/internal/docpage"
)

// TestTheFlagsPageIsTrue makes docs/reference/flags.md of the flags.
func TestTheFlagsPageIsTrue(t *testing.T) {
	docpage.Check(t, "../../docs/reference/flags.md", flagsPage(newRoot(nil)))
}

// flagRow is a flag of one or several daemons.
type flagRow struct {
	of                   []string
	name, value, meaning string
}

// flagsPage has a table of the daemons' flags, and one for each command that has others.
func flagsPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# Flags

A value comes from the flag, else from the environment, else from the YAML file that ` + "`--config`" + ` names. The key in the file is the flag's name; the variable is the same in capital letters behind ` + "`POLDER_`" + `: ` + "`--op-timeout`" + ` is ` + "`POLDER_OP_TIMEOUT`" + ` and ` + "`op-timeout:`" + `. Sizes read ` + "`64MiB`" + `, durations ` + "`5s`" + `. A wrong value or an unknown key is refused at start with what was expected.

` + "`polder config DAEMON`" + ` takes the flags of the daemon, prints what it would be configured by and where each value comes from, and with ` + "`--check`" + ` only refuses what is wrong. ` + "`deploy/config`" + ` has a file for each daemon to begin with.

SIGHUP has a daemon read the log level, the password, the administrative token and the certificates anew.

This page is made by ` + "`make docs`" + `, of what ` + "`--help`" + ` says.

## Daemons

| flag | of | default | |
|---|---|---|---|
`)
	daemons := []string{"up", "serve", "serve files", "node", "broker", "share", "coordinator", "witness"}
	var flags []flagRow
	for _, name := range daemons {
		cmd, _, err := root.Find(strings.Fields(name))
		if err != nil {
			panic(err)
		}
		for _, f := range flagsOf(cmd) {
			i := slices.IndexFunc(flags, func(g flagRow) bool { return g.name == f.name && g.value == f.value && g.meaning == f.meaning })
			if i < 0 {
				flags = append(flags, f)
				i = len(flags) - 1
			}
			flags[i].of = append(flags[i].of, name)
		}
	}
	slices.SortStableFunc(flags, func(a, b flagRow) int { return strings.Compare(a.name, b.name) })
	for _, f := range flags {
		of := strings.Join(f.of, ", ")
		if len(f.of) == len(daemons) {
			of = "all"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", f.name, of, f.value, f.meaning)
	}
	forEach(root, func(cmd *cobra.Command) {
		own := flagsOf(cmd)
		if !cmd.IsAvailableCommand() || len(own) == 0 || slices.Contains(daemons, strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "polder "), "config ")) {
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n| flag | default | |\n|---|---|---|\n", cmd.CommandPath(), cmd.Short)
		for _, f := range own {
			fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.name, f.value, f.meaning)
		}
	})
	return b.String()
}

func flagsOf(cmd *cobra.Command) (list []flagRow) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value := f.DefValue
		_, usage := pflag.UnquoteUsage(f)
		switch {
		case strings.Contains(usage, "the default is"), value == "[]":
			value = "" // it depends on the machine, and the text says how
		case value == "" || value == "false":
		default:
			value = "`" + value + "`"
		}
		list = append(list, flagRow{name: f.Name, value: value, meaning: strings.ReplaceAll(usage, "|", "\\|")})
	})
	return list
}

// TestCommandsInDocumentsExist: what looks like a command of polder's in a document,
// in text or in a block, is one, with flags that it has.
func TestCommandsInDocumentsExist(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	span := regexp.MustCompile("(?m)(?:`(?:[A-Z_]+=\\S+ )?|^(?:\\$ )?(?:go run \\./cmd/)?)(polder [a-z][^`\n]*)")
	found := 0
	for _, doc := range append(append(docs, more...), "../../README.md", "../../ARCHITECTURE.md", "../../bench/README.md") {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range span.FindAllStringSubmatch(string(b), -1) {
			args := strings.Fields(m[1])[1:]
			if len(args[0]) > 12 || strings.Trim(args[0], "abcdefghijklmnopqrstuvwxyz") != "" {
				continue // a sentence, or what a command prints
			}
			root := newRoot(nil)
			cmd, rest, err := root.Find(goStyle(args))
			if err != nil || cmd == root {
				if strings.Contains(string(b), "`"+m[1]) || strings.Contains(string(b), "$ "+m[1]) {
					t.Errorf("%s: there is no %q", doc, m[1])
				}
				continue
			}
			found++
			for _, a := range rest {
				name, ok := strings.CutPrefix(a, "--")
				if name, _, _ = strings.Cut(name, "="); ok && cmd.Flags().Lookup(name) == nil && name != "help" {
					t.Errorf("%s: %q: there is no --%s", doc, m[1], name)
				}
			}
		}
	}
	if found < 60 {
		t.Errorf("found %d commands, want at least 60: are these the documents?", found)
	}
}

// TestEveryDaemonIsConfiguredAlike: who takes a file takes the environment, too.
func TestEveryDaemonIsConfiguredAlike(t *testing.T) {
	root := newRoot(nil)
	for _, name := range []string{"up", "serve", "serve files", "node", "broker", "share", "coordinator", "witness"} {
		cmd, _, err := root.Find(strings.Fields(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range []string{config.FileFlag, "admin", "ready-file", "tls-cert", "tls-key", "tls-admin-ca", "admin-token-file", "insecure", "log-level", "log-format"} {
			if cmd.Flags().Lookup(flag) == nil {
				t.Errorf("polder %s has no --%s", name, flag)
			}
		}
	}
}

// TestEveryCommandExplainsItself: whoever asks for help gets some.
func TestEveryCommandExplainsItself(t *testing.T) {
	root := newRoot(nil)
	forEach(root, func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no description", cmd.CommandPath(), f.Name)
			}
		})
	})
}

// TestFlagsOfBenchmarksMayHaveOneDash: the documents write them as Go's tools do.
func TestFlagsOfBenchmarksMayHaveOneDash(t *testing.T) {
	got := goStyle([]string{"bench", "resp", "-json", "-short", "--json", "-h", "--password", "-jsonx", "-trace", "-t", "-trace=-asap", "-asap"})
	want := []string{"bench", "resp", "--json", "--short", "--json", "-h", "--password", "-jsonx", "--trace", "-t", "--trace=-asap", "--asap"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHelpIsGrouped: whoever reads it sees what to run, to operate and to measure.
func TestHelpIsGrouped(t *testing.T) {
	root := newRoot(nil)
	var out strings.Builder
	root.SetOut(&out)
	root.SetArgs([]string{"--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, want := range []string{"\nRun:\n", "\n  node ", "\nOperate:\n", "\n  top ", "\nMeasure:\n", "\n  sim "} {
		i := strings.Index(out.String(), want)
		if i <= at {
			t.Errorf("--help does not say %q in its place:\n%s", want, out.String())
		}
		at = i
	}
	if strings.Contains(out.String(), "Additional Commands") {
		t.Errorf("a command is in no group:\n%s", out.String())
	}
}
