package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"polder/internal/config"
	"polder/resp/clientmem"
	"polder/resp/origin"
	"polder/soft"
)

// OriginConfig configures a cache before a Redis that runs elsewhere.
type OriginConfig struct {
	URL          string // as package origin takes it, perhaps with a password; "" for no origin
	PasswordFile string // file with the password, if that is not in URL
	CA           string // PEM file of the authorities of the origin's certificate; the system's if empty
	Cert, Key    string // PEM files of the certificate to show to the origin; none if empty
	Lag          time.Duration
}

// Check refuses values that are valid by themselves but not together.
func (c *OriginConfig) Check() error {
	for _, f := range []struct{ flag, value string }{
		{"origin-password-file", c.PasswordFile}, {"origin-ca", c.CA}, {"origin-cert", c.Cert}, {"origin-key", c.Key},
	} {
		if c.URL == "" && f.value != "" {
			return refuse(f.flag, f.value, "none without --origin")
		}
	}
	if c.URL == "" {
		return nil
	}
	u, err := origin.ParseURL(c.URL)
	switch {
	case err != nil:
		return &config.Error{Source: "--origin", Err: err} // the value may hold a password
	case u.Password != "" && c.PasswordFile != "":
		return refuse("origin-password-file", c.PasswordFile, "none beside the password in --origin")
	case !u.TLS && c.CA != "":
		return refuse("origin-ca", c.CA, "none without rediss:// in --origin")
	case !u.TLS && c.Cert != "":
		return refuse("origin-cert", c.Cert, "none without rediss:// in --origin")
	case c.Cert != "" && c.Key == "":
		return refuse("origin-cert", c.Cert, "--origin-key with it")
	case c.Key != "" && c.Cert == "":
		return refuse("origin-key", c.Key, "--origin-cert with it")
	}
	return nil
}

// url is the origin's URL with the password, which it reads from PasswordFile if that is set.
func (c *OriginConfig) url() (origin.URL, error) {
	u, err := origin.ParseURL(c.URL)
	if err != nil {
		return u, err
	}
	if c.PasswordFile != "" {
		u.Password, err = config.ReadSecret("origin-password-file", c.PasswordFile)
	}
	return u, err
}

// tls makes the TLS configuration from the files. It is called for each connection, so that replaced files are used.
func (c *OriginConfig) tls() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, &config.Error{Source: "--origin-ca", Value: c.CA, Err: err}
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &config.Error{Source: "--origin-ca", Value: c.CA, Err: errors.New("expected certificates in PEM")}
		}
	}
	if c.Cert != "" {
		cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, &config.Error{Source: "--origin-cert", Value: c.Cert, Err: err}
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// openOrigin starts the front end that is a cache before the origin.
func (p *process) openOrigin(cfg CacheConfig, heap *soft.Heap, clients *clientmem.Budget) error {
	u, err := cfg.Origin.url()
	if err != nil {
		return err
	}
	if _, err := cfg.Origin.tls(); err != nil {
		return err // once the server runs, the error would only be logged
	}
	server, err := origin.New(origin.Config{
		Heap: heap, URL: u, TLS: cfg.Origin.tls,
		Lag:          cfg.Origin.Lag,
		Timeout:      max(cfg.OpTimeout, cfg.Origin.Lag),
		MaxValue:     int(cfg.largest(cfg.Budget)),
		MaxClients:   cfg.MaxClients,
		OutputLimit:  int(cfg.OutputLimit),
		IdleTimeout:  cfg.IdleTimeout,
		ClientMemory: clients,
		Logger:       p.Logger,
	})
	if err != nil {
		return err
	}
	p.OnReload("the origin's password", func() (string, error) {
		now, err := cfg.Origin.url()
		if err != nil || now.Password == u.Password {
			return "", err
		}
		u = now
		server.SetPassword(now.Password)
		return "the origin's password", nil
	})
	p.onClose(func() error {
		if err := server.Close(); err != nil {
			return fmt.Errorf("cannot end the Redis front end: %w", err)
		}
		return nil
	})
	p.spawn("the Redis front end stopped serving", func() error { return server.Serve(p.redis) })
	p.health = server.Health
	p.collectors = append(p.collectors, server.Collector())
	return nil
}
