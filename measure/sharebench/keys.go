package sharebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"polder/measure/benchout"
	"polder/share"
)

// keysBatch is how many keys one message puts or deletes in this benchmark.
const keysBatch = 128

// runKeys measures what a large number of keys costs all clients. It measures how long
// a request that changes nothing takes while nothing else goes on; while the daemon
// saves checkpoints and another client puts and deletes keys; while checkpoints fail and
// the log has no room; and while the client that owns all keys leaves. Then it kills the
// daemon and measures how long a new one takes until it serves.
func runKeys(ctx context.Context, opt Options, dir string) (err error) {
	n := 1_000_000
	if opt.Short {
		n = 200_000
	}
	// A file in tmpfs, if there is one: it survives the daemon and needs no disk.
	pool, err := os.MkdirTemp("/dev/shm", "polder-bench-share")
	if err != nil {
		pool = filepath.Join(dir, "pool")
		err = os.MkdirAll(pool, 0o700)
	}
	if err != nil {
		return fmt.Errorf("cannot make a directory for the pool: %w", err)
	}
	defer os.RemoveAll(pool)
	opt.Progress(0, 3, fmt.Sprintf("%d keys", n))
	d, err := startDaemon(ctx, opt, dir, "--pool", "file:"+pool+":512MiB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	c, err := share.Open(ctx, share.Config{Socket: d.socket, PageSize: 64, RegionSize: 4 << 20})
	if err != nil {
		return err
	}
	if err := putKeys(ctx, c, "k", n); err != nil {
		return errors.Join(err, c.Close())
	}
	opt.Progress(1, 3, "a checkpoint")
	m, err := measureStalls(ctx, d.socket, c, filepath.Join(dir, "state", "log"))
	if err != nil {
		return err
	}
	opt.Progress(2, 3, "a restart")
	d.Kill()
	began := time.Now()
	again, err := startDaemon(ctx, opt, dir, "--pool", "file:"+pool+":512MiB")
	if err != nil {
		return err
	}
	d = again
	took := time.Since(began)
	at := func(what string) string { return fmt.Sprintf("%s, %d keys", what, n) }
	return printAll(opt.Out, []benchout.Row{
		row(at("exists"), "p99", m.quiet.P99/1e3, "µs"),
		row(at("exists"), "longest", m.quiet.Longest/1e6, "ms"),
		row(at("exists during changes and a checkpoint"), "p99", m.busy.P99/1e3, "µs"),
		row(at("exists during changes and a checkpoint"), "longest", m.busy.Longest/1e6, "ms"),
		row(at("exists while checkpoints fail"), "p99", m.failing.P99/1e3, "µs"),
		row(at("exists while checkpoints fail"), "longest", m.failing.Longest/1e6, "ms"),
		row(at("exists while the owner of all leaves"), "longest", m.leaving.Longest/1e6, "ms"),
		row(at("killed and started"), "until it serves", took.Seconds(), "s"),
	})
}

func putKeys(ctx context.Context, c *share.Client, prefix string, n int) error {
	items := make([]share.Item, 0, keysBatch)
	for i := range n {
		p, err := c.Alloc(ctx)
		if err != nil {
			return err
		}
		items = append(items, share.Item{Key: fmt.Sprint(prefix, i), Page: p, Len: 1})
		if len(items) < keysBatch && i < n-1 {
			continue
		}
		if _, err := c.PutAll(ctx, items); err != nil {
			for _, it := range items {
				err = errors.Join(err, it.Page.Free())
			}
			return err
		}
		items = items[:0]
	}
	return nil
}

// stalls are the times that a request that changes nothing took in each situation.
type stalls struct{ quiet, busy, failing, leaving summary }

// measureStalls measures a request that changes nothing over and over: for a second;
// while c puts and deletes keys, until two more checkpoints have been saved; while c goes
// on with that and the log's directory is away, so that no checkpoint can be saved and
// soon nothing can be put; and while c, which owns all the keys, is closed.
func measureStalls(ctx context.Context, socket string, c *share.Client, log string) (m stalls, err error) {
	prober, err := share.Open(ctx, share.Config{Socket: socket})
	if err != nil {
		return m, errors.Join(err, c.Close())
	}
	defer func() { err = errors.Join(err, prober.Close()) }()
	during := func(what func() error) (summary, error) {
		var s summary
		var ended atomic.Bool
		done := make(chan error, 1)
		go func() {
			defer ended.Store(true)
			done <- what()
		}()
		var err error
		for !ended.Load() && err == nil {
			began := time.Now()
			_, err = prober.Exists(ctx, "k7")
			s.add(time.Since(began))
		}
		return s.finish(0), errors.Join(err, <-done)
	}
	if m.quiet, err = during(func() error { time.Sleep(time.Second); return nil }); err == nil {
		m.busy, err = during(func() error { return churn(ctx, c) })
	}
	if err == nil {
		m.failing, err = during(func() error { return failing(ctx, c, log) })
	}
	if err != nil {
		return m, errors.Join(err, c.Close())
	}
	m.leaving, err = during(c.Close)
	return m, err
}

// churn puts and deletes keys until two more checkpoints have been saved.
func churn(ctx context.Context, c *share.Client) error {
	first, err := c.Stats(ctx)
	for round := 0; err == nil; round++ {
		if err = churnOnce(ctx, c, round); err != nil {
			break
		}
		var info share.Info
		if info, err = c.Stats(ctx); info.Checkpoints >= first.Checkpoints+2 {
			break
		}
	}
	return err
}

// churnOnce puts keysBatch keys and deletes them again.
func churnOnce(ctx context.Context, c *share.Client, round int) error {
	prefix := fmt.Sprintf("churn/%d/", round)
	err := putKeys(ctx, c, prefix, keysBatch)
	keys := make([]string, keysBatch)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, i)
	}
	if err == nil {
		_, err = c.DeleteAll(ctx, keys)
	}
	return err
}

// failing takes the log's directory away, which to the daemon is like a disk that is full
// or gone. It puts and deletes keys, as churn does, until two seconds after a checkpoint
// has failed. Then it brings the directory back, and waits until a key can be put.
func failing(ctx context.Context, c *share.Client, log string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	first, err := c.Stats(ctx)
	if err == nil {
		err = os.Rename(log, log+".away")
	}
	if err != nil {
		return err
	}
	var since time.Time // when a checkpoint was first seen to have failed
	for round := 1; since.IsZero() || time.Since(since) < 2*time.Second; round++ {
		if err = refused(churnOnce(ctx, c, -round)); err != nil {
			break
		}
		var info share.Info
		if info, err = c.Stats(ctx); err != nil {
			break
		}
		if since.IsZero() && info.FailedCheckpoints > first.FailedCheckpoints {
			since = time.Now()
		}
	}
	if err = errors.Join(err, os.Rename(log+".away", log)); err != nil {
		return err
	}
	for err = share.ErrNoLog; err != nil && refused(err) == nil; {
		time.Sleep(10 * time.Millisecond)
		err = putKeys(ctx, c, "healed", 1)
	}
	return err
}

// refused returns err, or nil if err only says that nothing can be logged.
func refused(err error) error {
	if errors.Is(err, share.ErrNoLog) {
		return nil
	}
	return err
}
