package main

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/operator"
)

// lendAll is the size that lets a node lend all that it was started with.
const lendAll = "all"

func newLend() *cobra.Command {
	var (
		within = 10 * time.Second
		access operator.Access
	)
	cmd := &cobra.Command{
		Use:   "lend ADMIN-ADDRESS SIZE",
		Short: "Say how much a memory node that lends what is idle may lend",
		Long: "Has a memory node that was started with --lend idle:SIZE lend at most SIZE of what its host does\n" +
			"not need, until it is told otherwise; \"all\" is what it was started with. What is lent beyond that is\n" +
			"given back: copies that clients can do without at once, the others when clients have moved them to\n" +
			"other nodes. It says what was given back, and how fast; if clients have not moved enough within\n" +
			"--within it says what they have, and the node goes on asking for it. The node must have an\n" +
			"--admin-token-file or a --tls-admin-ca.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("expected the administrative address of one node and a size, such as %s 1GiB, not %d arguments", defaultNodeAdmin, len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			most := int64(math.MaxInt64)
			if args[1] != lendAll {
				var err error
				if most, err = config.ParseSize(args[1]); err != nil {
					return fmt.Errorf("%q is how much to lend: %w, or %q", args[1], err, lendAll)
				}
			}
			client, token, err := access.Load()
			if err != nil {
				return err
			}
			text, err := console.Lend(cmd.Context(), client, token, args[0], most, within)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", args[0], text)
			return err
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewDuration(&within, time.Millisecond), "within", "how long clients may take to move what they have there")
	access.Add(fs)
	return cmd
}
