package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/rdbload"
	"polder/cmd/polder/internal/usage"
)

// newRDB returns the command "polder rdb" with the tools for Redis's files.
func newRDB() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rdb",
		Short: "Load the files in which Redis keeps its data",
		Long: "Redis keeps its data in an RDB file: redis-cli --rdb FILE takes one of a server that runs,\n" +
			"a Redis or a Polder, and polder rdb load gives it to another one.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRDBLoad())
	return cmd
}

func newRDBLoad() *cobra.Command {
	var o rdbload.Options
	var replace bool
	db := ""
	cmd := &cobra.Command{
		Use:   "load FILE redis://HOST:PORT",
		Short: "Load an RDB file into a server that runs",
		Long: "Loads the strings and hashes of an RDB file, of Redis 2.6 to 7.4, with the times at which they\n" +
			"expire, into a Polder or a Redis of version 6.2 or later. All of the file is checked before\n" +
			"anything is loaded. rediss:// is for TLS, unix:///PATH for a Unix socket; a password is taken\n" +
			"from the environment, REDISCLI_AUTH.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("expected a file and a server, such as dump.rdb redis://127.0.0.1:6379, not %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := redisServer(args[1], os.Getenv("REDISCLI_AUTH"))
			if err != nil {
				return &usage.Error{Err: err}
			}
			if db != "" {
				if o.DB, err = strconv.ParseUint(db, 10, 32); err != nil {
					return &usage.Error{Err: fmt.Errorf("--db is %q, expected a number", db)}
				}
				o.One = true
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // the file was only read
			logging.Disable()                // what goes wrong is in the error
			c := redis.NewClient(server)
			defer func() { _ = c.Close() }() // all replies have come, or loading has failed already
			s, err := loadRDB(cmd.Context(), c, f, o, replace)
			if err != nil {
				return fmt.Errorf("cannot load %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "loaded %v\n", s)
			return nil
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.Skip, "skip-unsupported", false, "leave out what is neither a string nor a hash, rather than to refuse the file")
	fs.BoolVar(&replace, "replace", false, "load into a server that has keys, in the place of those of the same name")
	fs.StringVar(&db, "db", "", "load the keys of the database of this `number` alone")
	return cmd
}

func loadRDB(ctx context.Context, c *redis.Client, f io.ReadSeeker, o rdbload.Options, replace bool) (rdbload.Summary, error) {
	n, err := c.DBSize(ctx).Result()
	switch {
	case err != nil:
		return rdbload.Summary{}, err
	case n > 0 && !replace:
		return rdbload.Summary{}, fmt.Errorf("the server has %d keys: --replace loads it all the same, in the place of keys of the same name", n)
	}
	// If the server does not say what its limit is, it refuses longer strings while the file is loaded.
	if m, err := c.ConfigGet(ctx, "proto-max-bulk-len").Result(); err == nil {
		o.Most, _ = strconv.Atoi(m["proto-max-bulk-len"])
	}
	if _, err := rdbload.Check(ctx, f, o); err != nil {
		return rdbload.Summary{}, fmt.Errorf("%w; nothing was loaded", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return rdbload.Summary{}, err
	}
	return rdbload.Load(ctx, c, f, o, replace)
}
