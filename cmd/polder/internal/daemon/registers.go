package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"polder/far/named"
	"polder/holder"
	"polder/holder/etcd"
	"polder/holder/witness"
	client "polder/internal/etcd"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/verbs/tcp"
)

// Registers has a register for each heap in the memory of nodes, with the manifest of the heap.
type Registers interface {
	// String names what keeps the registers, with its article.
	String() string
	// Register returns the register of a heap. It is closed before the Registers.
	Register(heap string) (holder.Register, error)
	// Names returns the names of the heaps that there are or were, in order.
	Names(ctx context.Context) ([]string, error)
	Close() error
}

// stayOpen are registers that somebody else closes.
type stayOpen struct{ Registers }

// Close implements Registers.
func (stayOpen) Close() error { return nil }

// WithRegisters calls f with the registers that cfg names.
func WithRegisters(ctx context.Context, c *operator.Control, cfg BorrowConfig, f func(Registers) error) (err error) {
	p := newProcess("heap", c)
	defer p.close(&err)
	all, err := p.registers(&cfg)
	if err != nil {
		return err
	}
	if err := reach(ctx, all); err != nil {
		return errors.Join(err, all.Close())
	}
	return errors.Join(f(all), all.Close())
}

// reach fails if no witness answers, and says what is wrong with each: unlike a daemon, a command does not wait for
// them.
func reach(ctx context.Context, all Registers) error {
	w, ok := all.(*witnessRegisters)
	if !ok {
		return nil
	}
	var wrong []error
	for _, g := range w.Greet(ctx, w.addrs) {
		if g.Err == nil {
			return nil
		}
		wrong = append(wrong, fmt.Errorf("%s: %w", g.Addr, g.Err))
	}
	return fmt.Errorf("none of the witnesses answers: %w", errors.Join(wrong...))
}

func (k *kept) reach(ctx context.Context) error {
	if k.registers == nil {
		return nil // it has been logged
	}
	return reach(ctx, k.registers)
}

// registers opens the registers that --witness names, or those at the two nodes.
func (p *process) registers(cfg *BorrowConfig) (Registers, error) {
	if p.manifests != nil {
		return stayOpen{p.manifests}, nil
	}
	if cfg.TwoNodes != "" {
		return &pairRegisters{cfg.Far, p.pair(cfg)}, nil
	}
	if cfg.inEtcd() {
		c, cluster, err := p.etcdClient("witness", cfg.Witness[0], cfg.EtcdAuth)
		if err != nil {
			return nil, err
		}
		return &etcdRegisters{cfg.Witness[0], cluster, c}, nil
	}
	c, err := witness.NewClient(witness.ClientConfig{Witnesses: cfg.Witness, TLS: p.Security.Dial, Insecure: p.Security.Insecure})
	if err != nil {
		return nil, err
	}
	return &witnessRegisters{cfg.Witness, c}, nil
}

// inEtcd reports whether etcd keeps the manifest.
func (c *BorrowConfig) inEtcd() bool {
	return len(c.Witness) == 1 && scheme.Of(c.Witness[0]) == scheme.Etcd
}

// checkHolder refuses settings about what keeps the manifest that do not fit.
func (c *BorrowConfig) checkHolder() error {
	if len(c.Witness) < 2 {
		return nil
	}
	for _, w := range c.Witness {
		if scheme.Of(w) == scheme.Etcd {
			return refuse("witness", strings.Join(c.Witness, ","), "one cluster in etcd alone, or witnesses")
		}
	}
	return nil
}

// pair returns the manifests that two nodes keep.
func (p *process) pair(cfg *BorrowConfig) *witness.Pair {
	return witness.NewPair(witness.PairConfig{
		Nodes: [2]string(cfg.Far), GoOn: cfg.TwoNodes == GoOn, Free: named.IsFree, Logger: p.Logger,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) { return tcp.DialGuest(ctx, addr, p.toNodes()) },
	})
}

// ForceHeap says that the owner of a heap at two nodes is dead, so that another server may open the heap although one
// of the nodes does not answer. It returns the node that has the manifest now.
func ForceHeap(ctx context.Context, c *operator.Control, cfg BorrowConfig) (node string, err error) {
	p := newProcess("heap", c)
	defer p.close(&err)
	pair := p.pair(&cfg)
	defer func() { err = errors.Join(err, pair.Close()) }()
	reg, err := pair.Register(cfg.Heap)
	if err != nil {
		return "", err
	}
	defer reg.Close()
	return reg.Force(ctx, named.Free)
}

type pairRegisters struct {
	nodes []string
	*witness.Pair
}

func (p *pairRegisters) String() string { return "the two nodes (" + strings.Join(p.nodes, ", ") + ")" }

func (p *pairRegisters) Register(heap string) (holder.Register, error) { return p.Pair.Register(heap) }

type witnessRegisters struct {
	addrs []string
	*witness.Client
}

func (w *witnessRegisters) String() string {
	return fmt.Sprintf("the witnesses (%s)", strings.Join(w.addrs, ", "))
}

func (w *witnessRegisters) Register(heap string) (holder.Register, error) {
	return w.Client.Register(heap)
}

type etcdRegisters struct {
	name, cluster string
	client        *client.Client
}

func (e *etcdRegisters) String() string { return "etcd (" + e.name + ")" }

func (e *etcdRegisters) Register(heap string) (holder.Register, error) {
	return etcd.New(e.client, e.cluster, heap)
}

func (e *etcdRegisters) Names(ctx context.Context) ([]string, error) {
	return etcd.Names(ctx, e.client, e.cluster)
}

func (e *etcdRegisters) Close() error {
	e.client.Close()
	return nil
}
