package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/holder/witness"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
)

// The default addresses of witness.
const (
	defaultWitness      = "127.0.0.1:7060"
	defaultWitnessAdmin = "127.0.0.1:7061"
)

func newWitness() daemonCommand {
	var op operator.Flags
	cfg := daemon.WitnessConfig{
		Dir: "/var/lib/polder/witness", Listen: defaultWitness, Registers: witness.DefaultRegisters, Bytes: witness.DefaultBytes, MaxClients: witness.DefaultClients,
	}
	cmd := &cobra.Command{
		Use:   "witness",
		Short: "Hold the manifests of named heaps, together with two other witnesses or more",
		Long: "Keeps small registers, of which each is the manifest of a named heap. Three witnesses on\n" +
			"three machines lose nothing and go on when one is lost, five when two are. Each has a\n" +
			"directory on a disk, and syncs to it before it answers. A new witness, and one that has lost\n" +
			"its directory, has no vote until an operator lets it in: polder witness set.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Control = c
				return daemon.RunWitness(cmd.Context(), cfg)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.Dir, "dir", cfg.Dir, "`directory` on a disk that keeps what it has promised; each witness needs one of its own")
	fs.Var(config.NewDoor(&cfg.Listen, false), "listen", "where clients connect, HOST:PORT or unix:PATH")
	fs.Var(config.NewInt(&cfg.Registers, 1, 1<<20), "max-registers", "most registers that it keeps, the same at all witnesses of a set")
	fs.Var(config.NewSize(&cfg.Bytes, 1<<20, 0), "max-bytes", "most bytes of the registers' names and values, in memory and a few times that on the disk; the same at all witnesses of a set")
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<16), "max-clients", "most connections")
	op.Add(fs, defaultWitnessAdmin, listen.Node)
	cmd.AddCommand(newWitnessSet(), newWitnessLs())
	return daemonCommand{cmd, func() error {
		return errors.Join(cfg.Check(), op.Check(fs, operator.Address{Role: listen.Node, Flag: "listen", Addr: cfg.Listen}))
	}}
}

// witnessTool is what the tools that ask witnesses have in common.
type witnessTool struct {
	files    listen.Files
	insecure bool
	within   time.Duration
}

func (t *witnessTool) add(fs *pflag.FlagSet) {
	t.within = 30 * time.Second
	fs.StringVar(&t.files.CA[listen.Node], "tls-ca", "", "authority that has signed the witnesses' certificates, and those of nodes, a PEM `file`; with it, TLS is used")
	fs.StringVar(&t.files.Cert, "tls-cert", "", "certificate to show, of the same authority, a PEM `file`")
	fs.StringVar(&t.files.Key, "tls-key", "", "its private key, a PEM `file`")
	fs.BoolVar(&t.insecure, "insecure", false, "ask witnesses on other machines without TLS")
	fs.Var(config.NewDuration(&t.within, time.Millisecond), "within", "how long it may take")
}

// run calls ask with a client of the witnesses at the addresses, and a context that ends after --within.
func (t *witnessTool) run(ctx context.Context, addrs []string, ask func(ctx context.Context, c *witness.Client) error) error {
	var checked string
	for _, addr := range addrs {
		if err := config.NewDoor(&checked, false).Set(addr); err != nil {
			return &usage.Error{Err: fmt.Errorf("cannot use the address %q of a witness: %w", addr, err)}
		}
	}
	if err := t.files.Check(); err != nil {
		return &usage.Error{Err: err}
	}
	certs, err := listen.Load(t.files)
	if err != nil {
		return err
	}
	c, err := witness.NewClient(witness.ClientConfig{Witnesses: addrs, TLS: certs.Dial, Insecure: t.insecure})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := t.limit(ctx)
	defer cancel()
	return ask(ctx, c)
}

// limit returns ctx with the time that the command may take.
func (t *witnessTool) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, t.within, fmt.Errorf("it has taken longer than %v (--within)", t.within))
}

func newWitnessSet() *cobra.Command {
	var t witnessTool
	cmd := &cobra.Command{
		Use:   "set ADDRESS ADDRESS ADDRESS ...",
		Short: "Make these the witnesses that vote: at the beginning, and to replace one",
		Long: "Makes the witnesses at these addresses the set that votes. All of them must answer. If none\n" +
			"of them has been in a set, they begin one, without registers. If some are in a set, the new\n" +
			"one replaces it: a majority of the old set must answer, and what it keeps is copied. So a\n" +
			"witness that has lost its directory is let in again by naming the same addresses, and one\n" +
			"that is gone is replaced by naming another in its place. It is safe to run it again.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < witness.MinMembers || len(args) > witness.MaxMembers {
				return fmt.Errorf("expected the addresses of %d to %d witnesses, such as %s, not %d",
					witness.MinMembers, witness.MaxMembers, defaultWitness, len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.run(cmd.Context(), args, func(ctx context.Context, c *witness.Client) error {
				set, err := c.Change(ctx, args)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%v votes\n", set)
				return err
			})
		},
	}
	t.add(cmd.Flags())
	return cmd
}

func newWitnessLs() *cobra.Command {
	var t witnessTool
	cmd := &cobra.Command{
		Use:   "ls ADDRESS ...",
		Short: "Say who the witnesses are, and which have a vote",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("expected the address of a witness, such as %s", defaultWitness)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.run(cmd.Context(), args, func(ctx context.Context, c *witness.Client) error {
				return printWitnesses(cmd.OutOrStdout(), c.Greet(ctx, args))
			})
		},
	}
	t.add(cmd.Flags())
	return cmd
}

// printWitnesses prints what witnesses say of themselves. It fails if any of them did not answer.
func printWitnesses(out io.Writer, greetings []witness.Greeting) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "WITNESS\tIDENTITY\tSTATE")
	var silent []string
	for _, g := range greetings {
		switch {
		case g.Err != nil:
			silent = append(silent, g.Addr)
			fmt.Fprintf(w, "%s\t\tdoes not answer: %v\n", g.Addr, g.Err)
		case g.Set == nil:
			fmt.Fprintf(w, "%s\t%v\thas no vote: nobody has let it in\n", g.Addr, g.ID)
		case g.Next != nil:
			fmt.Fprintf(w, "%s\t%v\thas no vote any more: %v follows %v\n", g.Addr, g.ID, g.Next, g.Set)
		default:
			fmt.Fprintf(w, "%s\t%v\tvotes in %v\n", g.Addr, g.ID, g.Set)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	if len(silent) > 0 {
		return fmt.Errorf("cannot ask %s", strings.Join(silent, ", "))
	}
	return nil
}
