package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/internal/config"
)

// TestTheREADMEListsEveryFlag compares the README's table with the daemons'
// flags and their environment variables.
func TestTheREADMEListsEveryFlag(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(b)
	for _, cmd := range []*cobra.Command{newUp(), newServe(), newNode()} {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			env := "POLDER_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			if row := fmt.Sprintf("| `--%s` | `%s` |", f.Name, env); !strings.Contains(readme, row) {
				t.Errorf("README.md has no row %q, which polder %s takes", row, cmd.Name())
			}
		})
	}
}

// TestEveryDaemonIsConfiguredAlike: who takes a file takes the environment, too.
func TestEveryDaemonIsConfiguredAlike(t *testing.T) {
	root := newRoot(nil)
	for _, name := range []string{"up", "serve", "node", "broker", "share", "coordinator"} {
		cmd, _, err := root.Find([]string{name})
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
