package main

import (
	"errors"
	"fmt"
	"regexp"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/swap"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/scheme"
)

// newSwap returns the command "polder swap", by which this machine swaps to borrowed memory.
func newSwap() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "swap",
		Short: "Have this machine swap to memory borrowed from nodes",
		Long: "Has this machine swap to memory that nodes lend. It takes root, the kernel's module nbd,\n" +
			"and the tools nbd-client, mkswap, swapon and swapoff.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args: usage.NoArgs,
	}
	cmd.AddCommand(newSwapOn(), newSwapOff(), newSwapStatus())
	return cmd
}

// kernelTimeouts is after how many times --op-timeout the kernel gives the server up. It is
// more than one since a request may wait for others: a connection has up to 128 requests, of
// which the server handles 16 at a time.
const kernelTimeouts = 12

// The flags of polder block that polder swap on does not have: swap on itself says how the
// server listens, and what was swapped out is worth nothing after a restart.
var notOfSwap = map[string]bool{
	"listen": true, "name": true, "read-only": true, "max-clients": true, "swap": true, "ready-file": true, "tls-client-ca": true,
	"heap": true, "checkpoint": true, "admin": true, "admin-token-file": true, "tls-admin-ca": true, "help": true,
}

func newSwapOn() *cobra.Command {
	o := swap.Options{Priority: 100}
	server, cfg, complete := block()
	cfg.Listen = scheme.Unix + swap.Dir
	cmd := &cobra.Command{
		Use:   "on",
		Short: "Begin to swap to borrowed memory",
		Long: "Starts polder block --swap in a process of its own, connects the kernel to it (nbd-client),\n" +
			"and swaps to the device (mkswap, swapon). If a step fails, those before it are undone.\n" +
			"polder swap off undoes all of it.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(complete(), server.check()); err != nil {
				return err
			}
			o.Args = []string{"block", "--swap", "--admin", "off", "--max-clients", "8"}
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if server.Flags().Lookup(f.Name) != nil && f.Name != config.FileFlag { // the file was read already
					o.Args = append(o.Args, "--"+f.Name+"="+f.Value.String())
				}
			})
			o.Timeout = kernelTimeouts * cfg.OpTimeout
			host := swap.This()
			warning, err := host.Warn()
			if err != nil {
				return err
			}
			path, err := host.On(cmd.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "swapping to %s at %s, priority %d; polder swap off ends it\n", config.FormatSize(cfg.Size), path, o.Priority)
			if warning != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "polder: %s\n", warning)
			}
			return nil
		},
	}
	fs := cmd.Flags()
	server.Flags().VisitAll(func(f *pflag.Flag) {
		if !notOfSwap[f.Name] {
			fs.AddFlag(f)
		}
	})
	fs.Var(config.NewInt(&o.Priority, 0, 1<<15-1), "priority", "what is swapped to first has the higher one; disks have less than 0 unless they are given one")
	deviceOf(fs, &o.Device, "the `device` to use, such as nbd0; the default is the first that is free")
	return cmd
}

// deviceOf adds the flag --nbd, which names a device.
func deviceOf(fs *pflag.FlagSet, device *string, usage string) {
	fs.Func("nbd", usage, func(s string) error {
		if !regexp.MustCompile(`^nbd[0-9]{1,4}$`).MatchString(s) {
			return errors.New("expected the name of a device such as nbd0")
		}
		*device = s
		return nil
	})
}

func newSwapOff() *cobra.Command {
	device := ""
	cmd := &cobra.Command{
		Use:   "off",
		Short: "Bring back what was swapped out, and end the device",
		Long: "Has the kernel bring back what it has swapped to borrowed memory (swapoff), for which there\n" +
			"has to be memory, disconnects the device, and ends its server.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := swap.This().Off(cmd.Context(), device)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "no longer swapping to %s\n", path)
			return nil
		},
	}
	deviceOf(cmd.Flags(), &device, "the `device` to end, such as nbd0; the default is the only one")
	return cmd
}

func newSwapStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the devices of polder swap on, and what is on them",
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := swap.This().Status()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "device\tsize\tused\tpriority\tserver")
			for _, d := range list {
				server := fmt.Sprint("process ", d.Server)
				if d.Server == 0 {
					server = "ended"
				}
				if !d.On {
					fmt.Fprintf(w, "%s\tnot swapped to\t\t\t%s\n", d.Path, server)
					continue
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", d.Path, config.FormatSize(d.Size), config.FormatSize(d.Used), d.Priority, server)
			}
			return w.Flush()
		},
	}
}
