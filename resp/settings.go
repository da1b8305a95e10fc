package resp

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"time"

	"polder/resp/glob"
	"polder/resp/keyspace"
	"polder/resp/latency"
	"polder/resp/proto"
	"polder/resp/reply"
)

// setting is a parameter that CONFIG SET can change while the server runs.
type setting struct {
	name     string // lower case
	get      func(*Server) int64
	set      func(*session, int64) error
	min, max int64
	memory   bool // the value is a size
}

const maxMemory = "maxmemory"

// settings are in the order in which CONFIG SET sets them: only the first can fail.
var settings = []setting{
	{maxMemory, func(srv *Server) int64 { return srv.memory().Max }, (*session).setMaxMemory, 0, math.MaxInt64, true},
	{"latency-monitor-threshold", func(srv *Server) int64 { return srv.latency.Threshold.Load() },
		func(s *session, n int64) error { s.srv.latency.Threshold.Store(n); return nil }, 0, math.MaxInt64, false},
	{"maxclients", func(srv *Server) int64 { return srv.maxClients.Load() },
		func(s *session, n int64) error { s.srv.maxClients.Store(n); return nil }, 1, 1 << 20, false},
	{"slowlog-log-slower-than", func(srv *Server) int64 { return srv.slow.Than.Load() },
		func(s *session, n int64) error { s.srv.slow.Than.Store(n); return nil }, -1, math.MaxInt64, false},
	{"slowlog-max-len", func(srv *Server) int64 { return srv.slow.Most() },
		func(s *session, n int64) error { s.srv.slow.Resize(n); return nil }, 0, latency.MaxSlowLogs, false},
	{"timeout", func(srv *Server) int64 { return int64(srv.idleTimeout().Seconds()) },
		func(s *session, n int64) error {
			s.srv.timeout.Store(int64(time.Duration(n) * time.Second))
			return nil
		}, 0, math.MaxInt32, false},
}

func settingNamed(name []byte) *setting {
	for i := range settings {
		if proto.Is(name, settings[i].name) {
			return &settings[i]
		}
	}
	return nil
}

// idleTimeout is how long a client may be silent; 0 is for ever.
func (srv *Server) idleTimeout() time.Duration { return time.Duration(srv.timeout.Load()) }

