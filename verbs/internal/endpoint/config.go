package endpoint

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"polder/internal/ratelog"
	"polder/verbs"
)

// Config says how to listen and dial. The zero value is right for loopback.
type Config struct {
	// TLS, if set, makes connections use TLS, 1.3 unless it says otherwise.
	// Away from loopback it is required: a listener must demand and verify
	// client certificates (ClientAuth tls.RequireAndVerifyClientCert), and
	// a dialler must have one.
	TLS *tls.Config
	// Insecure waives what TLS is required for.
	Insecure bool

	// KeepAlive is how often a silent peer is pinged. A peer that has answered none of three pings by the time of the
	// fourth is given up. 10 s if 0.
	KeepAlive time.Duration
	// StallTimeout is how long a peer may take to read 64 KiB of what waits for it before it is cut off. 10 s if 0.
	StallTimeout time.Duration
	// HandshakeTimeout bounds connecting, TLS and the hello. 5 s if 0.
	HandshakeTimeout time.Duration
	// MaxConns is the most connections that a listener has at a time; it
	// refuses more. Peers in their handshake, of whom there may be
	// accept.Places, do not count. 1024 if 0.
	MaxConns int
	// Backlog is the most connection requests that wait for
	// Listener.Accept; more are rejected. 128 if 0.
	Backlog int
	// Guest, if set, makes a listener accept peers that want something other than to connect queue pairs
	// (tcp.DialGuest), and takes them over once they are admitted. It must not wait. It owns nc, and calls leave when
	// nc is closed; if it fails, it owns neither nc nor leave.
	Guest func(nc net.Conn, leave func()) error
	// Log, if set, is told by a listener of peers that it turned away, at a
	// bounded rate.
	Log *slog.Logger
}

// What an address that other hosts can reach lacks.
var (
	ErrNeedTLS        = errors.New("it is not a loopback address: TLS with client certificates is required there, unless Insecure is set")
	ErrNeedClientAuth = errors.New("it is not a loopback address: TLS must demand client certificates there (tls.RequireAndVerifyClientCert), unless Insecure is set")
	ErrNeedClientCert = errors.New("it is not a loopback address: TLS needs a client certificate there, unless Insecure is set")
)

// Normalized returns c with its defaults filled in, or says what is wrong.
func (c Config) Normalized() (Config, error) {
	for _, d := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{
		{"KeepAlive", &c.KeepAlive, 10 * time.Second},
		{"StallTimeout", &c.StallTimeout, 10 * time.Second},
		{"HandshakeTimeout", &c.HandshakeTimeout, 5 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < 0 {
			return c, fmt.Errorf("%s is %v, not positive: %w", d.name, *d.v, verbs.ErrInvalid)
		}
	}
	for _, n := range []struct {
		name string
		v    *int
		def  int
	}{
		{"MaxConns", &c.MaxConns, 1024},
		{"Backlog", &c.Backlog, 128},
	} {
		if *n.v == 0 {
			*n.v = n.def
		}
		if *n.v < 0 {
			return c, fmt.Errorf("%s is %d, not positive: %w", n.name, *n.v, verbs.ErrInvalid)
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = ratelog.Bound(c.Log)
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
		if c.TLS.MinVersion == 0 {
			c.TLS.MinVersion = tls.VersionTLS13
		}
	}
	return c, nil
}

// checkListen refuses to serve an address without the security it needs. It
// is given to net.ListenConfig as Control, so that it sees the address that
// will be bound, after names have been resolved.
func (c *Config) checkListen(_, address string, _ syscall.RawConn) error {
	switch {
	case c.Insecure || isLoopback(address):
		return nil
	case c.TLS == nil:
		return ErrNeedTLS
	case c.TLS.ClientAuth != tls.RequireAndVerifyClientCert:
		return ErrNeedClientAuth
	}
	return nil
}

// checkDial is checkListen for net.Dialer.
func (c *Config) checkDial(_, address string, _ syscall.RawConn) error {
	switch {
	case c.Insecure || isLoopback(address):
		return nil
	case c.TLS == nil:
		return ErrNeedTLS
	case len(c.TLS.Certificates) == 0 && c.TLS.GetClientCertificate == nil:
		return ErrNeedClientCert
	}
	return nil
}

// isLoopback reports whether address, an IP address and a port, is reachable
// from this host only.
func isLoopback(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// tlsClient returns the configuration to dial address with.
func (c *Config) tlsClient(address string) *tls.Config {
	if c.TLS.ServerName != "" || c.TLS.InsecureSkipVerify {
		return c.TLS
	}
	t := c.TLS.Clone()
	t.ServerName = address
	if host, _, err := net.SplitHostPort(address); err == nil {
		t.ServerName = host
	}
	return t
}
