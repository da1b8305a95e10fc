package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
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
		r, err := startRedis(ctx, path, args)
		if err == nil {
			return r, nil
		}
		failed = err
	}
	return nil, failed
}

func startRedis(ctx context.Context, path string, args []string) (*Redis, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("cannot find a free port: %w", err)
	}
	addr := lis.Addr().String()
	_, port, err := net.SplitHostPort(addr)
	if err := errors.Join(err, lis.Close()); err != nil {
		return nil, fmt.Errorf("cannot find a free port: %w", err)
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

// ready asks until there is an answer.
func (r *Redis) ready(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ping(ctx, r.Addr) == nil {
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

func ping(ctx context.Context, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "+PONG\r\n" {
		err = fmt.Errorf("got %q to PING", line)
	}
	return err
}

// Close ends the server and removes its directory.
func (r *Redis) Close() error {
	r.Kill()
	return os.RemoveAll(r.dir)
}
