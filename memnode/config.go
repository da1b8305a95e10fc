package memnode

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"polder/internal/arena"
	"polder/internal/ratelog"
	"polder/memnode/component"
	"polder/memnode/ledger"
	"polder/memnode/wire"
	"polder/verbs"
)

// Defaults of a Config.
const (
	DefaultChunkSize  = 1 << 20
	DefaultGrace      = 10 * time.Second
	DefaultMaxClients = 1024

	DefaultMaxGroups = 4
	DefaultMaxPairs  = 2

	DefaultMaxViolations = 32
	DefaultHeartbeat     = time.Second
)

// Limits of a Config.
const (
	MinChunkSize = wire.MinChunkSize
	MaxChunkSize = wire.MaxChunkSize
)

// Config says what a Node lends, and to whom.
type Config struct {
	// Manager is the way of managing memory, one of Managers. The default is DefaultManager, or OtherManager if the
	// device has no allocation verb. Clients must use the same manager.
	Manager string
	// Group is how many access queue pairs a client of OneSided or Native
	// has, from 1 to 8, by default 2. Every chunk has as many windows, and
	// one more for its owner to free it with.
	Group int
	// MaxGroups is how many such groups a client may have, from 1 to wire.MaxGroups, by default 4; with FineMem and
	// RPCMW a group is one queue pair. MaxPairs is how many pairs of queue pairs a client of OneSided may have (one
	// to allocate with and one to free with), from 1 to wire.MaxPairs, by default 2. Groups and pairs cost no
	// windows, since a chunk is open to one group only; but MaxClients clients must not exhaust the device's queue
	// pairs.
	MaxGroups, MaxPairs int
	// Lend is how many bytes to lend, at least one chunk. A remainder that does not fill a chunk is left out. A page
	// is populated only when a client uses it.
	Lend int64
	// Idle makes the node lend only what its host does not need: at most Lend bytes, and no more than Node.Yield
	// says. Clients are told this, so that they can permit the node to drop chunks. It needs the manager Native,
	// RPCMW or MemFD, and chunks of more than 64 KiB.
	Idle bool
	// ChunkSize is a power of two from 512 B to 1 GiB, by default 1 MiB.
	// Chunks smaller than a page are zeroed rather than given back to the
	// operating system.
	ChunkSize int
	// ClientBudget is the most bytes that one client may hold; 0 means all.
	ClientBudget int64
	// Grace is how long a client's chunks outlive its connection, by
	// default 10 s.
	Grace time.Duration
	// Zone names what the node fails together with, such as a rack. Clients are told, because they keep copies in
	// different zones. It has at most wire.MaxZone bytes. "" means that the node is a zone of its own.
	Zone string
	// Cluster is the name of the cluster that the node belongs to, "" for none. Clients of another cluster, or of
	// none, are refused.
	Cluster string
	// MaxClients is the most sessions, connected or in their grace period,
	// by default 1024.
	MaxClients int
	// MaxKept is the most kept sessions, whose memory stays while their clients are
	// away, by default a quarter of MaxClients, and at least one. They count towards
	// MaxClients, too.
	MaxKept int
	// TrustClients lets several clients borrow at a time although the device does not check the bounds of windows
	// (verbs.DeviceAttr.BoundsMW): any client that borrows something can then read and write everything. Without
	// TrustClients such a node lends to one client at a time, unless the manager needs no bounds (FineMR, StaticMR).
	TrustClients bool
	// MaxViolations concerns the manager FineMem: when the device has refused more than MaxViolations one-sided
	// operations of one host's clients, the node connects no more queue pairs of that host. By default 32. One
	// refusal is forgotten every 10 s.
	MaxViolations int
	// Heartbeat is how often a client of manager FineMem must show that it is alive, once it has done so for the
	// first time; by default 1 s. A client that misses three heartbeats is disconnected, even if its connection still
	// stands.
	Heartbeat time.Duration
	// ServiceSecret, if it is not zero, is what a client of manager FineMem must show before the metadata is opened
	// to it: whoever has the metadata can take and give back everybody's memory.
	ServiceSecret [32]byte
	// Components says what active components may use; by default there are none. Their memory is part of Lend, and
	// one client's component memory is part of its ClientBudget, if there is one.
	Components component.Config
	// Outliving, if it is set, holds the lent memory, which then outlives the process. The manager must be able to
	// keep sessions (wire.Manager.Keeps). If an earlier node has left memory there, the node lends as much as that
	// node did, whatever Lend says.
	Outliving *ledger.Outliving
	// InPlace lets clients on this machine that run as the same user and connect over TCP read in place: they are
	// passed all the lent memory, for reading only (package inplace). They write over the fabric as other clients do.
	// It needs a manager that can keep sessions (wire.Manager.Keeps), and excludes Outliving and devices that pin
	// memory. The memory then has no huge pages, unless the host has them for all shared memory.
	InPlace bool
	// Logger gets connections, losses and refusals; by default nothing is
	// logged.
	Logger *slog.Logger
}

