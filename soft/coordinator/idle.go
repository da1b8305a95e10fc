package coordinator

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
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
	Total     int64 // of the host, or of the tightest limit around us
	Available int64 // could be allocated without swapping or being killed

	// Stalled is the total time, in seconds, for which some process on the
	// host has waited for memory (PSI); 0 where the kernel does not say.
	Stalled float64
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
	if limit, free, ok := h.Limit("self"); ok {
		m.Total = min(m.Total, limit)
		m.Available = min(m.Available, free)
	}
	m.Stalled = h.stalled()
	return m, nil
}

// Limit returns the tightest memory limit of the control groups, version 1 or
// 2, that a process is in, and how much can still be allocated under it. Page
// cache that nobody has written to counts as free.
func (h Host) Limit(pid string) (limit, free int64, ok bool) {
	b, err := os.ReadFile(filepath.Join(h.proc(), pid, "cgroup"))
	if err != nil {
		return 0, 0, false
	}
	limit, free = math.MaxInt64, math.MaxInt64
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		var roots []string
		var g group
		switch {
		case f[0] == "0" && f[1] == "":
			roots, g = []string{h.cgroup(), filepath.Join(h.cgroup(), "unified")}, v2
		case strings.Contains(","+f[1]+",", ",memory,"):
			roots, g = []string{filepath.Join(h.cgroup(), "memory")}, v1
		default:
			continue
		}
		for _, root := range roots {
			for dir := filepath.Clean("/" + f[2]); ; dir = filepath.Dir(dir) {
				if l, fr, found := g.read(filepath.Join(root, dir)); found {
					ok = true
					limit, free = min(limit, l), min(free, fr)
				}
				if dir == "/" {
					break
				}
			}
		}
	}
	return limit, free, ok
}

// group is how a version of control groups names its files.
type group struct{ limit, usage, file string }

var (
	v1 = group{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	v2 = group{"memory.max", "memory.current", "inactive_file"}
)

// unlimited is more than any host has; version 1 says so in place of nothing.
const unlimited = 1 << 60

func (g group) read(dir string) (limit, free int64, ok bool) {
	limit, err := number(filepath.Join(dir, g.limit))
	if err != nil || limit >= unlimited {
		return 0, 0, false
	}
	usage, err := number(filepath.Join(dir, g.usage))
	if err != nil {
		return 0, 0, false
	}
	stat, err := keyed(filepath.Join(dir, "memory.stat"), 1)
	if err == nil {
		usage -= min(stat[g.file], usage)
	}
	return limit, max(limit-usage, 0), true
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
