package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/operator"
)

// drainEvery is how often drain says how much is left.
const drainEvery = 2 * time.Second

func newDrain() *cobra.Command {
	var (
		within = 5 * time.Minute
		force  bool
		access operator.Access
	)
	cmd := &cobra.Command{
		Use:   "drain ADMIN-ADDRESS",
		Short: "End a memory node when what it has lent has been moved to others",
		Long: "Tells the clients of a memory node that it is leaving, so that they move what they have there\n" +
			"to other nodes, and ends it when nothing is lent any more. If that takes longer than --within,\n" +
			"or this command is interrupted, the node stays. The node must have an --admin-token-file or a\n" +
			"--tls-admin-ca; one that was started with --drain is drained by SIGTERM, too.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("expected the administrative address of one node, such as %s, not %d arguments", defaultNodeAdmin, len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client, token, err := access.Load()
			if err != nil {
				return err
			}
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
			if err != nil {
				if cause := context.Cause(cmd.Context()); cause != nil {
					return fmt.Errorf("%w: %s stays", cause, args[0])
				}
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", args[0], text)
			return err
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewDuration(&within, time.Millisecond), "within", "how long it may take")
	fs.BoolVar(&force, "force", false, "end the node then, even if something is still lent, which is lost with it")
	access.Add(fs)
	return cmd
}

// sayLent says how much a node still has lent.
func sayLent(w io.Writer, s *console.State) {
	_, _ = fmt.Fprintf(w, "polder: %s is still lent\n", config.FormatSize(s.Metrics.Int("polder_node_memory_bytes", "use=lent")))
}
