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
)

// The default addresses of block.
const (
	defaultBlock      = "127.0.0.1:10809"
	defaultBlockAdmin = "127.0.0.1:7078"
)

// compressUsage is the usage of --compress, a flag of block and of pager.
const compressUsage = "compress pages that take an eighth less then, in local memory and on the way to nodes; what was written without it, or with it, is read either way"

func newBlock() daemonCommand {
	d, _, _ := block()
	return d
}

// block returns the command, the configuration that its flags set, and a function that
// completes this configuration, or refuses it, when the command runs.
func block() (daemonCommand, *daemon.BlockConfig, func() error) {
	var op operator.Flags
	cfg := daemon.BlockConfig{BorrowConfig: daemon.DefaultBorrow(), Listen: defaultBlock, Name: "polder", MaxClients: 16}
	cfg.OpTimeout = 10 * time.Second
	complete := func() error {
		if err := farAddresses(&cfg.BorrowConfig); err != nil {
			return err
		}
		if cfg.Size == 0 {
			return &usage.Error{Err: &config.Error{Source: "--size", Err: errors.New("it is not given; expected the size of the device, such as 16GiB")}}
		}
		return nil
	}
	cmd := &cobra.Command{
		Use:   "block",
		Short: "Serve a block device in memory borrowed from nodes, over NBD",
		Long: "Serves a block device over NBD: qemu, the kernel (nbd-client), fio and nbdcopy use it\n" +
			"as a disk. What is used often stays within the local budget, the rest lies in memory\n" +
			"that the nodes lend, and what was never written or was trimmed takes none.\n\n" +
			"Without --heap it is memory: empty at the start, and what is on it is gone when it ends.\n" +
			"A page that is lost with its node is an I/O error until it is written or trimmed. With\n" +
			"--tls-client-ca clients have to use TLS (NBD_OPT_STARTTLS).",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := complete(); err != nil {
				return err
			}
			if cfg.Swap {
				if err := daemon.BecomeSwapServer(); err != nil {
					return err
				}
			}
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Control = c
				return daemon.RunBlock(cmd.Context(), cfg)
			})
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewFarAddresses(&cfg.Far), "far", farUsage)
	fs.Var(config.NewSize(&cfg.Size, pages.Size, pages.MaxVolume), "size", "size of the device, a multiple of 4KiB; it may be more than the nodes have, and writing what there is no room for is ENOSPC")
	fs.Var(config.NewDoor(&cfg.Listen, false), "listen", "where clients of NBD connect, HOST:PORT or unix:PATH")
	fs.StringVar(&cfg.Name, "name", cfg.Name, "what the export is called; it is the default one, too")
	fs.BoolVar(&cfg.ReadOnly, "read-only", false, "refuse to write")
	fs.Var(config.NewInt(&cfg.MaxClients, 1, 1<<12), "max-clients", "most connections, each of which may hold 2MiB")
	fs.BoolVar(&cfg.Compress, "compress", false, compressUsage)
	fs.BoolVar(&cfg.Swap, "swap", false, "for a device that this machine swaps to: memory is locked and taken at the start, and the kernel's memory reclaim leaves the process alone, which takes CAP_SYS_RESOURCE, CAP_SYS_NICE and CAP_IPC_LOCK; see polder swap")
	borrowFlags(fs, &cfg.BorrowConfig, "how long a request waits for far memory before it is an I/O error")
	heapFlags(fs, &cfg.BorrowConfig)
	op.Add(fs, defaultBlockAdmin, listen.Node, listen.Client)
	return daemonCommand{cmd, func() error {
		return errors.Join(cfg.Check(), op.Check(fs, operator.Address{Role: listen.Client, Flag: "listen", Addr: cfg.Listen}))
	}}, &cfg, complete
}
