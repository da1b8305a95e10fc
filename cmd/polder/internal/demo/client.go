package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/schollz/progressbar/v3"

	"polder/internal/progress"
)

// workers is how many pipelines are under way at a time.
const workers = 4

// client stores and fetches files.
type client struct {
	redis *redis.Client
	cfg   Config
}

func newClient(addr string, cfg Config) *client {
	return &client{cfg: cfg, redis: redis.NewClient(&redis.Options{
		Addr:                  addr,
		PoolSize:              workers,
		ReadTimeout:           30 * time.Second,
		WriteTimeout:          30 * time.Second,
		ContextTimeoutEnabled: true,
	})}
}

func (c *client) close() error { return c.redis.Close() }

// limit asks the server for the largest value that it takes.
func (c *client) limit(ctx context.Context) (int64, error) {
	got, err := c.redis.ConfigGet(ctx, "proto-max-bulk-len").Result()
	if err != nil {
		return 0, fmt.Errorf("cannot ask for the largest value: %w", err)
	}
	n, err := strconv.ParseInt(got["proto-max-bulk-len"], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot ask for the largest value: %w", err)
	}
	// A value must fit into the local budget beside others, too.
	return min(n, c.cfg.Local/4), nil
}

// store puts every file that is not too large under its path.
func (c *client) store(ctx context.Context, files []file, total, limit int64) (time.Duration, error) {
	return c.each(ctx, files, "store", false, total, func(ctx context.Context, run []int) (int64, error) {
		var size int64
		pipe := c.redis.Pipeline()
		for _, i := range run {
			f := &files[i]
			b, err := os.ReadFile(f.full)
			if err != nil {
				return 0, err
			}
			if size += int64(len(b)); int64(len(b)) > limit {
				continue
			}
			f.sum, f.stored, f.size = sha256.Sum256(b), true, int64(len(b))
			pipe.Set(ctx, f.path, b, 0)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return 0, fmt.Errorf("cannot store %s or one of the %d files after it: %w", files[run[0]].path, len(run)-1, err)
		}
		return size, nil
	})
}

// compare reads every file that was stored, the newest first, since some of
// them are still local, and notes whether it is the same.
func (c *client) compare(ctx context.Context, files []file, total int64) (time.Duration, error) {
	return c.each(ctx, files, "read back", true, total, func(ctx context.Context, run []int) (int64, error) {
		pipe := c.redis.Pipeline()
		got := make([]*redis.StringCmd, len(run))
		for j, i := range run {
			if files[i].stored {
				got[j] = pipe.Get(ctx, files[i].path)
			}
		}
		// Replies are looked at one by one.
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return 0, fmt.Errorf("cannot read %s or one of the %d files after it: %w", files[run[0]].path, len(run)-1, err)
		}
		var size int64
		for j, i := range run {
			f := &files[i]
			size += f.size
			if got[j] == nil {
				continue
			}
			b, err := got[j].Bytes()
			f.equal = err == nil && sha256.Sum256(b) == f.sum
		}
		return size, nil
	})
}

// each has the workers do all batches, and shows how far they are in bytes.
// It ends with the first error.
func (c *client) each(ctx context.Context, files []file, what string, newestFirst bool, total int64,
	do func(context.Context, []int) (int64, error)) (time.Duration, error) {
	bar := c.bar(what, total)
	start := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan []int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for run := range work {
				n, err := do(ctx, run)
				if err != nil {
					cancel(err)
				}
				_ = bar.Add64(n) // fails if a file has grown, which does not matter
			}
		})
	}
	all := batches(files)
	if newestFirst {
		slices.Reverse(all)
	}
	for _, run := range all {
		select {
		case work <- run:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return time.Since(start), bar.Finish()
}

func (c *client) bar(what string, total int64) *progressbar.ProgressBar {
	return progress.Bytes(c.cfg.Progress, what, total)
}
