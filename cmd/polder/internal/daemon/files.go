package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"polder/files"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/soft"
	softprom "polder/soft/prom"
)

// FilesConfig configures a door for the files of a directory.
type FilesConfig struct {
	*operator.Control
	Dir         string
	Listen      string
	Budget      int64  // bytes, unless a coordinator says otherwise
	Coordinator string // path of the coordinator's socket; "" for none
	MaxClients  int
}

// ServiceHTTP is the name of the service of a door for files.
const ServiceHTTP = "http"

// RunFiles serves the files of a directory, read through soft memory, until ctx is done.
func RunFiles(ctx context.Context, cfg FilesConfig) (err error) {
	p := newProcess("files", cfg.Control)
	defer p.close(&err)
	lis, err := cfg.Security.Listen(listen.Client, "listen", cfg.Listen)
	if err != nil {
		return err
	}
	p.onClose(func() error { _ = lis.Close(); return nil }) // the server closes it first, if one was started
	p.addrs[ServiceHTTP] = listen.Address(lis)
	if err := p.listenAdmin(); err != nil {
		return err
	}
	stopLimit := limitGoMemory()
	p.onClose(func() error { stopLimit(); return nil })
	heap, err := soft.Open(soft.Config{
		Budget: cfg.Budget, Coordinator: cfg.Coordinator, Logger: p.Logger,
		Name: cacheName("polder files ", cfg.Dir),
	})
	if err != nil {
		return err
	}
	p.onClose(heap.Close)
	server, err := files.New(files.Config{Dir: cfg.Dir, Heap: heap, MaxConns: cfg.MaxClients, Logger: p.Logger})
	if err != nil {
		return err
	}
	p.onClose(server.Close)
	p.spawn("the door for files stopped serving", func() error { return server.Serve(lis) })
	p.collectors = append(p.collectors, softprom.NewCollector(heap), server.Collector())
	if err := p.serveAdmin(); err != nil {
		return err
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		dir = cfg.Dir
	}
	if err := p.ready(fmt.Sprintf("polder serves the files of %s from a cache of %s", dir, memoryOf(cfg.Budget, cfg.Coordinator)), p.curl()); err != nil {
		return err
	}
	return p.wait(ctx)
}

// memoryOf says how much memory a cache has.
func memoryOf(budget int64, coordinator string) string {
	s := config.FormatSize(budget)
	if coordinator != "" {
		s += ", or what the coordinator at " + coordinator + " grants"
	}
	return s
}

// curl is the curl command that lists the files.
func (p *process) curl() string {
	addr := p.addrs[ServiceHTTP]
	if path, ok := strings.CutPrefix(addr, scheme.Unix); ok {
		return "curl --unix-socket " + path + " http://localhost/"
	}
	if c := p.Security.Certificates; c != nil && c.Has(listen.Client) {
		return "curl --cert CERT --key KEY --cacert AUTHORITY https://" + addr + "/"
	}
	return "curl http://" + addr + "/"
}
