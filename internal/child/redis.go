package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Redis is a redis-server that keeps nothing: no snapshots, no log, and a
// directory of its own that goes with it.
type Redis struct {
	*Process
	Addr string
	dir  string
}

// StartRedis runs redis-server at a free port of the loopback interface and
// waits until it answers. More arguments are redis-server's own.
func StartRedis(ctx context.Context, args ...string) (*Redis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("cannot start redis-server: %w (on Debian: apt-get install redis-server)", err)
	}
	// Redis does not choose a port itself, so another process may take the
	// one found free here: then it ends at once, and the next is tried.
	var failed error
	for range 3 {
		addr, err := freeAddr()
		if err != nil {
			return nil, err
		}
		r, err := startRedis(ctx, path, addr, args)
		if err == nil {
			return r, nil
		}
		failed = err
	}
	return nil, failed
}

func freeAddr() (string, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = lis.Close()
	}
	if err != nil {
		return "", fmt.Errorf("cannot find a free port: %w", err)
	}
	return lis.Addr().String(), nil
}

func startRedis(ctx context.Context, path, addr string, args []string) (*Redis, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("cannot start redis-server: %w", err)
	}
	dir, err := os.MkdirTemp("", "polder-redis-")
	if err != nil {
		return nil, fmt.Errorf("cannot start redis-server: %w", err)
	}
	p, err := Start(Command{Path: path, Args: append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
		"--daemonize", "no", "--logfile", "", "--loglevel", "warning", "--protected-mode", "no",
	}, args...)})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r := &Redis{Process: p, Addr: addr, dir: dir}
	if err := r.ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start redis-server: %w", err), r.Close())
	}
	return r, nil
}

// ready asks until there is an answer of this process: where two chose the same port,
// the other one's Redis answers while this one ends.
func (r *Redis) ready(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if pid, err := answers(ctx, r.Addr); err == nil && pid == r.PID() {
			return nil
		}
		select {
		case <-tick.C:
		case <-r.Done():
			return r.explain()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// answers is which process the Redis at addr is.
func answers(ctx context.Context, addr string) (pid int, err error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	if _, err := c.Write([]byte("PING\r\nINFO server\r\nQUIT\r\n")); err != nil {
		return 0, err
	}
	info, err := io.ReadAll(c)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if n, ok := strings.CutPrefix(line, "process_id:"); ok && bytes.HasPrefix(info, []byte("+PONG\r\n")) {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, fmt.Errorf("got %q to PING and INFO", info)
}

// Close ends the server and removes its directory.
func (r *Redis) Close() error {
	r.Kill()
	return os.RemoveAll(r.dir)
}
