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
	// OutputLimit bounds the replies in bytes that a client has yet to
	// read. The commands of one who has more wait until it has read them,
	// and it is disconnected if it reads less than 64 KiB in five seconds.
	// As ClientMemory fills, the limit falls. Default 32 MiB. A single
	// reply may exceed it by MaxBulk; a command with a longer one fails.
	OutputLimit int
	// ClientMemory bounds what all clients together make the server hold:
	// input, replies, queued transactions, watched keys. The client that
	// holds most is disconnected when it is exceeded. It should have room
	// for a few of the largest commands. Servers may share one. Default:
	// 128 MiB, and more if MaxBulk is large, for this server alone.
	ClientMemory *clientmem.Budget
	// OpTimeout bounds how long a command waits for far memory. Default 2s.
	OpTimeout time.Duration
	// IdleTimeout disconnects clients that have sent nothing for that long.
	// Zero: never.
	IdleTimeout time.Duration
	// Loops is the number of event loops. Default: half the CPUs, from 1
	// to 4. Negative: none, two goroutines a connection instead.
	Loops int
	// Journal is that of a heap that is kept (far.Open). Without, the heap comes back as its last checkpoint has it.
	Journal keyspace.Journal
	// Heap is the name of a heap that one of several servers has at a time, "" if there is no other one. They all answer
	// SENTINEL, by which clients find the one that has it: see SetMaster.
	Heap string
	// Evidence, if set, is that nobody else can have changed what the heap has.
	Evidence keyspace.Evidence
	// Cluster, if set, has the server serve partitions of a heap that it shares with others: see AddPartition.
	Cluster *Cluster
	// Ready, if set, is called by Open when all that the heap has is there, and returns when clients may be answered out of it.
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
