package softbench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroup is a control group with a hard limit, of either version.
type cgroup struct {
	dir string
	v2  bool
}

var errNoCgroup = errors.New("no control group with a memory limit can be made here")

func newCgroup(limit int64) (*cgroup, error) {
	name := "polder-bench-" + strconv.Itoa(os.Getpid())
	for _, g := range []cgroup{{"/sys/fs/cgroup/memory/" + name, false}, {"/sys/fs/cgroup/" + name, true}} {
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
		_ = g.close()
	}
	return nil, errNoCgroup
}

func (g *cgroup) add(pid int) error {
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("cannot put process %d under the limit: %w", pid, err)
	}
	return nil
}

// kills is how many processes of the group the kernel has killed for memory.
func (g *cgroup) kills() (int, error) {
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

// close removes the group, which must be empty.
func (g *cgroup) close() error { return os.Remove(g.dir) }
