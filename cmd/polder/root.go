package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/measuring"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
)

// newRoot returns the whole command tree. environ is the environment that
// configures it.
func newRoot(environ []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "polder",
		Short: "Memory that is not your own",
		Long: "Polder lends memory, borrows it, shares it between processes, and serves it to Redis clients.\n" +
			"Start with: polder up",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usage.Error{Err: fmt.Errorf("there is no command %q: see polder help", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		err = config.FlagError(err)
		if !errors.As(err, new(*config.Error)) {
			err = fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
		}
		return &usage.Error{Err: err}
	})
	var run []*cobra.Command
	for _, d := range newDaemons() {
		run = append(run, d.Command)
	}
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"run", "Run:", run},
		{"operate", "Operate:", []*cobra.Command{newStatus(), newTop(), newAdvise(), newDrain(), newLend(), newDoctor(), newSwap(), newHeap(), newRDB(), newConfig(), newMan(), newVersion()}},
		{"measure", "Measure:", []*cobra.Command{newDemo(), measuring.Bench(), measuring.Sim()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
		}
		root.AddCommand(g.commands...)
	}
	root.SetHelpCommandGroupID("operate")
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"}) // it is there
	help.Args = func(_ *cobra.Command, args []string) error {
		if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
			return fmt.Errorf("there is no command %q: see polder help", strings.Join(args, " "))
		}
		return nil
	}
	configure(root, environ)
	return root
}

// sayHelp makes the commands' help one write to standard output. helped returns the error of that write, which cobra
// does not return.
func sayHelp(root *cobra.Command) (helped func() error) {
	var failed error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(out)
		_, failed = out.Write(text.Bytes())
	})
	return func() error { return failed }
}

// newDaemons returns the commands of all daemons.
func newDaemons() []daemonCommand {
	return []daemonCommand{newUp(), newNode(), newServe(), newBlock(), newPager(), newBroker(), newShare(), newCoordinator(), newWitness()}
}

// configure makes every command report wrong arguments as usage errors. Commands
// that have a flag for a configuration file read the environment and that file
// before they run.
func configure(root *cobra.Command, environ []string) {
	var known []string // the flags of all commands, which a common environment may set
	forEach(root, func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	})
	forEach(root, func(cmd *cobra.Command) {
		if check := cmd.Args; check != nil {
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if err := check(cmd, args); err != nil {
					return &usage.Error{Err: err}
				}
				return nil
			}
		}
		if cmd.Flags().Lookup(config.FileFlag) == nil {
			return
		}
		cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
			if err := config.Load(cmd.Flags(), environ, known); err != nil {
				return &usage.Error{Err: err}
			}
			return nil
		}
	})
}

func forEach(cmd *cobra.Command, f func(*cobra.Command)) {
	for _, c := range cmd.Commands() {
		f(c)
		forEach(c, f)
	}
}
