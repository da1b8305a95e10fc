package main

import (
	"errors"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/pool/broker"
)

// defaultBrokerAdmin is where a broker's metrics are by default.
const defaultBrokerAdmin = "127.0.0.1:7076"

func newBroker() daemonCommand {
	var op operator.Flags
	cfg := daemon.BrokerConfig{Listen: broker.DefaultSocket, MaxApps: broker.DefaultMaxApps, PerUser: broker.DefaultPerUser}
	var users []string
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Allocate memory of nodes for the applications of this machine",
		Long: "Allocates for others at nodes whose manager is finemem. Applications on this machine\n" +
			"ask through shared memory, and access what they are given at the nodes themselves.\n" +
			"If the nodes have a service secret, nobody can allocate there but through brokers.",
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Users, err = parseUsers(users); err != nil {
				return err
			}
			return op.Run(cmd, func(c *operator.Control) error {
				cfg.Control = c
				return daemon.RunBroker(cmd.Context(), cfg)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.Listen, "listen", cfg.Listen, "the `path` of the socket where applications connect")
	fs.Var(config.NewAddresses(&cfg.Far), "far", "nodes to allocate at, HOST:PORT, with commas between")
	clusterFlag(fs, &cfg.Cluster, nodesCluster)
	secretFlag(fs, &cfg.SecretFile)
	fs.StringSliceVar(&users, "allow-uid", nil, "`numbers` of the users who may connect; only this one if none are given")
	fs.Var(config.NewSize(&cfg.Quota, 0, 0), "quota", "most memory that one user may hold; 0 means all")
	fs.Var(config.NewInt(&cfg.MaxApps, 1, 1<<16), "max-clients", "most applications")
	fs.Var(config.NewInt(&cfg.PerUser, 1, 1<<16), "max-user-clients", "most applications of one user")
	op.Add(fs, defaultBrokerAdmin, listen.Node)
	return daemonCommand{cmd, func() error {
		_, err := parseUsers(users)
		return errors.Join(err, cfg.Check(), op.Check(fs))
	}}
}

// parseUsers reads --allow-uid.
func parseUsers(users []string) (uids []int, err error) {
	for _, s := range users {
		uid, err := strconv.ParseUint(s, 10, 32)
		if err != nil || uid == math.MaxUint32 {
			return nil, &config.Error{Source: "--allow-uid", Value: s, Err: errors.New("expected the numbers of users, with commas between")}
		}
		uids = append(uids, int(uid))
	}
	return uids, nil
}
