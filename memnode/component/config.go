package component

import (
	"fmt"
	"log/slog"
	"time"
)

// Defaults of a Config.
const (
	DefaultClientMemory = 256 << 20
	DefaultObjects      = 1024
	DefaultTime         = time.Second
)

// MinTime and MaxTime bound Config.Time.
const (
	MinTime = time.Millisecond
	MaxTime = time.Hour
)

// MinClientMemory is the least ClientMemory: messages take a part of it.
const MinClientMemory = 8 << 20

// Config says what the components of a node may use.
type Config struct {
	// Memory is what all clients' objects together may have, in bytes; 0
	// means that the node runs no components.
	Memory int64
	// ClientMemory is how many bytes one client's objects may have, at least 8 MiB; by default 256 MiB, or Memory if
	// that is less. As many clients can have objects as ClientMemory fits into Memory.
	ClientMemory int64
	// Objects is the most objects that one client may have, counted separately for Bounded components and for the
	// others; by default 1024.
	Objects int
	// Time is how long a request may run before its process is ended, from MinTime to MaxTime, by default 1 s. The
	// node notices an overrun up to a quarter of Time later.
	Time time.Duration
}

// WithDefaults returns c with its zero fields set, or what is wrong with it.
func (c Config) WithDefaults() (Config, error) {
	if c.Memory == 0 {
		return c, nil
	}
	if c.ClientMemory == 0 {
		c.ClientMemory = min(DefaultClientMemory, c.Memory)
	}
	if c.Objects == 0 {
		c.Objects = DefaultObjects
	}
	if c.Time == 0 {
		c.Time = DefaultTime
	}
	switch {
	case c.ClientMemory < MinClientMemory:
		return c, fmt.Errorf("%d bytes of component memory for a client, want at least %d", c.ClientMemory, MinClientMemory)
	case c.Memory < c.ClientMemory:
		return c, fmt.Errorf("%d bytes of component memory, want at least one client's %d", c.Memory, c.ClientMemory)
	case c.Objects < 0 || c.Objects > 1<<20:
		return c, fmt.Errorf("at most %d objects of a client, want 1 to %d", c.Objects, 1<<20)
	case c.Time < MinTime || c.Time > MaxTime:
		return c, fmt.Errorf("requests may run for %v, want %v to %v", c.Time, MinTime, MaxTime)
	case installed.Load() == nil:
		return c, fmt.Errorf("this program has no components: its main must call component.Main first")
	}
	return c, nil
}

// Stats is what a node's components do, and have done since it started.
type Stats struct {
	Workers  int64 // processes
	Objects  int64 // at the node; it does not know of objects in clients' processes
	Reserved int64 // bytes that clients' objects may use
	Requests int64 // answered
	Refused  int64 // answered with anything but success
	Panics   int64 // of components
	Deaths   int64 // of workers whose clients were still there
	Killed   int64 // workers ended because a request ran for too long
}

// warning is how the server logs.
type warning func(msg string, args ...any)

func warnings(l *slog.Logger) warning {
	if l == nil {
		return func(string, ...any) {}
	}
	return l.Warn
}
