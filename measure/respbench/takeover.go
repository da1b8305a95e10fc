package respbench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/load"
)

// world is the witnesses and nodes, which outlive the servers.
type world struct {
	polder         string
	witnesses, far []string
	processes      []*child.Process
}

// startWorld runs three witnesses, which sync to dir, and two nodes that lend lend bytes each.
func startWorld(ctx context.Context, polder, dir string, lend int64) (w *world, err error) {
	w = &world{polder: polder}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	start := func(args ...string) (*child.Process, error) {
		p, err := child.StartReady(ctx, child.Command{Path: polder, Args: append(args, "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "warn")})
		if err == nil {
			w.processes = append(w.processes, p)
		}
		return p, err
	}
	for i := range 3 {
		witness := filepath.Join(dir, fmt.Sprint(i))
		if err := os.MkdirAll(witness, 0o700); err != nil {
			return nil, err
		}
		p, err := start("witness", "--dir", witness)
		if err != nil {
			return nil, err
		}
		w.witnesses = append(w.witnesses, p.Addr("witness"))
	}
	set, err := child.Start(child.Command{Path: polder, Args: append([]string{"witness", "set"}, w.witnesses...)})
	if err != nil {
		return nil, err
	}
	<-set.Done()
	if err := set.Err(); err != nil {
		return nil, err
	}
	for range 2 {
		p, err := start("node", "--client-budget", "0", "--lend", fmt.Sprint(lend), "--overcommit")
		if err != nil {
			return nil, err
		}
		w.far = append(w.far, p.Addr("verbs"))
	}
	return w, nil
}

func (w *world) close() (err error) {
	for _, p := range w.processes {
		err = errors.Join(err, p.Stop())
	}
	return err
}

// server returns the command that runs a durable server of a heap in the memory of the nodes.
func (w *world) server(heap, listen string, local int64, more ...string) child.Command {
	return child.Command{Path: w.polder, Args: append([]string{
		"serve", "--listen", listen, "--admin", "127.0.0.1:0", "--log-level", "warn", "--local", fmt.Sprint(local),
		"--far", strings.Join(w.far, ","), "--witness", strings.Join(w.witnesses, ","), "--heap", heap, "--durable",
	}, more...)}
}

// taken is how long a takeover has taken, in milliseconds since the owner was killed.
type taken struct {
	known float64 // until the standby said that it is the master
	first float64 // until the standby's first right answer
}

// takeover fills a server over nodes, kills it, and measures how long it takes until a standby answers in its place.
func (b *bench) takeover(ctx context.Context, dir string, keys, size int, local int64) (t taken, err error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	w, err := startWorld(ctx, b.cfg.Polder, dir, int64(keys)*int64(load.KeySize+size+entryOverhead)*3+256<<20)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, w.close(), os.RemoveAll(dir)) }()
	owner, err := child.StartReady(ctx, w.server("bench", "127.0.0.1:0", local))
	if err != nil {
		return t, err
	}
	defer func() { _ = killer(owner)() }() // already dead, if all went well
	addr := owner.Addr("redis")
	if _, err := b.load(ctx, &server{name: "durable in memory", addr: addr}, load.Config{Pipeline: 16, Op: load.Set, ValueSize: size, Sequence: load.Ascending(keys), Count: keys}); err != nil {
		return t, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return t, err
	}
	next := lis.Addr().String()
	_ = lis.Close() // most likely nobody else takes the port before the standby does
	standby, err := child.Start(w.server("bench", next, local, "--standby"))
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, standby.Stop()) }()
	c := redis.NewClient(&redis.Options{Addr: next, MaxRetries: -1})
	defer c.Close()
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: next, MaxRetries: -1})
	defer sentinel.Close()
	until := func(what string, is func() (bool, error)) error {
		for {
			ok, err := is()
			if ok {
				return nil
			}
			select {
			case <-standby.Done():
				return fmt.Errorf("a server that stands by: %w", standby.Ended())
			case <-ctx.Done():
				return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
			case <-time.After(time.Millisecond):
			}
		}
	}
	masterIs := func(addr string) func() (bool, error) {
		return func() (bool, error) {
			got, err := sentinel.GetMasterAddrByName(ctx, "bench").Result()
			return err == nil && len(got) == 2 && net.JoinHostPort(got[0], got[1]) == addr, err
		}
	}
	if err := until("a server that stands by knows its master", masterIs(addr)); err != nil {
		return t, err
	}
	if err := killer(owner)(); err != nil {
		return t, err
	}
	killed := time.Now()
	ms := func() float64 { return float64(time.Since(killed).Microseconds()) / 1000 }
	if err := until("it takes over", masterIs(next)); err != nil {
		return t, err
	}
	t.known = ms()
	key := uint32(keys - 1)
	err = until("it answers", func() (bool, error) {
		got, err := c.Get(ctx, string(load.Key(key))).Bytes()
		return err == nil && string(got) == string(load.Value(key, size)), err
	})
	t.first = ms()
	return t, err
}
