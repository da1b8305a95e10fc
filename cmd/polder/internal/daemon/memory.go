package daemon

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"

	"polder/internal/config"
	"polder/internal/hostmem"
)

// The Go runtime's part of a serving process's memory. The far heap's budget
// lies outside of it; what is left is connections, the pool's bookkeeping and
// garbage. The garbage is kept small: the collector runs before the total
// exceeds goLimit. With the 16 MiB of clients' buffers that may be mapped, the
// pool's slab of 8 MiB and some 13 MiB of the program itself it stays below the
// 64 MiB that a process may have beside its budget.
const (
	goLimit      = 15 << 20
	goPercent    = 400 // the live heap is a few MiB: collect when that is needed, not at every 4
	liveHeadroom = 4 << 20

	// The limit for a process that serves swap. It asks the kernel for memory when it starts, and not when memory is
	// short: for clients' buffers, and for garbage up to this limit.
	swapGoLimit   = 64 << 20
	swapGoPercent = -1
)

// limitGoMemory keeps the Go runtime's memory small until the returned
// function is called. Where connections need more than goLimit, those of thousands of
// clients or to several nodes, the limit gives way: with little room beside what is
// live and what the runtime itself needs, the collector would run without end.
// GOMEMLIMIT and GOGC, if set, are left to rule.
func limitGoMemory() (stop func()) { return boundGoMemory(goLimit, goPercent) }

// takeGoMemory is limitGoMemory for a process that serves swap: the runtime takes at once
// what it will need, and keeps it.
func takeGoMemory() (stop func()) {
	stop = boundGoMemory(swapGoLimit, swapGoPercent)
	runtime.KeepAlive(make([]byte, swapGoLimit/2)) // mapped, and resident since memory is locked
	return stop
}

func boundGoMemory(limit int64, percent int) (stop func()) {
	if os.Getenv("GOMEMLIMIT") != "" || os.Getenv("GOGC") != "" {
		return func() {}
	}
	before, percent := debug.SetMemoryLimit(limit), debug.SetGCPercent(percent)
	end := afterCollections(func() {
		live, beside := goMemory()
		debug.SetMemoryLimit(memoryLimit(limit, live, beside))
	})
	return func() {
		end()
		debug.SetMemoryLimit(before)
		debug.SetGCPercent(percent)
	}
}

// afterCollections calls f soon after each garbage collection, until stop is called. A process that opens a partition
// has more live memory within milliseconds: if the limit lagged behind, one collection after another would hold it
// up.
func afterCollections(f func()) (stop func()) {
	var mu sync.Mutex
	ended := false // guarded by mu
	var collected func(*[16]byte)
	collected = func(*[16]byte) {
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			// Make the next object before calling f: the next collection may come while f runs.
			runtime.SetFinalizer(new([16]byte), collected)
			f()
		}
	}
	runtime.SetFinalizer(new([16]byte), collected)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
	}
}

// goMemory returns how many bytes of the Go heap were live after the last collection, and how
// many the runtime needs beside objects: stacks, its own tables, parts of spans that no object fits in.
func goMemory() (live, beside int64) {
	sample := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(sample)
	of := func(i int) int64 { return int64(sample[i].Value.Uint64()) }
	return of(0), max(0, of(1)-of(2)-of(3)-of(4))
}

// memoryLimit is the limit for this many live bytes, and this many beside objects, which also count towards the
// limit.
func memoryLimit(least, live, beside int64) int64 {
	return max(least, beside+live+live/4+liveHeadroom)
}

const gib = 1 << 30

// DefaultLend is how much memory a node lends if it is not told: half of what
// can be allocated here, less what the process needs itself, at most 64 GiB. It
// is in whole GiB, or below one in whole MiB.
func DefaultLend() int64 {
	m, err := hostmem.Host{}.Read()
	if err != nil {
		return gib
	}
	return defaultLend(m)
}

func defaultLend(m hostmem.Memory) int64 {
	lend := min(m.Available/2, m.Spare(), 64*gib)
	unit := int64(gib)
	if lend < gib {
		unit = 1 << 20
	}
	return lend / unit * unit
}

// checkLend refuses to lend more memory than there is, beside the bytes that the process uses itself: beyond the
// limit of a control group it would be killed, with everything that it holds.
func checkLend(m hostmem.Memory, lend, beside int64) error {
	if lend <= m.Spare()-beside {
		return nil
	}
	own := "stay for the process itself"
	if beside > 0 {
		own = fmt.Sprintf("stay for the process itself and %s for --local", config.FormatSize(beside))
	}
	return &config.Error{Source: "--lend", Value: config.FormatSize(lend), Err: fmt.Errorf(
		"expected at most %s: %s, %s, leaves %s, of which %s %s; to lend more than there is, and be killed when it is used, say --overcommit",
		mib(max(m.Spare()-beside, 0)), m.Bound, mib(m.Total), mib(m.Available), mib(m.Reserve()), own)}
}

// mib is a size in whole MiB.
func mib(n int64) string { return config.FormatSize(n >> 20 << 20) }

// checkLend refuses to lend more than there is for it, beside what else the
// process uses.
func (p *process) checkLend(lend, beside int64, overcommit bool) error {
	m, err := hostmem.Host{}.Read()
	if err != nil {
		p.Logger.Warn("nothing is known of the memory that there is for lending", "error", err)
		return nil
	}
	if err := checkLend(m, lend, beside); err != nil {
		if !overcommit {
			return err
		}
		p.Logger.Warn("more is lent than there is", "lend", mib(lend), "expected at most", mib(max(m.Spare()-beside, 0)))
	}
	return nil
}

// sayMemory says what bounds the memory of a process that lends.
func (p *process) sayMemory() {
	if m, err := (hostmem.Host{}).Read(); err == nil {
		p.Logger.Info("memory for lending", "bounded by", m.Bound, "in all", mib(m.Total), "available", mib(m.Available), "reserve", mib(m.Reserve()))
	}
}

// warnInPlace logs who pays for memory that is mapped in place: the kernel charges a page to the control group of the
// process that touches it first, which is the borrower.
func (p *process) warnInPlace() {
	m, err := hostmem.Host{}.Read()
	if err != nil {
		return
	}
	p.Logger.Info("borrowed memory is used in place, and charged to this process's control group, not the node's",
		"bounded by", m.Bound, "in all", mib(m.Total), "available", mib(m.Available))
}
