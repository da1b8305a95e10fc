package daemon

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"polder/far"
	"polder/far/named"
	"polder/holder"
	"polder/internal/operator"
	"polder/partition"
	"polder/pool"
	"polder/verbs"
)

// Removal says how a heap in the memory of nodes is to be removed.
type Removal struct {
	BorrowConfig      // Heap, Witness or TwoNodes, and how to reach the nodes
	Force        bool // remove it even if another process has it open, or nodes cannot be reached
	Control      *operator.Control

	gone func(ctx context.Context, owner string) bool // see named.Config.Gone
	made func(number int) bool                        // whether to remove a partition with the heap; nil for all
}

const (
	nodeTime  = 10 * time.Second // how long a node may take to get its memory back
	reachTime = 2 * time.Second  // how long to try to reach a node that does not answer
	takeovers = 20               // how often to try to take a heap from an owner that changes the manifest meanwhile
	atOnce    = time.Millisecond // named.Config.Patience when a heap is taken from its owner by force
)

// tool is what a command that is no daemon calls itself as the owner of a heap.
func tool(what string) string {
	host, _ := os.Hostname()
	return fmt.Sprintf("polder heap %s at %s, process %d", what, cmp.Or(host, "a host without a name"), os.Getpid())
}

// RemoveHeap gives back the memory that a heap has at nodes, and clears the heap's manifest, so that its name is free
// again. It calls done for each node, with the error if the node has not given back the memory. For these nodes the
// manifest keeps what it takes to do so later, and RemoveHeap fails, unless r.Force is set. RemoveHeap fails with a
// *named.OwnedError if another process has the heap open, unless r.Force is set.
func RemoveHeap(ctx context.Context, r Removal, done func(node string, err error)) (err error) {
	if r.gone == nil {
		r.gone = ownerGone("")
	}
	p := newProcess("heap", r.Control)
	defer p.close(&err)
	var k kept
	defer func() { err = errors.Join(err, k.hangUp()) }() // after the owner is closed below
	if err := errors.Join(k.keeper(p, &r.BorrowConfig), k.reach(ctx)); err != nil {
		return err
	}
	b, _, err := k.register.Read(ctx)
	if err != nil {
		return err
	}
	if b == nil {
		return NoHeapError(r.Heap)
	}
	if partition.IsMap(b) {
		return removePartitions(ctx, r, k.register, done)
	}
	m, err := named.DecodeManifest(b)
	if err != nil {
		return fmt.Errorf("heap %s: %w", r.Heap, err)
	}
	if m.Gone() {
		return NoHeapError(r.Heap)
	}
	owner, err := r.own(ctx, named.Config{Me: tool("rm"), Gone: r.gone, Sessions: k.sessions.get, Logger: p.Logger}, &k)
	if err != nil {
		return fmt.Errorf("heap %s: %w", r.Heap, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		err = errors.Join(err, owner.Close(ctx))
	}()
	k.sessions.set(owner.Sessions())
	sessions, err := k.sessions.pool()
	if err != nil {
		return fmt.Errorf("heap %s: %w", r.Heap, err)
	}
	if err := owner.Ready(ctx); err != nil {
		return err
	}
	if err := owner.Empty(ctx); err != nil {
		return fmt.Errorf("heap %s: %w", r.Heap, err)
	}
	nodes := slices.Sorted(maps.Keys(sessions))
	if len(r.Far) == 0 {
		r.Far = nodes
	}
	if len(nodes) == 0 {
		return nil
	}
	from, err := p.borrow(ctx, r.BorrowConfig)
	if err != nil {
		return fmt.Errorf("heap %s: %w", r.Heap, err)
	}
	from.Timeout, from.Logger = r.OpTimeout, p.Logger
	failed := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		cfg := from.Config
		cfg.Nodes = []pool.NodeConfig{from.node(node)}
		cfg.Keep = &pool.Keep{Name: r.Heap, Epoch: owner.Epoch(), Sessions: map[string]pool.Session{node: sessions[node]}}
		wg.Go(func() {
			if failed[i] = giveBack(ctx, cfg, node, sessions[node]); failed[i] == nil || r.Force {
				k.sessions.remove(node)
			}
		})
	}
	wg.Wait()
	unreached := 0
	for i, node := range nodes {
		done(node, failed[i])
		if failed[i] != nil {
			unreached++
		}
	}
	if unreached > 0 && !r.Force {
		return fmt.Errorf("heap %s: %d of %d nodes have not given back what it had there, and its manifest knows of them: "+
			"remove it again when they can be reached, or with --force, and the memory stays lent until they are started again", r.Heap, unreached, len(nodes))
	}
	return nil
}

// removersAtOnce is how many partitions are removed at a time.
const removersAtOnce = 8

