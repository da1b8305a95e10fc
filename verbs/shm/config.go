package shm

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"polder/internal/ratelog"
	"polder/verbs"
	"polder/verbs/internal/endpoint"
)

// Config says how to listen and dial. The zero value lets in processes of the
// same user only.
type Config struct {
	// Mode is the socket's permissions. 0600 if 0.
	Mode os.FileMode
	// AnyUser accepts peers that run as any user; the socket's permissions then have to keep others out. Root is
	// always accepted.
	AnyUser bool
	// HandshakeTimeout bounds connecting and the hello. 5 s if 0.
	HandshakeTimeout time.Duration
	// StallTimeout is how long a peer may take to read 64 KiB of what waits for it before it is cut off. 10 s if 0.
	StallTimeout time.Duration
	// MaxConns is the most connections that a listener has at a time; it
	// refuses more. 256 if 0.
	MaxConns int
	// Backlog is the most connection requests that wait for
	// Listener.Accept; more are rejected. 128 if 0.
	Backlog int
	// Log, if set, is told by a listener of peers that it turned away, at a
	// bounded rate.
	Log *slog.Logger
}

// normalized returns c with its defaults filled in, or says what is wrong.
func (c Config) normalized() (Config, error) {
	if c.Mode == 0 {
		c.Mode = 0o600
	}
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = 5 * time.Second
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 10 * time.Second
	}
	if c.MaxConns == 0 {
		c.MaxConns = 256
	}
	if c.Backlog == 0 {
		c.Backlog = 128
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = ratelog.Bound(c.Log)
	switch {
	case c.Mode&^os.ModePerm != 0:
		return c, fmt.Errorf("the socket's mode is %v, want permissions only: %w", c.Mode, verbs.ErrInvalid)
	case c.HandshakeTimeout < 0:
		return c, fmt.Errorf("the handshake timeout is %v, not positive: %w", c.HandshakeTimeout, verbs.ErrInvalid)
	case c.StallTimeout < 0:
		return c, fmt.Errorf("the stall timeout is %v, not positive: %w", c.StallTimeout, verbs.ErrInvalid)
	case c.MaxConns < 0:
		return c, fmt.Errorf("the limit of connections is %d, not positive: %w", c.MaxConns, verbs.ErrInvalid)
	case c.Backlog < 0:
		return c, fmt.Errorf("the backlog is %d, not positive: %w", c.Backlog, verbs.ErrInvalid)
	}
	return c, nil
}

// stream is the part of c that a connection needs. Peers are not pinged: the kernel tells of a peer that dies, and a
// peer that is stopped, as by a debugger, must not be cut off.
func (c *Config) stream() endpoint.Config { return endpoint.Config{StallTimeout: c.StallTimeout} }
