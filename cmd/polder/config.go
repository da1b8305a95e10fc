package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
)

// secrets are the flags whose values are never shown.
var secrets = map[string]bool{"password": true}

// hostDefaults are shown in the reference files in place of defaults that depend on
// this machine.
var hostDefaults = map[string]string{"node lend": "1GiB", "up lend": "1GiB", "coordinator socket": "/run/polder/coordinator.sock"}

// daemonCommand is the command of a daemon.
type daemonCommand struct {
	*cobra.Command
	// check refuses flags that contradict one another, as the daemon does once its
	// flags are loaded. It opens no files and no addresses, and checks nothing that
	// depends on this host.
	check func() error
}

// newConfig returns "polder config" with one subcommand for each of the daemons,
// which takes the same flags.
func newConfig() *cobra.Command {
	var names []string
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration that a daemon would have, and where it comes from; check files",
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args:  usage.NoArgs,
	}
	for _, d := range newDaemons() {
		names = append(names, d.Name())
		sub := newConfigOf(d, d.Name())
		if d.Name() == "serve" {
			sub.AddCommand(newConfigOf(newFiles(), "serve files"))
		}
		cmd.AddCommand(sub)
	}
	cmd.Long = "Prints, as a file for --config, what polder " + strings.Join(names, ", ") + "\nwould be configured by with the same flags, environment and file, and for each value\n" +
		"where it comes from. What is wrong is refused with the key, and in a file the line.\nWith --check, keys that contradict one another are refused as well. Whether the files\nthat keys name are there, and the memory, is seen when the daemon starts."
	return cmd
}

// newConfigOf returns the subcommand for a daemon that is called name.
func newConfigOf(daemon daemonCommand, name string) *cobra.Command {
	var check, comments bool
	cmd := &cobra.Command{
		Use:   daemon.Name(),
		Short: "Print the configuration of polder " + name,
		Long:  "Prints the configuration that polder " + name + " would have with the same flags,\nenvironment and file, as a file for --config; defaults are commented out.",
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case comments:
				return reference(cmd.OutOrStdout(), daemon.Command, name)
			case check:
				return daemon.check()
			}
			return effective(cmd.OutOrStdout(), cmd.Flags(), daemon.Flags())
		},
	}
	cmd.Flags().AddFlagSet(daemon.Flags())
	cmd.Flags().BoolVar(&check, "check", false, "print nothing: only refuse what is wrong")
	cmd.Flags().BoolVar(&comments, "comments", false, "print all keys with what they are for and their defaults, commented out: a file to begin with")
	return cmd
}

// keys calls yield for every flag of a daemon that a file may set.
func keys(flags *pflag.FlagSet, yield func(*pflag.Flag)) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != config.FileFlag && f.Name != "help" {
			yield(f)
		}
	})
}

// effective prints the values of the daemon's flags that were loaded into all, and
// where each value comes from.
func effective(w io.Writer, all, daemon *pflag.FlagSet) error {
	var b bytes.Buffer
	keys(daemon, func(f *pflag.Flag) {
		origin := config.Origin(all, f)
		if v, ok := f.Value.(interface{ Secret() bool }); origin != "default" && (secrets[f.Name] || ok && v.Secret()) {
			fmt.Fprintf(&b, "# %s is set and not shown  # %s\n", f.Name, origin)
			return
		}
		line := fmt.Sprintf("%s: %s", f.Name, yamlValue(f, f.Value.String()))
		if origin == "default" {
			line = "#" + line // a default may be a value that a file cannot set, such as ""
		}
		fmt.Fprintf(&b, "%-40s  # %s\n", line, origin)
	})
	_, err := w.Write(b.Bytes())
	return err
}

// reference prints every key of a daemon with what it is for and its default.
func reference(w io.Writer, daemon *cobra.Command, name string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Configuration of polder %s: %s.\n#\n# Every key is a flag of the same name; each is shown with its default. A flag goes\n"+
		"# before an environment variable (POLDER_LOG_LEVEL), and that before this file.\n"+
		"# Check it with: polder config %s --check --config FILE\n", name, strings.ToLower(daemon.Short[:1])+daemon.Short[1:], name)
	keys(daemon.Flags(), func(f *pflag.Flag) {
		_, usage := pflag.UnquoteUsage(f)
		value := f.DefValue
		if other := hostDefaults[daemon.Name()+" "+f.Name]; other != "" {
			value = other
		}
		fmt.Fprintf(&b, "\n%s#%s: %s\n", wrap("# ", usage, 88), f.Name, yamlValue(f, value))
	})
	_, err := w.Write(b.Bytes())
	return err
}

// yamlValue returns text, a flag's String, as a YAML value that Load reads as the same
// value.
func yamlValue(f *pflag.Flag, text string) string {
	var v any = text
	if _, ok := f.Value.(pflag.SliceValue); ok {
		v = strings.FieldsFunc(strings.Trim(text, "[]"), func(r rune) bool { return r == ',' })
	}
	switch f.Value.Type() {
	case "bool", "number", "float64", "size":
		return text // as on the command line
	}
	var node yaml.Node
	if err := node.Encode(v); err != nil {
		return text
	}
	if node.Kind == yaml.SequenceNode {
		node.Style = yaml.FlowStyle
	}
	b, err := yaml.Marshal(&node)
	if err != nil {
		return text
	}
	return strings.TrimSpace(string(b))
}

// wrap breaks text into lines that begin with prefix.
func wrap(prefix, text string, width int) string {
	var b strings.Builder
	n := 0
	for _, word := range strings.Fields(text) {
		if n > 0 && n+1+len(word) > width {
			b.WriteByte('\n')
			n = 0
		}
		if n == 0 {
			b.WriteString(prefix + word)
			n = len(prefix) + len(word)
		} else {
			b.WriteString(" " + word)
			n += 1 + len(word)
		}
	}
	return b.String() + "\n"
}
