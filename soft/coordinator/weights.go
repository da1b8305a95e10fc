package coordinator

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"polder/internal/fdpass"
)

// A Weight is an operator's setting: how much the rebuilding that certain clients save counts beside what others save
// (section 4.3.2). If several weights are about a client, the first counts.
type Weight struct {
	by     identity
	of     string // a name or a path; both may be patterns: see ParseWeight
	uid    int
	weight float64
}

type identity string

const (
	byName   identity = "name"
	byUser   identity = "user"
	byCgroup identity = "cgroup"
)

const maxWeight = 1e6

var errWeight = errors.New("want name:NAME=WEIGHT, user:USER=WEIGHT or cgroup:/PATH=WEIGHT, such as user:www-data=4")

// ParseWeight reads a weight as operators write it:
//
//	name:NAME=WEIGHT    a client that calls itself so; * at the end stands for any rest
//	user:USER=WEIGHT    clients of a user, by name or number
//	cgroup:/PATH=WEIGHT clients in that control group, or in one below it
func ParseWeight(s string) (w Weight, err error) {
	by, rest, ok := strings.Cut(s, ":")
	at := strings.LastIndexByte(rest, '=')
	if !ok || at < 0 {
		return w, errWeight
	}
	w.by, w.of = identity(strings.TrimSpace(by)), strings.TrimSpace(rest[:at])
	number := strings.TrimSpace(rest[at+1:])
	if w.weight, err = strconv.ParseFloat(number, 64); err != nil || !(w.weight > 0 && w.weight <= maxWeight) {
		return w, fmt.Errorf("the weight is %q: want a number above 0, of at most a million", number)
	}
	switch {
	case w.of == "":
		return w, errWeight
	case w.by == byName:
	case w.by == byUser:
		if w.uid, err = uidOf(w.of); err != nil {
			return w, err
		}
	case w.by == byCgroup:
		if !strings.HasPrefix(w.of, "/") {
			return w, fmt.Errorf("the control group is %q: want its path below /sys/fs/cgroup, such as /system.slice", w.of)
		}
		w.of = filepath.Clean(w.of)
	default:
		return w, errWeight
	}
	return w, nil
}

func uidOf(name string) (int, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return int(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("there is no user %q on this host: want a name or a number", name)
	}
	return strconv.Atoi(u.Uid)
}

// ReadWeights reads a file with a weight on each line. Empty lines do not count, nor
// those that begin with #.
func ReadWeights(path string) (list []Weight, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read weights: %w", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		w, err := ParseWeight(line)
		if err != nil {
			return nil, fmt.Errorf("cannot read weights: %s, line %d: %q: %w", path, n, line, err)
		}
		list = append(list, w)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("cannot read weights: %s: %w", path, err)
	}
	return list, nil
}

// SetWeights replaces the operator's weights.
func (c *Coordinator) SetWeights(list []Weight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Weights = list
	for _, s := range c.sessions {
		if again := cgroupsOf(s.conn, s.peer.PID); again != nil { // it may have been moved
			s.cgroups = again
		}
		c.weigh(s)
	}
}

// weigh finds a client's weight: the operator's, or else what the client says.
//
// Preconditions: c.mu is held.
func (c *Coordinator) weigh(s *session) {
	s.weight = min(s.hello.Weight, c.cfg.MaxWeight)
	if i := slices.IndexFunc(c.cfg.Weights, s.concerns); i >= 0 {
		s.weight = c.cfg.Weights[i].weight
	}
}

// concerns reports whether w is about the client.
func (s *session) concerns(w Weight) bool {
	switch w.by {
	case byName:
		start, pattern := strings.CutSuffix(w.of, "*")
		return s.hello.Name == w.of || pattern && strings.HasPrefix(s.hello.Name, start)
	case byUser:
		return s.peer.UID == w.uid
	}
	return slices.ContainsFunc(s.cgroups, func(path string) bool {
		return path == w.of || strings.HasPrefix(path, strings.TrimSuffix(w.of, "/")+"/")
	})
}

// cgroupsOf returns the paths of the control groups, one of each hierarchy, of the
// process that has connected. It is nil if they cannot be told, or if the process is
// dead: then its pid may be another's by now.
func cgroupsOf(conn *fdpass.Conn, pid int) (paths []string) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil
	}
	if pidfd, err := conn.PeerPidFD(); err == nil {
		defer pidfd.Close()
		if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}, 0); n != 0 {
			return nil
		}
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			paths = append(paths, f[2])
		}
	}
	return paths
}
