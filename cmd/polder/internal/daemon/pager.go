package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"polder/internal/config"
	"polder/internal/fdpass"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/pages"
	"polder/pages/pager"
)

// PagerConfig configures a pager of other processes' memory.
type PagerConfig struct {
	*operator.Control
	BorrowConfig
	Listen     string // where the processes connect, unix:PATH
	Size       int64  // bytes that all processes together may map
	Frames     int64  // bytes of mapped memory that may be local at a time
	MaxClients int
	Compress   bool
}

// ServicePager is the name of the service of a pager.
const ServicePager = "pager"

// listenPager listens for clients of a pager. If the process from which a standby has taken over the heap still has
// the socket, the standby waits until that process has closed it. If the process is stopped, that may take long.
func listenPager(ctx context.Context, cfg PagerConfig) (*net.UnixListener, error) {
	for {
		lis, err := fdpass.Listen(strings.TrimPrefix(cfg.Listen, scheme.Unix), listen.SocketMode)
		if err == nil {
			return lis, nil
		}
		if !cfg.Standby || !errors.Is(err, fdpass.ErrServed) {
			return nil, fmt.Errorf("cannot use --listen: %w", err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// RunPager serves page faults until ctx is done.
func RunPager(ctx context.Context, cfg PagerConfig) (err error) {
	p := newProcess("pager", cfg.Control)
	p.ends.within = cmp.Or(cfg.EndWithin, p.ends.within)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	var lis *net.UnixListener
	p.onClose(func() error { // the server closes it first, if one was started
		if lis != nil {
			_ = lis.Close()
		}
		return nil
	})
	if !cfg.Standby { // for a standby, the process that has the heap has the socket, too
		if lis, err = listenPager(ctx, cfg); err != nil {
			return err
		}
	}
	p.addrs[ServicePager] = cfg.Listen
	if err := p.listenAdmin(); err != nil {
		return err
	}
	stopLimit := limitGoMemory()
	p.onClose(func() error { stopLimit(); return nil })
	from, err := p.borrow(ctx, cfg.BorrowConfig)
	if err != nil {
		return p.unlessEnding(ctx, err)
	}
	p.health = cfg.noAnswerYet
	if err := p.serveAdmin(); err != nil {
		return err
	}
	var m memory
	p.onEnd("the heap", m.close)
	if err := m.open(ctx, p, cfg.BorrowConfig, from, 0); err != nil {
		return p.unlessEnding(ctx, err)
	}
	if cfg.Standby {
		if lis, err = listenPager(ctx, cfg); err != nil {
			return p.unlessEnding(ctx, err)
		}
	}
	volumes, err := pages.Open(m.heap, pages.Config{Compress: cfg.Compress})
	if err != nil {
		return err
	}
	if err := m.ready(ctx); err != nil {
		return p.unlessEnding(ctx, err)
	}
	server, err := pager.New(pager.Config{
		Volumes: volumes, Size: cfg.Size, Frames: cfg.Frames, MaxMappings: cfg.MaxClients, Timeout: cfg.OpTimeout, Logger: p.Logger,
	})
	if err != nil {
		return err
	}
	p.onEnd("the front end", server.Close)
	p.spawn("the pager stopped serving", func() error { return server.Serve(lis) })
	if err := m.show(p); err != nil {
		return err
	}
	if p.answers != nil {
		if err := p.answers.Collect(server.Collector()); err != nil {
			return err
		}
	}
	title := fmt.Sprintf("polder serves page faults of mappings of %s: %s local, the rest at %s",
		config.FormatSize(cfg.Size), config.FormatSize(cfg.Frames), cfg.where())
	if err := p.ready(title); err != nil {
		return err
	}
	return p.wait(ctx)
}
