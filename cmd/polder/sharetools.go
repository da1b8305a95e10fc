package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/share"
)

// shareTool is what the tools of share have in common: a client of the daemon.
type shareTool struct {
	socket string
	json   bool
}

func (t *shareTool) command(use, short string, args cobra.PositionalArgs, run func(cmd *cobra.Command, c *share.Client, args []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := share.Open(cmd.Context(), share.Config{Socket: t.socket, Name: "polder share " + cmd.Name(), Patience: time.Second})
			if errors.Is(err, share.ErrUnavailable) {
				return fmt.Errorf("%w (--socket says where it listens; polder share starts one)", err)
			}
			if err != nil {
				return err
			}
			return errors.Join(run(cmd, c, args), c.Close())
		},
	}
	cmd.Flags().StringVar(&t.socket, "socket", share.DefaultSocket, "`path` of the daemon's socket")
	return cmd
}

func newShareLs() *cobra.Command {
	var t shareTool
	var regions, sessions bool
	cmd := t.command("ls [PREFIX]", "List keys, regions or clients", usage.Args(0, 1),
		func(cmd *cobra.Command, c *share.Client, args []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			var err error
			switch prefix := strings.Join(args, ""); {
			case regions:
				err = t.regions(cmd.Context(), w, c)
			case sessions:
				err = t.sessions(cmd.Context(), w, c)
			default:
				err = t.keys(cmd.Context(), w, c, prefix)
			}
			return errors.Join(err, w.Flush())
		})
	cmd.Flags().BoolVar(&regions, "regions", false, "list regions")
	cmd.Flags().BoolVar(&sessions, "clients", false, "list clients")
	cmd.Flags().BoolVar(&t.json, "json", false, "print one JSON object a line")
	cmd.MarkFlagsMutuallyExclusive("regions", "clients")
	return cmd
}

func (t *shareTool) keys(ctx context.Context, w io.Writer, c *share.Client, prefix string) error {
	t.head(w, "KEY\tREGION\tOFFSET\tLENGTH\tPINS\tEXPIRES")
	for k, err := range c.Keys(ctx, prefix) {
		if err != nil {
			return err
		}
		expires := "never"
		if k.Expires != 0 {
			expires = time.UnixMilli(k.Expires).Format(time.RFC3339)
		}
		if err := t.row(w, k, "%q\t%d\t%d\t%d\t%d\t%s\n", k.Key, k.Region, k.Offset, k.Length, k.Pins, expires); err != nil {
			return err
		}
	}
	return nil
}

func (t *shareTool) regions(ctx context.Context, w io.Writer, c *share.Client) error {
	t.head(w, "REGION\tPOOL\tSIZE\tPAGE\tKIND\tSTATE\tOWNER\tTENANT\tREADERS\tREFERENCES")
	for r, err := range c.Regions(ctx) {
		if err != nil {
			return err
		}
		if err := t.row(w, r, "%d\t%s\t%s\t%s\t%s\t%s\t%016x\t%s\t%d\t%d\n", r.ID, r.Pool, config.FormatSize(r.Length),
			config.FormatSize(r.PageSize), r.Kind, r.State, r.Owner, r.Tenant, r.Readers, r.Refs); err != nil {
			return err
		}
	}
	return nil
}

func (t *shareTool) sessions(ctx context.Context, w io.Writer, c *share.Client) error {
	t.head(w, "CLIENT\tPID\tTENANT\tNAME\tSTATE\tCONNECTIONS\tMAPPED")
	for s, err := range c.Sessions(ctx) {
		if err != nil {
			return err
		}
		state := s.State
		if s.Away > 0 {
			state += fmt.Sprintf(" for %v", time.Duration(s.Away*float64(time.Second)).Round(time.Second))
		}
		if err := t.row(w, s, "%016x\t%d\t%s\t%q\t%s\t%d\t%d\n", s.ID, s.PID, s.Tenant, s.Name, state, s.Conns, s.Maps); err != nil {
			return err
		}
	}
	return nil
}

func (t *shareTool) head(w io.Writer, head string) {
	if !t.json {
		fmt.Fprintln(w, head)
	}
}

func (t *shareTool) row(w io.Writer, v any, format string, args ...any) error {
	if t.json {
		return json.NewEncoder(w).Encode(v)
	}
	_, err := fmt.Fprintf(w, format, args...)
	return err
}