// withDefaults returns c with its zero fields set, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.Manager == "" {
		c.Manager = DefaultManager
	}
	if err := checkManager(c.Manager); err != nil {
		return c, err
	}
	if c.Group == 0 {
		c.Group = 2
	}
	if c.MaxGroups == 0 {
		c.MaxGroups = DefaultMaxGroups
	}
	if c.MaxPairs == 0 {
		c.MaxPairs = DefaultMaxPairs
	}
	if c.ChunkSize == 0 {
		c.ChunkSize = DefaultChunkSize
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	if c.MaxClients == 0 {
		c.MaxClients = DefaultMaxClients
	}
	if c.MaxKept == 0 {
		c.MaxKept = max(1, c.MaxClients/4)
	}
	if c.MaxViolations == 0 {
		c.MaxViolations = DefaultMaxViolations
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = DefaultHeartbeat
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = ratelog.Bound(c.Logger)
	var err error
	if c.Components, err = c.Components.WithDefaults(); err != nil {
		return c, err
	}
	size := int64(c.ChunkSize)
	forChunks := c.Lend - c.Components.Memory
	switch {
	case size < MinChunkSize || size > MaxChunkSize || size&(size-1) != 0:
		return c, fmt.Errorf("the chunk size is %d, want a power of two from %d to %d", size, MinChunkSize, MaxChunkSize)
	case c.Lend < size:
		return c, fmt.Errorf("%d bytes to lend, want at least one chunk of %d bytes", c.Lend, size)
	case forChunks < size:
		return c, fmt.Errorf("%d bytes to lend, of which components have %d, want at least one chunk of %d bytes", c.Lend, c.Components.Memory, size)
	case c.ClientBudget > 0 && c.ClientBudget-c.Components.ClientMemory < size:
		return c, fmt.Errorf("the client budget is %d, of which components have %d, want at least one chunk of %d bytes", c.ClientBudget, c.Components.ClientMemory, size)
	case c.Lend/size > wire.MaxChunks:
		return c, fmt.Errorf("%d bytes to lend, want at most %d chunks of %d bytes: use larger chunks", c.Lend, wire.MaxChunks, size)
	case c.ClientBudget < 0 || c.ClientBudget > 0 && c.ClientBudget < size:
		return c, fmt.Errorf("the client budget is %d, want 0 or at least one chunk of %d bytes", c.ClientBudget, size)
	case c.Group < 1 || c.Group > verbs.MaxWindows-1:
		return c, fmt.Errorf("groups of %d queue pairs, want 1 to %d", c.Group, verbs.MaxWindows-1)
	case c.MaxGroups < 1 || c.MaxGroups > wire.MaxGroups:
		return c, fmt.Errorf("at most %d groups a client, want 1 to %d", c.MaxGroups, wire.MaxGroups)
	case c.MaxPairs < 1 || c.MaxPairs > wire.MaxPairs:
		return c, fmt.Errorf("at most %d pairs of queue pairs to allocate and to free with, want 1 to %d", c.MaxPairs, wire.MaxPairs)
	case len(c.Zone) > wire.MaxZone || strings.ContainsRune(c.Zone, 0):
		return c, fmt.Errorf("the zone is %q, want at most %d bytes without zeros", c.Zone, wire.MaxZone)
	case c.Grace < 0:
		return c, fmt.Errorf("the grace period is %v, want it positive", c.Grace)
	case c.MaxViolations < 0:
		return c, fmt.Errorf("at most %d violations, want it positive", c.MaxViolations)
	case c.Heartbeat < 0:
		return c, fmt.Errorf("a heartbeat every %v, want it positive", c.Heartbeat)
	case c.MaxKept < 0:
		return c, fmt.Errorf("at most %d kept sessions, want it positive", c.MaxKept)
	case c.MaxClients < 0:
		return c, fmt.Errorf("at most %d clients, want it positive", c.MaxClients)
	}
	return c, nil
}

// chunks is how many chunks c makes.
func (c *Config) chunks() int { return int((c.Lend - c.Components.Memory) / int64(c.ChunkSize)) }

// budget is how many chunks one client may hold.
func (c *Config) budget() int {
	if c.ClientBudget == 0 {
		return c.chunks()
	}
	return min(c.chunks(), int((c.ClientBudget-c.Components.ClientMemory)/int64(c.ChunkSize)))
}

// mapSize is the size of the mapping that holds the chunks.
func (c *Config) mapSize() int {
	n := c.chunks() * c.ChunkSize
	return (n + arena.PageSize - 1) / arena.PageSize * arena.PageSize
}

// windowAccess is what a borrower may do to its chunk.
const windowAccess = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
