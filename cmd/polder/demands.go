package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/operator"
)

// A demand is a command by which an operator tells a memory node to do something, at its administrative address.
type demand struct {
	use, short, long string
	after            string // what has to follow the address, such as " and a size"
	example          string // an example of after
	do               func(cmd *cobra.Command, client *tls.Config, token string, args []string) (said string, err error)
}

func (d demand) command() *cobra.Command {
	var access operator.Access
	cmd := &cobra.Command{
		Use: d.use, Short: d.short, Long: d.long,
		Args: func(_ *cobra.Command, args []string) error {
			want := 1
			if d.after != "" {
				want = 2
			}
			if len(args) != want {
				return fmt.Errorf("expected the administrative address of one node%s, such as %s%s, not %d arguments", d.after, defaultNodeAdmin, d.example, len(args))
			}
			if err := config.NewDoor(new(string), false).Set(args[0]); err != nil {
				return fmt.Errorf("%q is no administrative address of a node: %w", args[0], err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client, token, err := access.Load()
			if err != nil {
				return err
			}
			text, err := d.do(cmd, client, token, args)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", args[0], text)
			return err
		},
	}
	access.Add(cmd.Flags())
	return cmd
}

// drainEvery is how often drain says how much is left.
const drainEvery = 2 * time.Second

func newDrain() *cobra.Command {
	within, force := 5*time.Minute, false
	cmd := demand{
		use:   "drain ADMIN-ADDRESS",
		short: "End a memory node when what it has lent has been moved to others",
		long: "Tells the clients of a memory node that it is leaving, so that they move what they have there\n" +
			"to other nodes, and ends it when nothing is lent any more. If that takes longer than --within,\n" +
			"or this command is interrupted, the node stays. The node must have an --admin-token-file or a\n" +
			"--tls-admin-ca; one that was started with --drain is drained by SIGTERM, too.",
		do: func(cmd *cobra.Command, client *tls.Config, token string, args []string) (string, error) {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			said := make(chan struct{})
			go func() {
				defer close(said)
				tick := time.NewTicker(drainEvery)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
						if s, err := console.Query(ctx, client, token, args[0], 0); err == nil {
							sayLent(cmd.ErrOrStderr(), s)
						}
					case <-ctx.Done():
						return
					}
				}
			}()
			text, err := console.Drain(ctx, client, token, args[0], within, force)
			cancel()
			<-said
			if cause := context.Cause(cmd.Context()); err != nil && cause != nil {
				err = fmt.Errorf("%w: %s stays", cause, args[0])
			}
			return text, err
		},
	}.command()
	fs := cmd.Flags()
	fs.Var(config.NewDuration(&within, time.Millisecond), "within", "how long it may take")
	fs.BoolVar(&force, "force", false, "end the node then, even if something is still lent, which is lost with it")
	return cmd
}

// sayLent says how much a node still has lent.
func sayLent(w io.Writer, s *console.State) {
	_, _ = fmt.Fprintf(w, "polder: %s is still lent\n", config.FormatSize(s.Metrics.Int("polder_node_memory_bytes", "use=lent")))
}

// lendAll, given as the size, lets a node lend all that it was started with.
const lendAll = "all"

func newLend() *cobra.Command {
	within := 10 * time.Second
	cmd := demand{
		use:   "lend ADMIN-ADDRESS SIZE",
		short: "Say how much a memory node that lends what is idle may lend",
		long: "Has a memory node that was started with --lend idle:SIZE lend at most SIZE of what its host does\n" +
			"not need, until it is told otherwise; \"all\" is what it was started with. What is lent beyond that is\n" +
			"given back: copies that clients can do without at once, the others when clients have moved them to\n" +
			"other nodes. It says what was given back, and how fast; if clients have not moved enough within\n" +
			"--within it says what they have, and the node goes on asking for it. The node must have an\n" +
			"--admin-token-file or a --tls-admin-ca.",
		after: " and a size", example: " 1GiB",
		do: func(cmd *cobra.Command, client *tls.Config, token string, args []string) (string, error) {
			most := int64(math.MaxInt64)
			if args[1] != lendAll {
				var err error
				if most, err = config.ParseSize(args[1]); err != nil {
					return "", &usage.Error{Err: fmt.Errorf("%q is how much to lend: %w, or %q", args[1], err, lendAll)}
				}
			}
			return console.Lend(cmd.Context(), client, token, args[0], most, within)
		},
	}.command()
	cmd.Flags().Var(config.NewDuration(&within, time.Millisecond), "within", "how long clients may take to move what they have there")
	return cmd
}

func newHeapForget() *cobra.Command {
	return demand{
		use:   "forget ADMIN-ADDRESS NAME",
		short: "Have a memory node take back what it keeps for a heap that nobody will open again",
		long: "A memory node keeps what a heap with a name has there until the heap is removed (polder heap rm).\n" +
			"If that cannot be done any more, because the witnesses have lost its manifest, or the node was\n" +
			"not there when the heap was removed and comes back, this tells the node that the heap is gone.\n" +
			"Everything that the heap has at this node is lost. A node refuses if the heap's server is\n" +
			"connected. It must have an --admin-token-file or a --tls-admin-ca.",
		after: " and the name of a heap", example: " orders",
		do: func(cmd *cobra.Command, client *tls.Config, token string, args []string) (string, error) {
			if !config.IsName(args[1]) {
				return "", &usage.Error{Err: fmt.Errorf("%q is no name of a heap", args[1])}
			}
			return console.Forget(cmd.Context(), client, token, args[0], args[1])
		},
	}.command()
}
