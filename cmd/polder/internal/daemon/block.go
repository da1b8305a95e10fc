package daemon

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/pages"
	"polder/pages/nbd"
)

// BlockConfig configures a block device in borrowed memory.
type BlockConfig struct {
	*operator.Control
	BorrowConfig
	Listen     string // where clients of NBD connect
	Size       int64  // bytes, a multiple of pages.Size
	Name       string // of the export
	ReadOnly   bool
	MaxClients int
	Compress   bool
	Swap       bool // BecomeSwapServer has made this process a swap server
}

// blockVolume is the name of the only volume of polder block's heap.
const blockVolume = "block"

// ServiceNBD is the name of the service of a block device.
const ServiceNBD = "nbd"

// Check refuses values that are valid by themselves but not together.
func (c *BlockConfig) Check() error {
	if c.Size%pages.Size != 0 {
		return refuse("size", config.FormatSize(c.Size), "a multiple of %s", config.FormatSize(pages.Size))
	}
	return c.BorrowConfig.Check()
}

// RunBlock serves a block device until ctx is done. Clients that connect before a node has
// answered wait.
func RunBlock(ctx context.Context, cfg BlockConfig) (err error) {
	p := newProcess("block", cfg.Control)
	p.ends.within = cmp.Or(cfg.EndWithin, p.ends.within)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	lis, secure, err := cfg.Security.ListenPlain(listen.Client, "listen", cfg.Listen)
	if err != nil {
		return err
	}
	p.onClose(func() error { _ = lis.Close(); return nil }) // the server closes it first, if one was started
	p.addrs[ServiceNBD] = listen.Address(lis)
	if err := p.listenAdmin(); err != nil {
		return err
	}
	ofGo := limitGoMemory
	if cfg.Swap {
		ofGo = takeGoMemory
	}
	stopLimit := ofGo()
	p.onClose(func() error { stopLimit(); return nil })
	from, err := p.borrow(ctx, cfg.BorrowConfig)
	if err != nil {
		return p.unlessEnding(ctx, err)
	}
	from.OverFabric = cfg.Swap
	p.health = cfg.noAnswerYet
	if err := p.serveAdmin(); err != nil {
		return err
	}
	var m memory
	p.onEnd("the heap", m.close)
	if err := m.open(ctx, p, cfg.BorrowConfig, from, 0); err != nil {
		return p.unlessEnding(ctx, err)
	}
	volumes, err := pages.Open(m.heap, pages.Config{Compress: cfg.Compress})
	if err != nil {
		return err
	}
	for name := range volumes.Saved() {
		if name != blockVolume && name != "" {
			return fmt.Errorf("heap %s has volume %q, which is polder pager's: expected another name with --heap", cfg.Heap, name)
		}
	}
	if err := m.ready(ctx); err != nil {
		return p.unlessEnding(ctx, err)
	}
	volume, err := volumes.Volume(blockVolume, cfg.Size)
	if err != nil {
		return err
	}
	server, err := nbd.New(nbd.Config{
		Volume: volume, Name: cfg.Name, ReadOnly: cfg.ReadOnly, TLS: secure,
		MaxConns: cfg.MaxClients, Timeout: cfg.OpTimeout, Ahead: cfg.Swap, Logger: p.Logger,
	})
	if err != nil {
		return err
	}
	p.onEnd("the front end", server.Close)
	p.spawn("the block device stopped serving", func() error { return server.Serve(lis) })
	if err := m.show(p); err != nil {
		return err
	}
	if p.answers != nil {
		if err := p.answers.Collect(server.Collector()); err != nil {
			return err
		}
	}
	title := fmt.Sprintf("polder serves a block device of %s: %s local, the rest at %s",
		config.FormatSize(cfg.Size), config.FormatSize(cfg.Local), cfg.where())
	if err := p.ready(title, "nbdinfo "+nbdURI(p.addrs[ServiceNBD], cfg.Name, secure != nil)); err != nil {
		return err
	}
	return p.wait(ctx)
}

// nbdURI is the URI by which clients reach the export.
func nbdURI(addr, name string, secure bool) string {
	if path, ok := strings.CutPrefix(addr, scheme.Unix); ok {
		return fmt.Sprintf("'nbd+unix:///%s?socket=%s'", name, path)
	}
	if secure {
		return fmt.Sprintf("'nbds://%s/%s?tls-certificates=DIR'", addr, name)
	}
	return fmt.Sprintf("nbd://%s/%s", addr, name)
}
