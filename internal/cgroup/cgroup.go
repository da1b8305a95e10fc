// Package cgroup makes control groups with a memory limit, for tests and
// benchmarks of what happens in a small container.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// Group is a control group with a hard limit, of either version.
type Group struct {
	dir string
	v2  bool
}

// ErrNone is returned where no control group can be made: it takes root, and a
// file system that can be written to.
var ErrNone = errors.New("no control group with a memory limit can be made here")

var made atomic.Int64 // by this process

// New makes a group in which processes may use limit bytes.
func New(limit int64) (*Group, error) {
	name := fmt.Sprintf("polder-%d-%d", os.Getpid(), made.Add(1))
	for _, g := range []Group{{"/sys/fs/cgroup/memory/" + name, false}, {"/sys/fs/cgroup/" + name, true}} {
		if os.Mkdir(g.dir, 0o755) != nil {
			continue
		}
		file := "memory.limit_in_bytes"
		if g.v2 {
			file = "memory.max"
		}
		if os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.FormatInt(limit, 10)), 0o644) == nil {
			return &g, nil
		}
		_ = g.Close()
	}
	return nil, ErrNone
}

// Procs is the file to which a process writes its number to enter the group.
func (g *Group) Procs() string { return filepath.Join(g.dir, "cgroup.procs") }

// Add puts a process under the limit. What it has allocated before stays with the
// group that it was in.
func (g *Group) Add(pid int) error {
	if err := os.WriteFile(g.Procs(), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("cannot put process %d under the limit: %w", pid, err)
	}
	return nil
}

// Usage is the memory in bytes that is charged to the group.
func (g *Group) Usage() (int64, error) {
	file := "memory.usage_in_bytes"
	if g.v2 {
		file = "memory.current"
	}
	b, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// Kills is how many processes of the group the kernel has killed for memory.
func (g *Group) Kills() (int, error) {
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	b, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, nil
}

// Close removes the group, which must be empty.
func (g *Group) Close() error { return os.Remove(g.dir) }
