package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"runtime"
	"time"

	"github.com/VictoriaMetrics/fastcache"
	"github.com/allegro/bigcache/v3"
	"github.com/coocood/freecache"
	"github.com/dgraph-io/ristretto/v2"
	"github.com/maypok86/otter/v2"

	"polder/soft"
)

// cache is one of the caches compared. Keys are numbers, values bytes. Get may
// return a reference to the stored value, or a copy, possibly in dst.
type cache interface {
	Get(key uint64, dst []byte) ([]byte, bool)
	Set(key uint64, val []byte)
	Close()
}

// resizer is a cache whose budget can change while it runs.
type resizer interface{ Resize(bytes int64) error }

var caches = []string{"soft", "otter", "ristretto", "freecache", "bigcache", "fastcache"}

// open makes a cache with a capacity of so many bytes, in that cache's own sense
// of capacity. In soft, freecache, bigcache and fastcache the capacity includes
// what an entry takes besides its key and value (16 bytes and rounding up to a
// multiple of 32 in soft, 24 bytes in freecache, 18 in bigcache, 4 in fastcache);
// in otter and ristretto it does not. In none does it include the index. So
// resident memory is measured, too.
func open(name string, bytes int64) (cache, error) {
	switch name {
	case "soft":
		h, err := soft.Open(soft.Config{Budget: bytes, Max: 2 * bytes})
		if err != nil {
			return nil, err
		}
		m, err := soft.NewMap(h, soft.MapConfig[uint64, []byte]{})
		if err != nil {
			return nil, err
		}
		return &softCache{h, m}, nil
	case "otter":
		c, err := otter.New(&otter.Options[uint64, []byte]{
			MaximumWeight: uint64(bytes),
			Weigher:       func(_ uint64, v []byte) uint32 { return uint32(8 + len(v)) },
		})
		return otterCache{c}, err
	case "ristretto":
		c, err := ristretto.NewCache(&ristretto.Config[uint64, []byte]{
			NumCounters: bytes / 256 * 10, MaxCost: bytes, BufferItems: 64,
		})
		return ristrettoCache{c}, err
	case "freecache":
		return freecacheCache{freecache.NewCache(int(bytes))}, nil
	case "bigcache":
		cfg := bigcache.DefaultConfig(24 * time.Hour)
		cfg.HardMaxCacheSize, cfg.Verbose, cfg.CleanWindow = int(bytes>>20), false, 0
		cfg.Logger = log.New(io.Discard, "", 0)
		c, err := bigcache.New(context.Background(), cfg)
		return bigcacheCache{c}, err
	case "fastcache":
		return fastcacheCache{fastcache.New(int(bytes))}, nil
	}
	return nil, fmt.Errorf("there is no cache %q", name)
}

type softCache struct {
	h *soft.Heap
	m *soft.Map[uint64, []byte]
}

func (c *softCache) Get(k uint64, dst []byte) ([]byte, bool) { return c.m.Append(dst[:0], k) }
func (c *softCache) Set(k uint64, v []byte)                  { _ = c.m.Set(k, v) }
func (c *softCache) Close()                                  { _ = c.h.Close() }
func (c *softCache) Resize(bytes int64) error                { return c.h.SetBudget(bytes) }

type otterCache struct{ c *otter.Cache[uint64, []byte] }

func (c otterCache) Get(k uint64, _ []byte) ([]byte, bool) { return c.c.GetIfPresent(k) }
func (c otterCache) Set(k uint64, v []byte)                { c.c.Set(k, append([]byte(nil), v...)) }
func (c otterCache) Close()                                { c.c.StopAllGoroutines() }

type ristrettoCache struct {
	c *ristretto.Cache[uint64, []byte]
}

func (c ristrettoCache) Get(k uint64, _ []byte) ([]byte, bool) { return c.c.Get(k) }
func (c ristrettoCache) Set(k uint64, v []byte) {
	c.c.Set(k, append([]byte(nil), v...), int64(8+len(v)))
}
func (c ristrettoCache) Close() { c.c.Close() }

func key(k uint64) (b [8]byte) {
	binary.LittleEndian.PutUint64(b[:], k)
	return b
}

type freecacheCache struct{ c *freecache.Cache }

func (c freecacheCache) Get(k uint64, dst []byte) ([]byte, bool) {
	b := key(k)
	n := cap(dst)
	v, err := c.c.GetWithBuf(b[:], dst[:n])
	return v, err == nil
}
func (c freecacheCache) Set(k uint64, v []byte) { b := key(k); _ = c.c.Set(b[:], v, 0) }
func (c freecacheCache) Close()                 {}

type bigcacheCache struct{ c *bigcache.BigCache }

func (c bigcacheCache) Get(k uint64, _ []byte) ([]byte, bool) {
	b := key(k)
	v, err := c.c.Get(string(b[:]))
	return v, err == nil
}
func (c bigcacheCache) Set(k uint64, v []byte) { b := key(k); _ = c.c.Set(string(b[:]), v) }
func (c bigcacheCache) Close()                 { _ = c.c.Close() }

type fastcacheCache struct{ c *fastcache.Cache }

func (c fastcacheCache) Get(k uint64, dst []byte) ([]byte, bool) {
	b := key(k)
	return c.c.HasGet(dst[:0], b[:])
}
func (c fastcacheCache) Set(k uint64, v []byte) { b := key(k); c.c.Set(b[:], v) }
func (c fastcacheCache) Close()                 { c.c.Reset(); runtime.GC() }
