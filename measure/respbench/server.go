package respbench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"polder/internal/child"
	"polder/internal/console"
)

// server is one side of a comparison.
type server struct {
	name  string
	addr  string
	admin string // administrative address; "" for Redis
	close func() error
	conns int // connections of the load generator; 0 for the usual number
	// reads returns from the metrics of a server of ours how many commands it has run, and how
	// often it has read from far memory or from the origin for them.
	reads func(console.Metrics) (commands, fetches int64)
}

func farReads(m console.Metrics) (commands, fetches int64) {
	return m.Int("polder_resp_commands_total"), m.Int("polder_far_fetches_total")
}

func originReads(m console.Metrics) (commands, fetches int64) {
	fetches = m.Int("polder_origin_misses_total") + m.Int("polder_origin_passed_total")
	return m.Int("polder_origin_hits_total") + fetches, fetches
}

// counted returns what reads says of the server's metrics now.
func (s *server) counted(ctx context.Context) (commands, fetches int64, err error) {
	state, err := console.Query(ctx, nil, "", s.admin, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot ask for statistics: %w", err)
	}
	commands, fetches = s.reads(state.Metrics)
	return commands, fetches, nil
}

// startTimeout bounds the start of a server.
const startTimeout = 15 * time.Second

func startRedis(ctx context.Context) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	r, err := child.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	return &server{name: rival, addr: r.Addr, close: r.Close}, nil
}

// startUp runs polder up: server and lent memory in one process.
func startUp(ctx context.Context, polder, name string, local, lend int64, flags ...string) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := child.StartReady(ctx, child.Command{Path: polder, Args: append([]string{
		"up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn",
		"--local", fmt.Sprint(local), "--lend", fmt.Sprint(lend),
	}, flags...)})
	if err != nil {
		return nil, err
	}
	return &server{name: name, addr: p.Addr("redis"), admin: p.Addr("admin"), close: p.Stop, reads: farReads}, nil
}

// startFar runs a node and a server over it.
func startFar(ctx context.Context, polder, name string, local, lend int64) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	node, err := child.StartReady(ctx, child.Command{Path: polder, Args: []string{
		"node", "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "warn", "--client-budget", "0", "--lend", fmt.Sprint(lend),
	}})
	if err != nil {
		return nil, err
	}
	serve, err := child.StartReady(ctx, child.Command{Path: polder, Args: []string{
		"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn",
		"--local", fmt.Sprint(local), "--far", node.Addr("verbs"),
	}})
	if err != nil {
		return nil, errors.Join(err, node.Stop())
	}
	return &server{name: name, addr: serve.Addr("redis"), admin: serve.Addr("admin"), reads: farReads, close: func() error {
		return errors.Join(serve.Stop(), node.Stop())
	}}, nil
}

func closeAll(servers []*server) error {
	var errs []error
	for _, s := range servers {
		if err := s.close(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", strings.TrimSpace(s.name), err))
		}
	}
	return errors.Join(errs...)
}
