package respbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"polder/internal/child"
	"polder/internal/console"
	"polder/measure/benchout"
	"polder/pool"
)

// idleChunk is a size of chunks in which a node lends idle memory, and the goal for giving back a GiB of it.
type idleChunk struct {
	size int64
	name string
	goal time.Duration
}

var idleChunks = []idleChunk{
	{1 << 20, "chunks of 1 MiB", 300 * time.Millisecond},
	{2 << 20, "chunks of 2 MiB, in huge pages", 100 * time.Millisecond},
}

// idleRounds is how often memory is given back; the median counts.
const idleRounds = 5

// givenBack measures how fast a node that lends idle memory gives it back: the time from the operator's demand to the
// node's answer that the host has the memory. The client has written to all of that memory, and has permitted the
// node to drop it.
func (b *bench) givenBack(ctx context.Context, c idleChunk, scale surviveScale) (err error) {
	b.cfg.Progress(b.done, b.total, "memory given back, "+c.name)
	dir, err := os.MkdirTemp("", "polder-bench-")
	if err != nil {
		return fmt.Errorf("cannot make a token for a node: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	const secret = "bench-of-memory-given-back"
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("cannot make a token for a node: %w", err)
	}
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	node, err := child.StartReady(start, child.Command{Path: b.cfg.Polder, Args: []string{
		"node", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--admin-token-file", token, "--log-level", "error", "--client-budget", "0",
		"--lend", fmt.Sprintf("idle:%d", scale.idle+2*c.size), "--chunk", fmt.Sprint(c.size),
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Stop()) }()
	p, err := pool.Dial(start, node.Addr("verbs"))
	if err != nil {
		return err
	}
	defer p.Close()
	content := bytes.Repeat([]byte{0x5a}, int(c.size))
	borrow := func() (*pool.Chunk, error) {
		m, err := p.Alloc(ctx, c.size)
		if err == nil {
			err = m.WriteBulk(ctx, content, 0)
		}
		return m, err
	}
	stays, err := borrow()
	if err != nil {
		return err
	}
	var took []float64
	for range idleRounds {
		ms, err := b.giveBackOnce(ctx, p, borrow, c, node.Addr("admin"), secret, scale.idle)
		if err != nil {
			return err
		}
		took = append(took, ms)
	}
	got := make([]byte, c.size)
	if _, err := stays.ReadContext(ctx, got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, content) {
		return errors.New("what was not to vanish has, in part")
	}
	b.done++
	slices.Sort(took)
	gib := float64(scale.idle) / (1 << 30)
	name := fmt.Sprintf("%g GiB given back, %s", gib, c.name)
	return b.cfg.Printer.Print(benchout.Row{Bench: "survive", Case: name, Metric: "from demand to answer", Value: took[len(took)/2], Unit: "ms"}.
		Against("goal", gib*float64(c.goal.Milliseconds()), benchout.Lower))
}

// giveBackOnce borrows idle bytes, permits the node to drop them, demands them from the node, and returns the
// milliseconds until the node has answered that the host has them.
func (b *bench) giveBackOnce(ctx context.Context, p *pool.Pool, borrow func() (*pool.Chunk, error), c idleChunk, admin, secret string, idle int64) (float64, error) {
	var chunks []*pool.Chunk
	for range idle / c.size {
		m, err := borrow()
		if err == nil {
			err = m.MayVanish(ctx)
		}
		if err != nil {
			return 0, err
		}
		chunks = append(chunks, m)
	}
	began := time.Now()
	if _, err := console.Lend(ctx, nil, secret, admin, c.size, recoveryTimeout); err != nil {
		return 0, err
	}
	took := time.Since(began)
	for _, m := range chunks {
		for !m.Vanished() {
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			time.Sleep(time.Millisecond)
		}
		if err := m.Free(ctx); err != nil {
			return 0, err
		}
	}
	if _, err := console.Lend(ctx, nil, secret, admin, math.MaxInt64, recoveryTimeout); err != nil {
		return 0, err
	}
	// Wait until the node lends again. After a shortage of the host that would take a while, but the operator's
	// demand was no shortage.
	for {
		m, err := p.Alloc(ctx, c.size)
		if err == nil {
			return took.Seconds() * 1000, m.Free(ctx)
		}
		if !errors.Is(err, pool.ErrNoMemory) {
			return 0, err
		}
		time.Sleep(time.Millisecond)
	}
}
