package daemon

import (
	"context"
	"fmt"
	"os"

	"polder/internal/config"
	"polder/internal/dirlock"
	"polder/internal/systemd"
	"polder/memnode/ledger"
)

// memoryName is what a node's memory is called in the descriptor store.
const memoryName = "node-memory"

// outlive makes the memory that cfg lends at addresses other than Unix sockets outlive the
// process, if a service manager or a keeper has started the process. If an earlier node has left
// memory, outlive sets cfg.Lend to what that node lent, and returns how many bytes of it are
// populated. It calls end when a new keeper has got the memory, since that keeper starts
// another node.
func (p *process) outlive(ctx context.Context, cfg *NodeConfig, end func()) (populated int64, err error) {
	if cfg.Dir != "" {
		if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
			return 0, fmt.Errorf("cannot make the node's directory: %w", err)
		}
		lock, err := dirlock.Lock(cfg.Dir, p.Logger)
		if err != nil {
			return 0, fmt.Errorf("cannot run in %s: %w", cfg.Dir, err)
		}
		p.onClose(lock.Close)
	}
	store, err := systemd.OpenStore()
	if err != nil || store == nil {
		return 0, err
	}
	p.onClose(store.Close)
	here, elsewhere := cfg.places()
	if len(here) > 0 || !cfg.keeps() {
		p.Logger.Warn("what is lent at Unix sockets, by this manager, or to be read in place, ends with the process", "sockets", len(here), "manager", cfg.Manager, "in place", cfg.InPlace)
	}
	if len(elsewhere) == 0 || !cfg.keeps() {
		return 0, nil
	}
	out, err := ledger.NewOutliving(store, memoryName, p.Logger)
	if err != nil {
		return 0, err
	}
	cfg.outliving = out
	p.onClose(out.Close)
	if lend, n := out.Left(); lend > 0 {
		if cfg.both() {
			lend *= 2
		}
		lend += cfg.Components.Memory
		if lend != cfg.Lend {
			p.Logger.Info("an earlier node has left memory: as much is lent, and not what --lend says", "lend", config.FormatSize(lend))
		}
		cfg.Lend, populated = lend, n
	}
	p.wg.Go(func() {
		store.Tend(ctx, func() error {
			err := out.KeepAgain()
			if err == nil {
				p.Logger.Info("a new keeper has got the memory: it starts another node, and this one ends")
				end()
			}
			return err
		}, func(err error) {
			p.Logger.Error("nothing keeps the node's memory: if the node dies, so does what it has lent", "error", err)
		})
	})
	return populated, nil
}
