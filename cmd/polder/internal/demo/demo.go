// Package demo shows what Polder is for, on real input: every file of a
// source tree, stored under its path in a server whose local budget is a
// small part of it, and read back.
//
// The memory node and the server are processes of their own. The client is
// go-redis, as in any other program. What the server returns is compared by
// SHA-256 with what the file held when it was stored.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"polder/internal/child"
	"polder/internal/config"
	"polder/internal/console"
)

// Config says what to store and where to print.
type Config struct {
	Polder string // the path of this program
	Dir    string // the tree; "" means Go's own sources
	Local  int64  // the server's local budget in bytes
	Out    io.Writer
	// Progress, if set, receives a progress bar.
	Progress io.Writer
}

// startTimeout bounds the start of each process.
const startTimeout = 15 * time.Second

// Run stores, reads back, compares, and prints a table. It fails if any byte
// differs.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Dir == "" {
		if cfg.Dir, err = goSources(ctx); err != nil {
			return err
		}
	}
	files, err := list(cfg.Dir)
	if err != nil {
		return err
	}
	var total int64
	for _, f := range files {
		total += f.size
	}

	// More than total, as room for log segments that are not full yet.
	lend := total + total/2 + 256<<20
	node, err := startChild(ctx, cfg.Polder, "node", "--client-budget", "0", "--lend", fmt.Sprint(lend))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Stop()) }()
	server, err := startChild(ctx, cfg.Polder, "serve", "--far", node.Addr("verbs"), "--local", fmt.Sprint(cfg.Local))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()

	r := &report{dir: cfg.Dir, local: cfg.Local, files: len(files), bytes: total}
	if _, err := fmt.Fprintf(cfg.Out, "%s: %d files, %s; local budget %s\n"+
		"node   process %d at %s\nserver process %d at %s\n\n", cfg.Dir, len(files), mib(total), config.FormatSize(cfg.Local),
		node.PID(), node.Addr("verbs"), server.PID(), server.Addr("redis")); err != nil {
		return err
	}
	c := newClient(server.Addr("redis"), cfg)
	defer func() { err = errors.Join(err, c.close()) }()
	if r.limit, err = c.limit(ctx); err != nil {
		return err
	}
	if r.store, err = c.store(ctx, files, total, r.limit); err != nil {
		return err
	}
	if r.fetch, err = c.compare(ctx, files, total); err != nil {
		return err
	}
	if r.serverResident, err = server.Resident(); err != nil {
		return err
	}
	if r.nodeResident, err = node.Resident(); err != nil {
		return err
	}
	if r.status, err = console.Query(ctx, nil, "", server.Addr("admin"), 0); err != nil {
		return err
	}
	for i := range files {
		r.count(&files[i])
	}
	if err := r.print(cfg.Out); err != nil {
		return err
	}
	return r.verdict()
}

func startChild(ctx context.Context, path string, args ...string) (*child.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	args = append(args, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn")
	return child.StartReady(ctx, child.Command{Path: path, Args: args, Stderr: os.Stderr})
}

// goSources finds the source tree of the Go installation.
func goSources(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find Go's sources: %w: name a directory with --dir", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "src"), nil
}
