package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"polder/internal/console"
	"polder/internal/operator"
)

func newHeapForget() *cobra.Command {
	var access operator.Access
	cmd := &cobra.Command{
		Use:   "forget ADMIN-ADDRESS NAME",
		Short: "Have a memory node take back what it keeps for a heap that nobody will open again",
		Long: "A memory node keeps what a heap with a name has there until the heap is removed (polder heap rm).\n" +
			"If that cannot be done any more, because the witnesses have lost its manifest, or the node was\n" +
			"not there when the heap was removed and comes back, this tells the node that the heap is gone.\n" +
			"Everything that the heap has at this node is lost. A node refuses if the heap's server is\n" +
			"connected. It must have an --admin-token-file or a --tls-admin-ca.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("expected the administrative address of one node and the name of a heap, such as %s orders, not %d arguments", defaultNodeAdmin, len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client, token, err := access.Load()
			if err != nil {
				return err
			}
			text, err := console.Forget(cmd.Context(), client, token, args[0], args[1])
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
