package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/pages"
	"polder/pages/pager"
)

// The default addresses of pager.
const (
	defaultPager      = "unix:/run/polder/pager.sock"
	defaultPagerAdmin = "127.0.0.1:7073"
)

func newPager() daemonCommand {
	var op operator.Flags
	cfg := daemon.PagerConfig{BorrowConfig: daemon.DefaultBorrow(), Listen: defaultPager, Size: 64 << 30, Frames: 256 << 20, MaxClients: 16}
	cfg.OpTimeout = 10 * time.Second
	cmd := &cobra.Command{
		Use:   "pager",
		Short: "Serve page faults of other processes from memory borrowed from nodes",
		Long: "Serves mappings: memory of other processes on this machine that is larger than what\n" +
			"they have of it locally. They use it as any memory; what is not there is brought when\n" +
			"it is touched (userfaultfd), and what was not used for long goes to the nodes. The Go\n" +
			"package pages/region and the Python package polder_pages make them.\n\n" +
			"A mapping lasts as long as its process, unless it has a name: then what was in it stays\n" +
			"with the pager, for whoever maps the name next, and with --heap it survives the pager as\n" +
			"it was when the process has synced it. A page that is lost, with its node or with\n" +
			"the pager, is SIGBUS when it is touched.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := farAddresses(&cfg.BorrowConfig); err != nil {
				return err
			}
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Control = c
				return daemon.RunPager(cmd.Context(), cfg)
			})
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewFarAddresses(&cfg.Far), "far", farUsage)
	fs.Var(config.NewSocket(&cfg.Listen), "listen", "the socket where processes connect that map memory, unix:PATH")
	fs.Var(config.NewSize(&cfg.Size, pager.MinLocal, pages.MaxVolume), "size", "most that all mappings together may have; it may be more than the nodes have")
	fs.Var(config.NewSize(&cfg.Frames, pager.MinLocal, pages.MaxVolume), "frames", "most of it that may be in local memory at a time, which counts as memory of the processes that map it")
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<12), "max-clients", "most mappings, each of which takes 3MiB and 4 bytes for each page")
	fs.BoolVar(&cfg.Compress, "compress", false, compressUsage)
	borrowFlags(fs, &cfg.BorrowConfig, "how long an access waits for far memory before it fails")
	heapFlags(fs, &cfg.BorrowConfig)
	op.Add(fs, defaultPagerAdmin, listen.Node)
	return daemonCommand{cmd, func() error { return errors.Join(cfg.Check(), op.Check(fs)) }}
}
