package partition

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"polder/holder"
)

// Server is one of the servers that share the keyspace.
type Server struct {
	ID      string // 40 hexadecimal digits, lower case
	Addr    string // HOST:PORT for clients
	Beat    uint64 // changes while the server lives
	Leaving bool   // it is handing its partitions over, and gets none
	Extra   int    // how many partitions more (or fewer) than an equal share it is to have because of load
	Expects int    // 1 + the partition that it is to get next or is opening; 0 if none
}

// Map is what the servers agree on.
type Map struct {
	Partitions int
	Servers    []Server // ascending by ID
	Owner      []string // for each partition the ID of the server that has it, or is to open it now; "" if none
	Next       []string // for each partition the ID of the server that the owner is to hand it to; "" if it stays
	Load       []Level  // for each partition the load that an owner has reported last
	Epoch      uint64   // grows with every change of Owner, or of Servers except for Beat, Extra and Expects
	Removing   bool     // nobody may join: partitions are being filled before the first server joins, or removed
}

// Server returns the server with an ID, and whether there is one.
func (m *Map) Server(id string) (Server, bool) {
	i, ok := m.find(id)
	if !ok {
		return Server{}, false
	}
	return m.Servers[i], true
}

// find returns the index in Servers of the server with this ID, or where it would be inserted, and whether it is
// there.
func (m *Map) find(id string) (int, bool) {
	return slices.BinarySearchFunc(m.Servers, id, func(s Server, id string) int { return strings.Compare(s.ID, id) })
}

// newMap is a map with no servers.
func newMap(partitions int) *Map {
	return &Map{Partitions: partitions, Owner: make([]string, partitions), Next: make([]string, partitions), Load: make([]Level, partitions)}
}

// clone is a copy that may be changed.
func (m *Map) clone() *Map {
	c := *m
	c.Servers, c.Owner, c.Next, c.Load = slices.Clone(m.Servers), slices.Clone(m.Owner), slices.Clone(m.Next), slices.Clone(m.Load)
	return &c
}

// sameOwners reports whether the two maps have the same Owner and the same Servers, apart from Beat, Extra and
// Expects. If not, they need different Epochs.
func (m *Map) sameOwners(other *Map) bool {
	return slices.Equal(m.Owner, other.Owner) && slices.EqualFunc(m.Servers, other.Servers, func(a, b Server) bool {
		a.Beat, a.Extra, a.Expects = b.Beat, b.Extra, b.Expects
		return a == b
	})
}

// The encoding is JSON, and begins with the same bytes in every format. Load, Extra and Expects were added later
// without a new format: a server that does not know them drops them when it beats. While there is such a server
// nothing moves because of load, and several partitions may be on their way to a server at a time.
const (
	magic     = "polder partitions"
	format    = 1
	beginning = `{"magic":"` + magic + `","format":`
	maxAddr   = 300 // bytes
	nobody    = -1
)

type encoded struct {
	Magic      string          `json:"magic"`
	Format     int             `json:"format"`
	Epoch      uint64          `json:"epoch"`
	Partitions int             `json:"partitions"`
	Servers    []encodedServer `json:"servers"`
	Owner      []int           `json:"owner"` // indices into Servers, or nobody
	Next       []int           `json:"next"`
	Load       []Level         `json:"load,omitempty"` // in base 64; none if all are unknown
	Removing   bool            `json:"removing,omitempty"`
}

type encodedServer struct {
	ID      string `json:"id"`
	Addr    string `json:"addr"`
	Beat    uint64 `json:"beat,omitempty"`
	Leaving bool   `json:"leaving,omitempty"`
	Extra   int    `json:"extra,omitempty"`
	Expects int    `json:"expects,omitempty"`
}

// IsMap reports whether b begins as a map in any format does. It may be damaged otherwise.
func IsMap(b []byte) bool { return bytes.HasPrefix(b, []byte(beginning)) }

// Encode is the map as bytes.
func (m *Map) Encode() []byte {
	e := encoded{Magic: magic, Format: format, Epoch: m.Epoch, Partitions: m.Partitions, Removing: m.Removing}
	for _, s := range m.Servers {
		e.Servers = append(e.Servers, encodedServer(s))
	}
	index := func(ids []string) []int {
		out := make([]int, len(ids))
		for p, id := range ids {
			var ok bool
			if out[p], ok = m.find(id); !ok {
				out[p] = nobody
			}
		}
		return out
	}
	e.Owner, e.Next = index(m.Owner), index(m.Next)
	if slices.ContainsFunc(m.Load, func(l Level) bool { return l != unknown }) {
		e.Load = m.Load
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic("BUG: " + err.Error()) // there are only numbers and strings
	}
	return b
}

