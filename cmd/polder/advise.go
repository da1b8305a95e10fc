package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/advise"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/progress"
)

// adviseTimeout is how long a server may take to answer.
const adviseTimeout = 10 * time.Second

func newAdvise() *cobra.Command {
	cfg := advise.Config{Keys: 20_000, Watch: 5 * time.Second}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "advise redis://HOST:PORT",
		Short: "Say how much local memory a running Redis's data would need",
		Long: "Looks at a Redis server under its usual load and draws the hit ratio that polder\n" +
			"serve would have, by its local budget. It reads counters and, of a sample of the\n" +
			"keys, type, age and size; it reads no value, changes nothing, touches no key, and\n" +
			"waits four times as long as its requests take. rediss:// is for TLS, /N for the\n" +
			"database N; a password is taken from the environment, REDISCLI_AUTH.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("expected one server, such as redis://127.0.0.1:6379, not %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := redisServer(args[0], os.Getenv("REDISCLI_AUTH"))
			if err != nil {
				return &usage.Error{Err: err}
			}
			logging.Disable() // what goes wrong is in the error
			c := redis.NewClient(server)
			defer func() { _ = c.Close() }() // the server was only read
			show, end := progress.Steps(progress.Terminal(cmd.ErrOrStderr()))
			cfg.Progress = show
			s, err := advise.Look(cmd.Context(), c, cfg)
			end()
			if err != nil {
				return err
			}
			print := (*advise.Curve).Print
			if asJSON {
				print = (*advise.Curve).PrintJSON
			}
			if err := print(advise.NewCurve(s), cmd.OutOrStdout(), s); err != nil {
				return fmt.Errorf("cannot print the curve: %w", err)
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.Var(config.NewInt(&cfg.Keys, 1000, 10_000_000), "keys", "most keys to look at")
	fs.Var(config.NewDurationWithin(&cfg.Watch, time.Second, time.Hour), "watch", "how long to count how often keys are used")
	fs.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// redisServer returns how to reach the server of a URL. It refuses a password in the
// URL, since every user of the machine can read a command line.
func redisServer(url, password string) (*redis.Options, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("cannot use the server %q: %w; expected redis://HOST:PORT", url, err)
	}
	if o.Password != "" {
		return nil, errors.New("a password does not belong into the URL, where every user of this machine can read it: set REDISCLI_AUTH")
	}
	o.Password = password
	o.PoolSize, o.MaxRetries = 1, -1
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = adviseTimeout, adviseTimeout, adviseTimeout
	o.ContextTimeoutEnabled = true
	o.DisableIdentity = true // older servers do not know CLIENT SETINFO
	return o, nil
}
