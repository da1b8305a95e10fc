package advise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Sample is what a look at a server has found.
type Sample struct {
	Keys     int64   // keys that the database has
	Accesses float64 // uses of keys, a second
	Looked   []Key   // some of the keys, chosen by their hashes
	Foreign  int     // those of Looked that are neither strings nor hashes
}

// Key is one key of a sample.
type Key struct {
	Idle  int   // age: seconds from the last use to the look, both times cut to whole seconds
	Bytes int64 // what name and value take
}

// Config says how to look.
type Config struct {
	Keys     int                                // the most keys to look at
	Watch    time.Duration                      // for how long to count uses of keys
	Progress func(done, total int, what string) // nil for nobody
}

const (
	batch = 64 // keys that are looked at in one round trip
	// rest is for how many times the duration of a batch the server is left alone after
	// the batch.
	rest = 4
	// fewest is how many keys a curve needs.
	fewest = 200
)

// Look takes a sample of the database that c is connected to.
func Look(ctx context.Context, c *redis.Client, cfg Config) (*Sample, error) {
	var s Sample
	var err error
	if s.Keys, err = c.DBSize(ctx).Result(); err != nil {
		return nil, explain(err)
	}
	if s.Keys < fewest {
		return nil, fmt.Errorf("cannot say anything of %d keys: expected a database with at least %d", s.Keys, fewest)
	}
	if s.Accesses, err = accesses(ctx, c, cfg.Watch); err != nil {
		return nil, explain(err)
	}
	if s.Accesses == 0 {
		return nil, fmt.Errorf("cannot say anything: no key was used in %v; look while the server has its usual load", cfg.Watch)
	}
	if err := s.look(ctx, c, cfg); err != nil {
		return nil, explain(err)
	}
	if len(s.Looked) < fewest {
		return nil, fmt.Errorf("cannot say anything of %d keys: most of those that SCAN named are gone", len(s.Looked))
	}
	return &s, nil
}

// accesses counts the uses of keys, a second.
func accesses(ctx context.Context, c *redis.Client, watch time.Duration) (float64, error) {
	commands, err := c.Command(ctx).Result()
	if err != nil {
		return 0, err
	}
	count := func() (float64, error) {
		info, err := c.Info(ctx, "stats", "commandstats").Result()
		if err != nil {
			return 0, err
		}
		return used(info, func(command string) bool {
			d := commands[command]
			return d != nil && !d.ReadOnly && d.FirstKeyPos > 0
		}), nil
	}
	before, err := count()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	timer := time.NewTimer(watch)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	after, err := count()
	return (after - before) / time.Since(began).Seconds(), err
}

// used returns how many uses of keys INFO has counted: reads that found their key, and writes.
func used(info string, writes func(command string) bool) (sum float64) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if command, ok := strings.CutPrefix(name, "cmdstat_"); ok {
			if !writes(command) {
				continue
			}
			value, _, _ = strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		} else if name != "keyspace_hits" {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err == nil {
			sum += n
		}
	}
	return sum
}

// look adds keys to s. SCAN returns keys in the order of their hashes, so the first keys
// are as good a sample as any.
func (s *Sample) look(ctx context.Context, c *redis.Client, cfg Config) error {
	var cursor uint64
	for len(s.Looked) < cfg.Keys {
		began := time.Now()
		keys, next, err := c.Scan(ctx, cursor, "", batch).Result()
		if err != nil {
			return err
		}
		if err := s.lookAt(ctx, c, keys[:min(len(keys), cfg.Keys-len(s.Looked))]); err != nil {
			return err
		}
		if cfg.Progress != nil {
			cfg.Progress(min(len(s.Looked), cfg.Keys), int(min(int64(cfg.Keys), s.Keys)), "looking at keys")
		}
		if cursor = next; cursor == 0 {
			return nil
		}
		timer := time.NewTimer(rest * time.Since(began))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}

func (s *Sample) lookAt(ctx context.Context, c *redis.Client, keys []string) error {
	pipe := c.Pipeline()
	type answer struct {
		kind *redis.StatusCmd
		idle *redis.DurationCmd
		size *redis.IntCmd
	}
	answers := make([]answer, len(keys))
	for i, k := range keys {
		answers[i] = answer{pipe.Type(ctx, k), pipe.ObjectIdleTime(ctx, k), pipe.MemoryUsage(ctx, k)}
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	for _, a := range answers {
		if a.idle.Err() != nil || a.size.Err() != nil {
			continue // the key has gone meanwhile
		}
		switch a.kind.Val() {
		case "string", "hash":
		case "none":
			continue
		default:
			s.Foreign++
		}
		s.Looked = append(s.Looked, Key{int(a.idle.Val() / time.Second), a.size.Val()})
	}
	return nil
}

// explain says what to do about an error of the server's.
func explain(err error) error {
	var reply redis.Error
	switch text := err.Error(); {
	case !errors.As(err, &reply):
		if errors.As(err, new(net.Error)) {
			return fmt.Errorf("cannot look at the server: %w", err)
		}
		return err
	case strings.Contains(text, "LFU"):
		return errors.New("cannot look at the server: with a maxmemory-policy that ends in -lfu, Redis does not know when a key was last used; " +
			"look at a server with another policy, such as allkeys-lru")
	case strings.HasPrefix(text, "NOAUTH"), strings.HasPrefix(text, "WRONGPASS"):
		return fmt.Errorf("cannot look at the server: %w: set REDISCLI_AUTH to its password", err)
	case strings.HasPrefix(text, "NOPERM"):
		return fmt.Errorf("cannot look at the server: %w: the user needs the commands command, dbsize, info, scan, type, object|idletime and memory|usage", err)
	}
	return fmt.Errorf("cannot look at the server: %w", err)
}