// ErrNoMap says that a value is not a map of partitions.
var ErrNoMap = errors.New("it is no map of partitions")

// Decode reads a map from bytes that may be anything.
func Decode(b []byte) (*Map, error) {
	switch {
	case len(b) > holder.MaxValue:
		return nil, fmt.Errorf("%d bytes are no map of partitions: want at most %d", len(b), holder.MaxValue)
	case !IsMap(b):
		return nil, fmt.Errorf("%w: it begins with %.8q, want %.8q", ErrNoMap, b, beginning)
	}
	var e encoded
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&e); err != nil {
		return nil, fmt.Errorf("cannot read the map of partitions: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the map of partitions")
	}
	switch {
	case e.Magic != magic || e.Format != format:
		return nil, fmt.Errorf("the map of partitions is a %q of format %d, want format %d: it is of another version of polder", e.Magic, e.Format, format)
	case e.Partitions < 1 || e.Partitions > MaxPartitions:
		return nil, fmt.Errorf("the map has %d partitions, want 1 to %d", e.Partitions, MaxPartitions)
	case len(e.Load) != 0 && len(e.Load) != e.Partitions:
		return nil, fmt.Errorf("the map says how much there is to do for %d of %d partitions", len(e.Load), e.Partitions)
	case len(e.Owner) != e.Partitions || len(e.Next) != e.Partitions:
		return nil, fmt.Errorf("the map says who owns %d of %d partitions, and who is next of %d", len(e.Owner), e.Partitions, len(e.Next))
	}
	m := newMap(e.Partitions)
	m.Epoch, m.Removing = e.Epoch, e.Removing
	copy(m.Load, e.Load)
	for i, s := range e.Servers {
		if err := checkServer(s.ID, s.Addr); err != nil {
			return nil, fmt.Errorf("server %d of the map: %w", i, err)
		}
		if i > 0 && s.ID <= e.Servers[i-1].ID {
			return nil, fmt.Errorf("server %d of the map is %s, which does not follow %s", i, s.ID, e.Servers[i-1].ID)
		}
		if max(s.Extra, -s.Extra) > e.Partitions {
			return nil, fmt.Errorf("server %d of the map is to have %d partitions more than its share, and there are %d", i, s.Extra, e.Partitions)
		}
		if s.Expects < 0 || s.Expects > e.Partitions {
			return nil, fmt.Errorf("server %d of the map expects partition %d of %d", i, s.Expects-1, e.Partitions)
		}
		m.Servers = append(m.Servers, Server(s))
	}
	for p := range e.Partitions {
		owner, next := e.Owner[p], e.Next[p]
		for _, i := range []int{owner, next} {
			if i < nobody || i >= len(m.Servers) {
				return nil, fmt.Errorf("partition %d of the map names server %d of %d", p, i, len(m.Servers))
			}
		}
		if next != nobody && (owner == nobody || owner == next) {
			return nil, fmt.Errorf("partition %d of the map is to be handed over from server %d to %d", p, owner, next)
		}
		if owner != nobody {
			m.Owner[p] = m.Servers[owner].ID
		}
		if next != nobody {
			m.Next[p] = m.Servers[next].ID
		}
	}
	return m, nil
}

// checkServer returns an error if a server's ID or address is wrong.
func checkServer(id, addr string) error {
	if len(id) != 40 || strings.Trim(id, "0123456789abcdef") != "" {
		return fmt.Errorf("the ID %.60q is not 40 hexadecimal digits in lower case", id)
	}
	host, port, err := net.SplitHostPort(addr)
	n, bad := strconv.ParseUint(port, 10, 16)
	letter := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(".-_:%", r)
	}
	if err != nil || bad != nil || n == 0 || host == "" || len(addr) > maxAddr || strings.ContainsFunc(host, func(r rune) bool { return !letter(r) }) {
		return fmt.Errorf("the address %.60q is not HOST:PORT", addr)
	}
	return nil
}
