package coordinator

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"polder/internal/hostmem"
	"polder/internal/ratelog"
	"polder/soft/policy"
	"polder/soft/wire"
)

// Config says what a coordinator shares and with whom.
type Config struct {
	// Socket is the path at which clients connect. Required.
	Socket string

	// Open lets every user of the host connect; otherwise only the
	// coordinator's own.
	Open bool

	// Reserve is how many bytes are to stay free on the host. Default: a
	// sixteenth of its memory, at least 64 MiB.
	Reserve int64

	// Max bounds all soft memory together. 0: only the host does.
	Max int64

	// MaxPerUser bounds the soft memory of each user. 0: only Max does.
	MaxPerUser int64

	// MaxClients and MaxClientsPerUser bound connections. Defaults 1024 and
	// 64.
	MaxClients, MaxClientsPerUser int

	// MaxMessages is how many messages a client may send in a second. Default
	// 10000: many times what giving all its memory back at once takes.
	MaxMessages int

	// MinShare is the fraction of an even share that each client keeps, as far as it uses it, whatever the others
	// claim to gain. Default 0.25.
	MinShare float64

	// Weights are the operator's. They override what a client says of itself.
	Weights []Weight

	// MaxWeight bounds the weight that a client can give itself. Default 1:
	// nobody can raise himself above the others.
	MaxWeight float64

	// Deadline is how long a client may take to give memory back by itself.
	// Default 250 ms.
	Deadline time.Duration

	// Interval is the time between divisions. Default 1 s.
	Interval time.Duration

	// Grace is how long after its start a coordinator neither grants memory nor takes it from one client for another.
	// Clients of an earlier coordinator come back meanwhile, within 2 s each, with what they have. Memory that the
	// host needs is taken all the same. Default 5 s.
	Grace time.Duration

	// Policy divides the memory. Default: policy "curves".
	Policy policy.Policy

	// Host measures the host's memory. The zero value is right for a daemon.
	Host Sensor

	Logger *slog.Logger // default: slog.Default
}

// Sensor measures a host's memory; hostmem.Host is the real one.
type Sensor interface {
	Read() (hostmem.Memory, error)
	Limit(pid string) (limit, free int64, ok bool)
}

// Check says what New would refuse on this host.
func (c Config) Check() error { return startError(c.complete()) }

// startError wraps err as the reason why there is no coordinator. It returns nil if err is nil.
func startError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot start a coordinator: %w", err)
}

func (c *Config) complete() error {
	if c.Socket == "" {
		return errors.New("no socket is given")
	}
	if c.Host == nil {
		c.Host = hostmem.Host{}
	}
	m, err := c.Host.Read()
	if err != nil {
		return err
	}
	if c.Reserve == 0 {
		c.Reserve = DefaultReserve(m.Total)
	}
	if c.Reserve < 0 || c.Reserve >= m.Total {
		return fmt.Errorf("the reserve is %s: want less than the host's memory, %s", size(c.Reserve), size(m.Total))
	}
	for _, b := range []struct {
		name string
		max  int64
	}{{"soft memory in all", c.Max}, {"soft memory of one user", c.MaxPerUser}} {
		if b.max > 0 && b.max < workable*segmentSize {
			return fmt.Errorf("the most %s is %s: want at least %s, without which no heap works, or 0 for no bound", b.name, size(b.max), size(workable*segmentSize))
		}
	}
	if c.Max < 0 || c.MaxPerUser < 0 || c.MaxClients < 0 || c.MaxClientsPerUser < 0 || c.MaxMessages < 0 {
		return errors.New("a limit is negative")
	}
	setDefault(&c.Max, m.Total)
	setDefault(&c.MaxPerUser, c.Max)
	setDefault(&c.MaxClients, 1024)
	setDefault(&c.MaxClientsPerUser, 64)
	setDefault(&c.MaxMessages, 10000)
	setDefault(&c.MinShare, 0.25)
	setDefault(&c.MaxWeight, 1)
	setDefault(&c.Deadline, 250*time.Millisecond)
	setDefault(&c.Interval, time.Second)
	setDefault(&c.Grace, 5*time.Second)
	if c.Deadline < 0 || c.Interval < 0 || c.Grace < 0 {
		return errors.New("a duration is negative")
	}
	if !(c.MinShare > 0 && c.MinShare <= 1) {
		return fmt.Errorf("the least share is %v: want more than 0 and at most 1", c.MinShare)
	}
	if !(c.MaxWeight > 0 && c.MaxWeight <= maxWeight) {
		return fmt.Errorf("the highest weight is %v: want more than 0 and at most a million", c.MaxWeight)
	}
	if c.Policy == nil {
		c.Policy = &policy.Curves{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = ratelog.Bound(c.Logger)
	return nil
}

// size writes a number of bytes for people.
func size(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// DefaultReserve is how much of a host with so much memory stays free, unless the operator
// says otherwise.
func DefaultReserve(total int64) int64 { return max(total/16, 64<<20) }

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

const segmentSize = wire.SegmentSize