func newShareStats() *cobra.Command {
	var t shareTool
	cmd := t.command("stats", "Show what the daemon holds and has done", usage.NoArgs,
		func(cmd *cobra.Command, c *share.Client, _ []string) error {
			info, err := c.Stats(cmd.Context())
			if err != nil {
				return err
			}
			if t.json {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(info)
			}
			return printShareStats(cmd.OutOrStdout(), info)
		})
	cmd.Flags().BoolVar(&t.json, "json", false, "print JSON")
	return cmd
}

func printShareStats(out io.Writer, info share.Info) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "POOL\tSIZE\tFREE\tLARGEST\tREGIONS")
	for _, p := range info.Pools {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", p.Name, config.FormatSize(p.Size), config.FormatSize(p.Free), config.FormatSize(p.Largest), p.Regions)
	}
	fmt.Fprintf(w, "\nkeys\t%d\tof %d bytes\n", info.Keys, info.Bytes)
	fmt.Fprintf(w, "regions\t%d\t%d of them without owner\n", info.Regions, info.Deferred)
	fmt.Fprintf(w, "clients\t%d\tby %d connections\n", info.Sessions, info.Conns)
	fmt.Fprintf(w, "views\t%d\t%d pages wait for them\n", info.Views, info.Waiting)
	fmt.Fprintf(w, "puts\t%d\tand %d of keys that existed\n", info.Puts, info.Existed)
	fmt.Fprintf(w, "hits\t%d\tof %d lookups that a client's cache did not answer\n", info.Hits, info.Lookups)
	fmt.Fprintf(w, "deletes\t%d\tand %d evictions, %d expiries\n", info.Deletes, info.Evictions, info.Expired)
	fmt.Fprintf(w, "allocations\t%d\tand %d frees\n", info.Allocs, info.Frees)
	fmt.Fprintf(w, "by memory\t%d\trequests of busy clients, which no message carried\n", info.Posted)
	full := ""
	if info.LogFull {
		full = "; its disk is full"
	}
	fmt.Fprintf(w, "log\t%s\tafter %d checkpoints, %d failed%s\n", config.FormatSize(info.LogBytes), info.Checkpoints, info.FailedCheckpoints, full)
	fmt.Fprintf(w, "reaped\t%d\tdead clients\n", info.Reaped)
	fmt.Fprintf(w, "denied\t%d\trequests\n", info.Denied)
	if info.Settling > 0 {
		fmt.Fprintf(w, "settling\t%d\tclients of before the restart are not back yet: polder share ls --clients\n", info.Settling)
	}
	if info.Fenced > 0 {
		fmt.Fprintf(w, "fenced\t%d\tclients that may be alive\n", info.Fenced)
	}
	for _, t := range slices.Sorted(maps.Keys(info.Tenants)) {
		fmt.Fprintf(w, "tenant %s\t%s\n", t, config.FormatSize(info.Tenants[t]))
	}
	return w.Flush()
}

func needKeys(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("polder share rm needs the keys to delete: polder share ls lists them")
	}
	return nil
}

func newShareKick() *cobra.Command {
	var t shareTool
	return t.command("kick CLIENT", "End the session of a client that is stopped or unwanted", usage.Args(1, 1),
		func(cmd *cobra.Command, c *share.Client, args []string) error {
			id, err := strconv.ParseUint(args[0], 16, 64)
			if err != nil {
				return fmt.Errorf("cannot kick %q: want the number of a client, as polder share ls --clients shows it", args[0])
			}
			return c.Kick(cmd.Context(), id)
		})
}

func newShareRm() *cobra.Command {
	var t shareTool
	var prefix bool
	cmd := t.command("rm KEY...", "Delete keys", needKeys,
		func(cmd *cobra.Command, c *share.Client, args []string) error {
			keys := args
			if prefix {
				keys = nil
				for _, p := range args {
					for k, err := range c.Keys(cmd.Context(), p) {
						if err != nil {
							return err
						}
						keys = append(keys, k.Key)
					}
				}
			}
			errs, err := c.DeleteAll(cmd.Context(), keys)
			if err != nil {
				return err
			}
			for i, err := range errs {
				if err != nil {
					errs[i] = &share.OpError{Op: "delete", Key: keys[i], Err: err}
				}
			}
			return errors.Join(errs...)
		})
	cmd.Flags().BoolVar(&prefix, "prefix", false, "delete all keys that begin with KEY")
	return cmd
}
