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

// The Go runtime's part of a serving process's memory: connections, the pool's
// bookkeeping and garbage, but not the far heap's budget. The garbage is kept
// small: the collector runs before the total exceeds goLimit. So with the 16 MiB
// of clients' buffers that may be mapped, the pool's slab of 8 MiB and some 13 MiB
// of the program itself, a process stays below the 64 MiB that it may have beside
// its budget.
const (
	goLimit      = 15 << 20
	goPercent    = 400 // the live heap is a few MiB: collect when the limit is near, not after every 4 MiB
	liveHeadroom = 4 << 20

	// The same for a process that serves swap. It takes its memory from the kernel
	// when it starts, not when memory is short: for clients' buffers, and for garbage,
	// which is collected only at the limit.
	swapGoLimit   = 64 << 20
	swapGoPercent = -1
)

// limitGoMemory keeps the Go runtime's memory small until the returned
// function is called. If the connections of thousands of clients, or to several nodes,
// need more than goLimit, the limit grows: with little room beside what is live and
// what the runtime itself needs, the collector would run without end. If GOMEMLIMIT
// or GOGC is set, limitGoMemory changes nothing.
func limitGoMemory() (stop func()) { return boundGoMemory(goLimit, goPercent) }

// takeGoMemory is limitGoMemory for a process that serves swap: the runtime takes the
// memory that it will need at once, and keeps it.
func takeGoMemory() (stop func()) {
	stop = boundGoMemory(swapGoLimit, swapGoPercent)
	runtime.KeepAlive(make([]byte, swapGoLimit/2)) // mapped, and resident since the memory is locked
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

// afterCollections calls f soon after each garbage collection, until stop is called. f must run so soon because
// opening a partition makes much memory live within milliseconds: if the limit lagged behind, one collection after
// another would hold up the opening.
func afterCollections(f func()) (stop func()) {
	var mu sync.Mutex
	ended := false // guarded by mu
	var collected func(*[16]byte)
	collected = func(*[16]byte) {
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			// Make the next collection call collected, too. This comes before f: a collection may come while f runs,
			// and the old object is still in use then.
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

// memoryLimit is the memory limit, at least least, for so many live bytes, and so many that the runtime needs beside
// objects, which the limit counts, too.
func memoryLimit(least, live, beside int64) int64 {
	return max(least, beside+live+live/4+liveHeadroom)
}

const gib = 1 << 30

// DefaultLend is how many bytes a node lends by default: half of what can be
// allocated here, at most 64 GiB, and leaving the host's reserve. It is in whole
// GiB, or in whole MiB if it is below one GiB.
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

// checkLend refuses to lend more memory than there is. beside is how many bytes the
// process will use itself. If it used more than its control group's limit, the kernel
// would kill it, and all that it holds would be lost.
func checkLend(m hostmem.Memory, lend, beside int64) error {
	if lend <= m.Spare()-beside {
		return nil
	}
	if beside > 0 && beside >= m.Spare() { // nothing could be lent, however little --lend says
		return &config.Error{Source: "--local", Value: config.FormatSize(beside), Err: fmt.Errorf(
			"expected less than %s: %s, %s, leaves %s, of which %s stay for the process itself; to use more than there is, and be killed for it, say --overcommit",
			mib(m.Spare()), m.Bound, mib(m.Total), mib(m.Available), mib(m.Reserve()))}
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

// checkLend checks lend and beside against this host's memory. With overcommit it
// only warns.
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

// sayMemory logs what bounds the memory of a process that lends.
func (p *process) sayMemory() {
	if m, err := (hostmem.Host{}).Read(); err == nil {
		p.Logger.Info("memory for lending", "bounded by", m.Bound, "in all", mib(m.Total), "available", mib(m.Available), "reserve", mib(m.Reserve()))
	}
}

// warnInPlace logs who pays for memory that is mapped in place: the kernel charges a
// page to the control group of the process that touches it first, which is the borrower.
func (p *process) warnInPlace() {
	m, err := hostmem.Host{}.Read()
	if err != nil {
		return
	}
	p.Logger.Info("borrowed memory is used in place, and charged to this process's control group, not the node's",
		"bounded by", m.Bound, "in all", mib(m.Total), "available", mib(m.Available))
}
