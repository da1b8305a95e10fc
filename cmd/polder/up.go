package main

import (
	"errors"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/memnode"
)

func newUp() daemonCommand {
	var op operator.Flags
	cfg := daemon.UpConfig{
		ServeConfig: daemon.DefaultServe(),
		Node: daemon.NodeConfig{
			Lend:  daemon.DefaultLend(),
			Chunk: memnode.DefaultChunkSize,
			Grace: memnode.DefaultGrace,
		},
	}
	cfg.Listen = defaultRedis
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run everything in one process: a node, a heap and the Redis front end",
		Long: "Starts a memory node, a far heap that borrows from it, and the Redis front end, in\n" +
			"this process and with nothing to configure. With --far it borrows from other\n" +
			"nodes instead, as polder serve does. With --node-listen other programs of this\n" +
			"machine borrow from the node, too, and call its components.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Control = c
				return daemon.RunUp(cmd.Context(), cfg)
			})
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewFarAddresses(&cfg.Far), "far", "borrow from these nodes, with commas between, not from this process")
	serveFlags(fs, &cfg.ServeConfig)
	fs.Var(config.NewSize(&cfg.Node.Lend, memnode.MinChunkSize, 0), "lend", "far memory in this process; the default is half of what it can allocate now, under the limits of its control groups")
	overcommitFlag(fs, &cfg.Node.Overcommit)
	fs.Var(config.NewPowerOfTwo(&cfg.Node.Chunk, memnode.MinChunkSize, memnode.MaxChunkSize), "chunk", "unit of lending, a power of two")
	fs.Var(config.NewSocket(&cfg.NodeListen), "node-listen", "where other programs of this machine borrow from the node in this process, unix:PATH; the default is nowhere")
	componentFlags(fs, &cfg.Node.Components)
	op.Add(fs, defaultAdmin, listen.Node, listen.Client)
	op.AddPassword(fs)
	return daemonCommand{cmd, func() error {
		return errors.Join(cfg.Check(), op.Check(fs, operator.Address{Role: listen.Client, Flag: "listen", Addr: cfg.Listen}))
	}}
}
