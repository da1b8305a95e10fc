package daemon

import (
	"context"
	"net"
	"strconv"
	"time"

	"polder/internal/listen"
	"polder/memcached"
	"polder/resp"
	"polder/resp/clientmem"
	"polder/resp/origin"
	"polder/soft"
	softprom "polder/soft/prom"
)

// CacheConfig configures a Redis front end over soft memory. It uses only the
// fields of ServeConfig that concern clients: Far, Manager and Local have no effect,
// and OpTimeout has one only with an Origin.
type CacheConfig struct {
	ServeConfig
	Budget      int64  // bytes, unless a coordinator says otherwise; the default of MaxValue depends on it, too
	Coordinator string // path of the coordinator's socket; "" for none
	Memcached   string // where memcached clients connect; "" for nowhere
	Origin      OriginConfig
}

// The smallest and the largest budget of a cache.
const (
	MinCacheBudget = soft.MinBudget
	MaxCacheBudget = soft.MaxBudget
)

// DefaultCache returns the defaults, without addresses.
func DefaultCache() CacheConfig {
	return CacheConfig{ServeConfig: DefaultServe(), Budget: 64 << 20, Origin: OriginConfig{Lag: time.Second}}
}

// RunCache serves Redis clients, and memcached's, from soft memory until ctx is
// done. The two see different keys, and share the memory.
func RunCache(ctx context.Context, cfg CacheConfig) (err error) {
	p := newProcess("serve", cfg.Control)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	if err := p.listen(cfg.ServeConfig); err != nil {
		return err
	}
	var mc net.Listener
	if cfg.Memcached != "" {
		if mc, err = cfg.Security.Listen(listen.Client, ServiceMemcached, cfg.Memcached); err != nil {
			return err
		}
		p.onClose(func() error { _ = mc.Close(); return nil }) // the server closes it first, if one was started
		p.addrs[ServiceMemcached] = listen.Address(mc)
	}
	if err := p.openCache(cfg, mc); err != nil {
		return err
	}
	title := "polder serves a cache of " + memoryOf(cfg.Budget, cfg.Coordinator)
	cli := p.redisCLI(p.addrs[ServiceRedis])
	try := []string{cli + " set greeting hello", cli + " get greeting", cli + " config get maxmemory"}
	if cfg.Origin.URL != "" {
		u, err := origin.ParseURL(cfg.Origin.URL)
		if err != nil {
			return err
		}
		title, try = title+", before "+u.String(), try[:2]
	}
	if err := p.ready(title, try...); err != nil {
		return err
	}
	return p.wait(ctx)
}

// openCache starts the heap and the front ends over it. There is one for memcached's
// clients if mc is not nil.
func (p *process) openCache(cfg CacheConfig, mc net.Listener) error {
	stopLimit := limitGoMemory()
	p.onClose(func() error { stopLimit(); return nil })

	heap, err := soft.Open(soft.Config{
		Budget:      cfg.Budget,
		Max:         cacheMax(cfg),
		Coordinator: cfg.Coordinator,
		Name:        cacheName("polder serve ", p.addrs[ServiceRedis]),
		Logger:      p.Logger,
	})
	if err != nil {
		return err
	}
	p.onClose(heap.Close)

	clients := clientmem.New(cfg.ClientMemory)
	if cfg.Origin.URL != "" {
		err = p.openOrigin(cfg, heap, clients)
	} else {
		err = p.openKeys(cfg, heap, clients)
	}
	if err != nil {
		return err
	}
	if mc != nil {
		m, err := memcached.New(memcached.Config{Heap: heap, MaxConns: cfg.MaxClients, ClientMemory: clients, Logger: p.Logger})
		if err != nil {
			return err
		}
		p.onClose(m.Close)
		p.spawn("the memcached front end stopped serving", func() error { return m.Serve(mc) })
	}
	p.collectors = append(p.collectors, softprom.NewCollector(heap))
	return p.serveAdmin()
}

// openKeys starts the front end for Redis's clients over a heap.
func (p *process) openKeys(cfg CacheConfig, heap *soft.Heap, clients *clientmem.Budget) error {
	server, err := resp.NewCache(heap, resp.Config{
		Password:     p.Password(),
		MaxBulk:      int(cfg.largest(cfg.Budget)),
		MaxClients:   cfg.MaxClients,
		OutputLimit:  int(cfg.OutputLimit),
		ClientMemory: clients,
		IdleTimeout:  cfg.IdleTimeout,
		Logger:       p.Logger,
		ExtraStats:   func() []resp.Stat { return cacheStats(heap.Stats()) },
	})
	if err != nil {
		return err
	}
	p.serveRedis(server)
	p.collectors = append(p.collectors, server.Collector())
	return nil
}

// cacheName is what the coordinator calls a cache: the command and the path. If that is too
// long for a name, the beginning of the path is left out.
func cacheName(command, path string) string {
	return command + path[max(0, len(path)-(soft.MaxName-len(command))):]
}

// cacheMax is soft.Config.Max: CONFIG SET may raise the budget to 16 times its first value, a
// coordinator as far as soft allows by default (0).
func cacheMax(cfg CacheConfig) int64 {
	if cfg.Coordinator != "" {
		return 0
	}
	return 16 * cfg.Budget
}

// cacheStats are the lines of POLDER STATS about a soft heap.
func cacheStats(h soft.Stats) []resp.Stat {
	var list []resp.Stat
	add := func(name string, n int64) {
		list = append(list, resp.Stat{Name: name, Value: strconv.FormatInt(n, 10)})
	}
	add("soft_budget_bytes", h.Budget)
	add("soft_live_bytes", h.Live)
	add("soft_hits", int64(h.Hits))
	add("soft_misses", int64(h.Misses))
	add("soft_evicted_entries", int64(h.EvictedObjects))
	add("soft_revoked_segments", int64(h.RevokedSegments))
	add("soft_revoked_entries", int64(h.LostObjects))
	return list
}