// configValues are the parameters that CONFIG GET knows, sorted by name.
func (srv *Server) configValues() []Stat {
	pass := ""
	if srv.password() != "" {
		pass = "(not shown)" // it may have changed since the client presented it
	}
	list := []Stat{
		{"appendfsync", "everysec"},
		{"appendonly", "no"},
		{"bind", "127.0.0.1"},
		{"client-query-buffer-limit", itoa(int64(srv.cfg.maxCommand()))},
		{"databases", "1"},
		{"hash-max-listpack-entries", itoa(keyspace.ListpackFields)},
		{"hash-max-listpack-value", itoa(keyspace.ListpackValue)},
		{"hash-max-ziplist-entries", itoa(keyspace.ListpackFields)},
		{"hash-max-ziplist-value", itoa(keyspace.ListpackValue)},
		{"maxmemory-clients", itoa(srv.cfg.ClientMemory.Max())},
		{"maxmemory-policy", srv.memory().Policy},
		{"notify-keyspace-events", ""},
		{"port", itoa(int64(srv.port.Load()))},
		{"proto-max-bulk-len", itoa(int64(srv.cfg.MaxBulk))},
		{"requirepass", pass},
		{"save", ""},
	}
	for _, c := range settings {
		list = append(list, Stat{c.name, itoa(c.get(srv))})
	}
	slices.SortFunc(list, func(a, b Stat) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return list
}

func cmdConfigGet(s *session, a [][]byte) error {
	values := s.srv.configValues()
	wanted := make([]bool, len(values))
	for _, p := range a[2:] {
		pattern, err := glob.Compile(bytes.ToLower(p))
		if err != nil {
			return err
		}
		for i, v := range values {
			wanted[i] = wanted[i] || pattern.Match([]byte(v.Name))
		}
	}
	var hits []Stat
	for i, v := range values {
		if wanted[i] {
			hits = append(hits, v)
		}
	}
	s.replyStats(hits)
	return nil
}

func (s *session) replyStats(list []Stat) {
	s.Map(len(list))
	for _, v := range list {
		s.Str(v.Name)
		s.Str(v.Value)
	}
}

// cmdConfigSet changes all settings that it is given, or none.
func cmdConfigSet(s *session, a [][]byte) error {
	if len(a)%2 != 0 {
		return reply.ErrSyntax
	}
	texts, values := map[*setting][]byte{}, map[*setting]int64{}
	for i := 2; i < len(a); i += 2 {
		c := settingNamed(a[i])
		if c == nil {
			return s.noSetting(a[i])
		}
		if texts[c] != nil {
			return notSet(proto.Clip(a[i], 128), "duplicate parameter")
		}
		texts[c] = a[i+1]
	}
	for i := 2; i < len(a); i += 2 {
		c := settingNamed(a[i])
		n, err := c.parse(texts[c])
		if err != nil {
			return err
		}
		values[c] = n
	}
	for i := range settings {
		n, ok := values[&settings[i]]
		if !ok {
			continue
		}
		if err := settings[i].set(s, n); err != nil {
			return err
		}
	}
	s.OK()
	return nil
}

// noSetting says why a parameter cannot be set.
func (s *session) noSetting(name []byte) error {
	for _, v := range s.srv.configValues() {
		if !proto.Is(name, v.Name) {
			continue
		}
		how := "can't set immutable config: polder is given it when it starts, by flags, environment or file"
		if v.Name == "requirepass" {
			how = "the password is in the file of --password-file, in POLDER_PASSWORD or the configuration file: change it there and send SIGHUP"
		}
		return notSet(v.Name, how)
	}
	return reply.Error("ERR Unknown option or number of arguments for CONFIG SET - '" + proto.Clip(name, 128) + "'")
}

func notSet(name, why string) error {
	return reply.Error("ERR CONFIG SET failed (possibly related to argument '" + name + "') - " + why)
}

func (c *setting) parse(b []byte) (n int64, err error) {
	ok := false
	if c.memory {
		if n, ok = parseMemory(b); !ok {
			return 0, notSet(c.name, "argument must be a memory value")
		}
	} else if n, ok = proto.ParseInt(b); !ok {
		return 0, notSet(c.name, "argument couldn't be parsed into an integer")
	}
	if n < c.min || n > c.max {
		return 0, notSet(c.name, fmt.Sprintf("argument must be between %d and %d inclusive", c.min, c.max))
	}
	return n, nil
}

// setMaxMemory changes the budget of local memory, or the budget of a cache that has no coordinator.
func (s *session) setMaxMemory(n int64) error {
	srv := s.srv
	switch {
	case srv.parts != nil:
		return notSet(maxMemory, "it is divided among the partitions that the server has")
	case srv.data.IsLoading():
		return errLoading
	}
	if s.OnWait != nil {
		s.OnWait(nil) // eviction takes a while
	}
	if err := srv.data.Resize(n); err != nil {
		return notSet(maxMemory, err.Error())
	}
	return nil
}

// parseMemory reads a size as Redis does: 100, 100k (thousands), 100kb (1024).
func parseMemory(b []byte) (int64, bool) {
	digits := 0
	for digits < len(b) && b[digits]-'0' < 10 {
		digits++
	}
	n, ok := proto.ParseInt(b[:digits])
	if !ok {
		return 0, false
	}
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"", 1}, {"b", 1}, {"k", 1e3}, {"kb", 1 << 10}, {"m", 1e6}, {"mb", 1 << 20}, {"g", 1e9}, {"gb", 1 << 30}} {
		if proto.Is(b[digits:], u.name) {
			return n * u.bytes, n <= (1<<62)/u.bytes
		}
	}
	return 0, false
}

func cmdConfigRewrite(s *session, a [][]byte) error {
	return reply.Error("ERR The server is running without a config file")
}

func cmdConfigResetStat(s *session, a [][]byte) error {
	s.OK() // counters here never go back: Prometheus reads them
	return nil
}
