package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
)

// The default addresses of serve files.
const (
	defaultFiles      = "127.0.0.1:8080"
	defaultFilesAdmin = "127.0.0.1:7077"
)

// newFiles returns "polder serve files".
func newFiles() daemonCommand {
	var op operator.Flags
	cfg := daemon.FilesConfig{Listen: defaultFiles, Budget: daemon.DefaultCache().Budget, MaxClients: 1024}
	cmd := &cobra.Command{
		Use:   "files DIR",
		Short: "Serve the files of a directory over HTTP, from a page cache in idle memory",
		Long: "Serves the files of a directory over HTTP: ETag, ranges, HEAD; of a directory its\n" +
			"index.html, or a list. What is read from disk is kept in memory that is idle on this\n" +
			"machine; what a coordinator takes back is read again. A file that changes on disk is\n" +
			"served as it is now. No request leaves the directory, and nothing in it is hidden.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("polder serve files takes one directory, and got %d arguments: see polder serve files --help", len(args))
			}
			if st, err := os.Stat(args[0]); err != nil || !st.IsDir() {
				return fmt.Errorf("cannot serve the files of %q: expected a directory", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Control, cfg.Dir = c, args[0]
				cfg.Coordinator = coordinatorOf(cfg.Coordinator, cfg.Budget, c.Logger)
				return daemon.RunFiles(cmd.Context(), cfg)
			})
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewDoor(&cfg.Listen, false), "listen", "where clients of HTTP connect, HOST:PORT or unix:PATH")
	fs.Var(config.NewSize(&cfg.Budget, daemon.MinCacheBudget, daemon.MaxCacheBudget), "budget", "memory to use while no coordinator says otherwise")
	coordinatorFlag(fs, &cfg.Coordinator, "")
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<20), "max-clients", "most connections; who has been silent longest makes room for the next")
	op.Add(fs, defaultFilesAdmin, listen.Client)
	return daemonCommand{cmd, func() error {
		return op.Check(fs, operator.Address{Role: listen.Client, Flag: "listen", Addr: cfg.Listen})
	}}
}
