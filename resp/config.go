package resp

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"polder/internal/ratelog"
	"polder/resp/clientmem"
	"polder/resp/keyspace"
)

// Config configures a Server. The zero value is ready for use.
type Config struct {
	// Password, if not empty, is what clients must present with AUTH or
	// HELLO, as the user "default".
	Password string
	// MaxBulk is the longest argument in bytes. Default 32 MiB. A whole
	// command may take twice that and a mebibyte.
	MaxBulk int
	// MaxArgs is the largest number of arguments. Default 1048576.
	MaxArgs int
	// MaxClients is the largest number of connections. Default 10000.
	MaxClients int
	// MaxInlineLen is the longest inline command in bytes. Default 64 KiB.
	MaxInlineLen int
	// OutputLimit bounds the bytes of replies that a client has yet to read. The commands of a client that exceeds it
	// wait until the client has read its replies; it is disconnected if it reads less than 64 KiB in five seconds. As
	// ClientMemory fills, the limit falls. Default 32 MiB. A single reply may exceed the limit by MaxBulk, but not
	// three quarters of ClientMemory; a command with a longer reply fails.
	OutputLimit int
	// ClientMemory bounds what all clients together make the server hold: input, replies, queued transactions,
	// watched keys. When it is exceeded, the client that holds most is disconnected. It should have room for a few of
	// the largest commands. Servers may share a budget. Default: a budget for this server alone of 128 MiB, more if
	// MaxBulk is large.
	ClientMemory *clientmem.Budget
	// OpTimeout bounds how long a command waits for far memory. Default 2s.
	OpTimeout time.Duration
	// IdleTimeout disconnects clients that have sent nothing for that long.
	// Zero: never.
	IdleTimeout time.Duration
	// Loops is the number of event loops. Default: half the CPUs, from 1 to 4. Negative: there are no event loops,
	// and each connection has two goroutines.
	Loops int
	// Journal configures the journal of a heap that is kept (far.Open). Without a journal, the heap comes back as its
	// last checkpoint has it.
	Journal keyspace.Journal
	// Heap is the name of a heap that several servers may have, one at a time; "" if no other server can have it. All
	// of them answer SENTINEL, by which clients find the server that has the heap: see SetMaster.
	Heap string
	// Evidence, if set, shows that nobody else can have changed what the heap has. Replies that show data wait for
	// it.
	Evidence keyspace.Evidence
	// Cluster, if set, makes the server serve some of the partitions of a heap; other servers have the others: see
	// AddPartition.
	Cluster *Cluster
	// Ready, if set, is called by Open when all of the heap's data is there. Clients are not answered out of the heap
	// until it has returned.
	Ready func(ctx context.Context) error
	// Logger receives what an operator should know. Default slog.Default().
	Logger *slog.Logger
	// ExtraStats, if set, adds lines to POLDER STATS and a section to INFO.
	// It may be called at any time, by any goroutine.
	ExtraStats func() []Stat
}

// Stat is a line of POLDER STATS.
type Stat struct {
	Name  string // words joined by underscores
	Value string
}

const maxLoops = 4

// withDefaults fills in what is zero and refuses what is wrong.
func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name string
		v    *int
		def  int
		min  int
	}{
		{"MaxBulk", &c.MaxBulk, 32 << 20, 64},
		{"MaxArgs", &c.MaxArgs, 1 << 20, 8},
		{"MaxClients", &c.MaxClients, 10000, 1},
		{"MaxInlineLen", &c.MaxInlineLen, 64 << 10, 64},
		{"OutputLimit", &c.OutputLimit, 32 << 20, 64},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < f.min || *f.v > 1<<30 {
			return c, fmt.Errorf("option %s is %d, want %d to %d", f.name, *f.v, f.min, 1<<30)
		}
	}
	if c.ClientMemory == nil {
		c.ClientMemory = clientmem.New(int64(max(128<<20, 2*c.maxCommand())))
	}
	if most := c.ClientMemory.Max(); most < int64(2*c.MaxBulk) {
		return c, fmt.Errorf("option ClientMemory is %d, want at least %d, twice MaxBulk", most, 2*c.MaxBulk)
	}
	if c.OpTimeout == 0 {
		c.OpTimeout = 2 * time.Second
	}
	if c.OpTimeout < 0 {
		return c, fmt.Errorf("option OpTimeout is %v, want more than 0", c.OpTimeout)
	}
	if c.IdleTimeout < 0 {
		return c, fmt.Errorf("option IdleTimeout is %v, want 0 or more", c.IdleTimeout)
	}
	if c.Loops == 0 {
		c.Loops = min(maxLoops, max(1, runtime.GOMAXPROCS(0)/2))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = ratelog.Bound(c.Logger)
	return c, nil
}

// maxReply bounds the bytes of one reply.
func (c *Config) maxReply() int {
	return min(c.OutputLimit+c.MaxBulk, int(c.ClientMemory.Max()/4*3))
}

// maxCommand bounds the bytes of one command and of a transaction's queue.
func (c *Config) maxCommand() int { return 2*c.MaxBulk + 1<<20 }