// removePartitions is RemoveHeap for a heap whose partitions servers share. It removes the partitions, and then the
// map.
func removePartitions(ctx context.Context, r Removal, reg holder.Register, done func(node string, err error)) error {
	m, version, err := partition.BeginRemoval(ctx, reg, r.Force)
	if err != nil {
		return fmt.Errorf("heap %s: %w", r.Heap, err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	turns, errs := make(chan struct{}, removersAtOnce), make([]error, m.Partitions)
	for number := range m.Partitions {
		if r.made != nil && !r.made(number) {
			continue
		}
		part := r
		part.Heap = PartitionHeap(r.Heap, number)
		part.gone = func(context.Context, string) bool { return true } // no server is in the map
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			err := RemoveHeap(ctx, part, func(node string, err error) {
				mu.Lock()
				defer mu.Unlock()
				done(node, err)
			})
			if !errors.As(err, new(NoHeapError)) {
				errs[number] = err
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// As with any heap, only the epoch is left.
	if _, err := reg.Swap(ctx, version, (&named.Manifest{Epoch: m.Epoch}).Encode()); err != nil {
		return fmt.Errorf("heap %s: cannot remove the map of its partitions: %w", r.Heap, err)
	}
	return nil
}

// NoHeapError says that nobody knows of a heap of that name.
type NoHeapError string

func (e NoHeapError) Error() string { return fmt.Sprintf("there is no heap %s", string(e)) }

// own makes this process the heap's owner; with Force, even if the present owner is alive.
func (r *Removal) own(ctx context.Context, cfg named.Config, k *kept) (o *named.Owner, err error) {
	if !r.Force {
		return named.Own(ctx, k.register, cfg)
	}
	cfg.Patience = atOnce
	for range takeovers {
		var owned *named.OwnedError
		if o, err = named.Own(ctx, k.register, cfg); !errors.As(err, &owned) {
			return o, err
		}
	}
	return nil, err
}

// giveBack makes a node take back the memory of a session, and returns when the node does not know the session any
// more.
func giveBack(ctx context.Context, cfg pool.Config, node string, s pool.Session) error {
	began := time.Now()
	for pause := firstPause / 10; ; pause = min(2*pause, lastPause/5) {
		gone, err := tryGiveBack(ctx, cfg, node, s)
		var refused *verbs.RejectError
		switch {
		case err == nil && gone:
			return nil
		case errors.Is(err, pool.ErrSuperseded), errors.As(err, &refused):
			return err
		case err != nil && time.Since(began) > reachTime:
			return err
		case time.Since(began) > nodeTime:
			return fmt.Errorf("it still has session %x after %v", s.ID, nodeTime)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// tryGiveBack is one try of giveBack. A node forgets an empty session when its client has gone. If a client asks for
// a session that the node does not know, the node begins another one: then the session is gone.
func tryGiveBack(ctx context.Context, cfg pool.Config, node string, s pool.Session) (gone bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nodeTime, errNoAnswer)
	defer cancel()
	lent, err := pool.Open(ctx, cfg)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, lent.Close()) }()
	if lent.Sessions()[node].ID != s.ID {
		return true, nil
	}
	return false, lent.Prune(ctx, node)
}

// CheckHeap opens a heap in the memory of nodes that no process has open, and calls check with it.
func CheckHeap(ctx context.Context, c *operator.Control, cfg BorrowConfig, check func(*far.Heap) error) error {
	return useHeap(ctx, c, cfg, "check", func(_ *process, m *memory, _ *named.Manifest) error { return check(m.heap) })
}

// useHeap opens, for a tool, a heap in the memory of nodes that no process has open. It calls use with the heap, and
// with the manifest as it was before. what names the tool.
func useHeap(ctx context.Context, c *operator.Control, cfg BorrowConfig, what string, use func(p *process, m *memory, had *named.Manifest) error) (err error) {
	p := newProcess("heap", c)
	defer p.close(&err)
	var k kept
	if err := errors.Join(k.keeper(p, &cfg), k.reach(ctx)); err != nil {
		return errors.Join(err, k.hangUp())
	}
	b, _, err := k.register.Read(ctx)
	if err := errors.Join(err, k.hangUp()); err != nil {
		return err
	}
	if b == nil {
		return NoHeapError(cfg.Heap)
	}
	had, err := named.DecodeManifest(b)
	switch {
	case err != nil:
		return fmt.Errorf("heap %s: %w", cfg.Heap, err)
	case had.Root == nil:
		return NoHeapError(cfg.Heap)
	case len(cfg.Far) == 0:
		cfg.Far = slices.Sorted(maps.Keys(had.Sessions))
	}
	if cfg.Copies == 0 && had.Copies <= len(had.Sessions) {
		cfg.Copies = had.Copies // the tool's checkpoint at the end has as many copies as the server's checkpoints
	}
	from, err := p.borrow(ctx, cfg)
	if err != nil {
		return err
	}
	p.addrs[ServiceAdmin] = tool(what)
	var m memory
	defer func() { err = errors.Join(err, m.close()) }()
	if err := m.open(ctx, p, cfg, from, 0); err != nil {
		return err
	}
	if err := m.ready(ctx); err != nil {
		return err
	}
	return use(p, &m, had)
}

// explain is the console's text about the owner of the heap of that name.
func (k *kept) explain(name string) string {
	st := k.owner.Stats()
	text := fmt.Sprintf("Heap %s is this process's, in epoch %d, and outlives it as of its last checkpoint.", name, st.Epoch)
	if !st.Shown {
		text += fmt.Sprintf(" For %.1f s nothing has been heard from %v that there is no other owner: replies wait for that.", st.Evidence, k.registers)
	}
	return text
}

// SessionOf returns the number of the session that b, an entry of named.Manifest.Sessions, is about; false if b is
// too short.
func SessionOf(b []byte) (uint64, bool) {
	if len(b) < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), true
}
