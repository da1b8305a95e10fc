// Package hostmem says how much memory there is for this process: on the host,
// and under the control groups that it is in, of either version. What is beyond
// a group's limit does not make allocations fail but gets the process killed.
//
// Nothing here keeps state; everything may be used by any number of goroutines.
package hostmem

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Host tells how much memory is idle. The zero value asks the running kernel.
type Host struct {
	Proc   string // default /proc
	Cgroup string // default /sys/fs/cgroup
}

// Memory is what a Host has found.
type Memory struct {
	Total     int64  // of the host, or the tightest limit around us
	Available int64  // could be allocated without swapping or being killed
	Bound     string // what sets Available: "the host's memory", or a control group

	// Stalled is the total time, in seconds, for which some process on the
	// host has waited for memory (PSI); 0 where the kernel does not say.
	Stalled float64
}

// leastReserve is the least that a process needs beside the memory that it
// lends: the program, the Go runtime, connections, page tables.
const leastReserve = 64 << 20

// Reserve is what is better not handed out: a sixteenth of all there is, at
// least 64 MiB.
func (m Memory) Reserve() int64 { return max(m.Total/16, leastReserve) }

// Spare is what can be handed out now: what is available less the reserve.
func (m Memory) Spare() int64 { return max(m.Available-m.Reserve(), 0) }

// Group is a limit of a control group.
type Group struct {
	Path  string // of the group; / for the outermost that is visible
	Limit int64  // bytes
	Free  int64  // of these, what can still be allocated
}

func (h Host) proc() string {
	if h.Proc != "" {
		return h.Proc
	}
	return "/proc"
}

func (h Host) cgroup() string {
	if h.Cgroup != "" {
		return h.Cgroup
	}
	return "/sys/fs/cgroup"
}

// Read measures. It costs a few dozen microseconds.
func (h Host) Read() (m Memory, err error) {
	info, err := keyed(filepath.Join(h.proc(), "meminfo"), 1024)
	if err != nil {
		return m, fmt.Errorf("cannot tell how much memory is idle: %w", err)
	}
	m.Total, m.Available = info["MemTotal:"], info["MemAvailable:"]
	if m.Total <= 0 || m.Available < 0 {
		return m, fmt.Errorf("cannot tell how much memory is idle: no MemTotal or MemAvailable in meminfo")
	}
	m.Bound = "the host's memory"
	for _, g := range h.groups("self") {
		m.Total = min(m.Total, g.Limit)
		if g.Free < m.Available {
			m.Available, m.Bound = g.Free, "the control group "+g.Path
		}
	}
	m.Stalled = h.stalled()
	return m, nil
}

// Limit returns the tightest memory limit of the control groups that a process
// is in, and how much can still be allocated under all of them. Page cache that
// nobody has written to counts as free.
func (h Host) Limit(pid string) (limit, free int64, ok bool) {
	limit, free = math.MaxInt64, math.MaxInt64
	for _, g := range h.groups(pid) {
		limit, free, ok = min(limit, g.Limit), min(free, g.Free), true
	}
	return limit, free, ok
}

// groups are the control groups with a limit that a process is in, and their
// ancestors as far as they are visible. In a container without a namespace for
// control groups the process's own group is not where its path says, but at the
// root of what is mounted, where its ancestors are looked for, too.
func (h Host) groups(pid string) (list []Group) {
	b, err := os.ReadFile(filepath.Join(h.proc(), pid, "cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		var roots []string
		var v version
		switch {
		case f[0] == "0" && f[1] == "":
			roots, v = []string{h.cgroup(), filepath.Join(h.cgroup(), "unified")}, v2
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			roots, v = []string{filepath.Join(h.cgroup(), "memory"), filepath.Join(h.cgroup(), f[1])}, v1
		default:
			continue
		}
		for _, root := range slices.Compact(roots) {
			for dir := filepath.Clean("/" + f[2]); ; dir = filepath.Dir(dir) {
				if g, ok := v.read(filepath.Join(root, dir)); ok {
					g.Path = dir
					list = append(list, g)
				}
				if dir == "/" {
					break
				}
			}
		}
	}
	return list
}

// version is how a version of control groups names its files.
type version struct {
	limits []string // files; the least counts
	usage  string
	file   string // key in memory.stat of the page cache that is reclaimed first
	above  string // key in memory.stat of the least limit of all ancestors, visible or not
}

var (
	v1 = version{[]string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file", "hierarchical_memory_limit"}
	// Beyond memory.high the kernel does not kill but slows down, to a stop.
	v2 = version{[]string{"memory.max", "memory.high"}, "memory.current", "inactive_file", ""}
)

// unlimited is more than any host has; version 1 writes such a number when there is no limit.
const unlimited = 1 << 60

// read reads a group, if it has a limit.
func (v version) read(dir string) (g Group, ok bool) {
	usage, err := number(filepath.Join(dir, v.usage))
	if err != nil {
		return g, false
	}
	g.Limit = unlimited
	for _, file := range v.limits {
		if n, err := number(filepath.Join(dir, file)); err == nil {
			g.Limit = min(g.Limit, n)
		}
	}
	if stat, err := keyed(filepath.Join(dir, "memory.stat"), 1); err == nil {
		usage -= min(stat[v.file], usage)
		if n, ok := stat[v.above]; ok {
			g.Limit = min(g.Limit, n)
		}
	}
	g.Free = max(g.Limit-usage, 0)
	return g, g.Limit < unlimited
}

func number(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	s := string(bytes.TrimSpace(b))
	if s == "max" {
		return unlimited, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

// keyed reads a file of lines "key value …", values in units of so many bytes.
func keyed(path string, unit int64) (map[string]int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := make(map[string]int64, 64)
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 2 {
			continue
		}
		if v, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			m[f[0]] = v * unit
		}
	}
	return m, nil
}

// stalled reads PSI: "some avg10=0.00 avg60=0.00 avg300=0.00 total=0", in
// microseconds.
func (h Host) stalled() float64 {
	b, err := os.ReadFile(filepath.Join(h.proc(), "pressure", "memory"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	_, total, ok := strings.Cut(line, "total=")
	if !ok || !strings.HasPrefix(line, "some ") {
		return 0
	}
	us, err := strconv.ParseInt(strings.TrimSpace(total), 10, 64)
	if err != nil {
		return 0
	}
	return float64(us) / 1e6
}

// CheckPressure fails if the kernel does not say how long processes wait for memory.
func (h Host) CheckPressure() error {
	b, err := os.ReadFile(filepath.Join(h.proc(), "pressure", "memory"))
	if err == nil && !strings.HasPrefix(string(b), "some ") {
		err = fmt.Errorf("it begins with %.20q", b)
	}
	if err != nil {
		return fmt.Errorf("this kernel does not say how long processes wait for memory (PSI; where it is built in but off, boot with psi=1): %w", err)
	}
	return nil
}
