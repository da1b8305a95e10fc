package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"polder/holder"
	"polder/holder/etcd"
	"polder/holder/witness"
	client "polder/internal/etcd"
	"polder/internal/operator"
	"polder/internal/scheme"
)

// Registers are those of heaps in the memory of nodes: each has the manifest of one.
type Registers interface {
	// String is what keeps them, with its article.
	String() string
	// Register is that of a heap, which is closed before the Registers.
	Register(heap string) (holder.Register, error)
	// Names are those of the heaps that there are or were, in order.
	Names(ctx context.Context) ([]string, error)
	Close() error
}

// WithRegisters has f use the registers that cfg names.
func WithRegisters(c *operator.Control, cfg BorrowConfig, f func(Registers) error) (err error) {
	p := newProcess("heap", c)
	defer p.close(&err)
	all, err := p.registers(&cfg)
	if err != nil {
		return err
	}
	return errors.Join(f(all), all.Close())
}

// registers are those that --witness names.
func (p *process) registers(cfg *BorrowConfig) (Registers, error) {
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

// checkHolder finds what is wrong with what keeps the manifest.
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
