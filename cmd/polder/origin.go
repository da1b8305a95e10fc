package main

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"polder/cmd/polder/internal/daemon"
	"polder/cmd/polder/internal/usage"
	"polder/internal/config"
	"polder/resp/origin"
)

// originFlags are the flags of a cache before a Redis that runs elsewhere.
func originFlags(fs *pflag.FlagSet, cfg *daemon.OriginConfig) {
	fs.Var((*originURL)(&cfg.URL), "origin", "with --tier soft, the `URL` of the Redis to be a cache of: redis://HOST:PORT, rediss:// for TLS, or unix:///PATH, with USER@ and /DATABASE if need be; a password belongs in --origin-password-file, POLDER_ORIGIN or the configuration file")
	fs.StringVar(&cfg.PasswordFile, "origin-password-file", "", "the cache itself presents to the origin the password in this `file` of mode 0600")
	fs.StringVar(&cfg.CA, "origin-ca", "", "authority that must have signed the origin's certificate, a PEM `file`; the system's if not given")
	fs.StringVar(&cfg.Cert, "origin-cert", "", "certificate to show to the origin, a PEM `file`")
	fs.StringVar(&cfg.Key, "origin-key", "", "private key of --origin-cert, a PEM `file`")
	fs.Var(config.NewDurationWithin(&cfg.Lag, 10*time.Millisecond, time.Minute), "origin-lag", "oldest answer from the cache if the origin has not been heard of since")
}

// checkOrigin refuses an origin's password where every user can read it, on the command line, and a
// password of our own together with an origin, since clients give theirs to the origin.
func checkOrigin(fs *pflag.FlagSet, cfg daemon.OriginConfig) error {
	if err := cfg.Check(); err != nil || cfg.URL == "" {
		return err
	}
	if (*originURL)(&cfg.URL).Secret() && config.OnCommandLine(fs.Lookup("origin")) {
		return &usage.Error{Err: &config.Error{Source: "--origin", Err: errors.New(
			"every user of this machine can read a command line; expected the password in a file that --origin-password-file names, in POLDER_ORIGIN or in the configuration file")}}
	}
	for _, name := range []string{"password", "password-file"} {
		if p := fs.Lookup(name); p.Value.String() != "" {
			return &usage.Error{Err: &config.Error{Source: "--" + name, Err: errors.New("expected none with --origin: clients show its passwords to the origin itself")}}
		}
	}
	return nil
}

// originURL is a flag value that may hold a password. Its String leaves the password out.
type originURL string

func (v *originURL) Set(s string) error { *v = originURL(s); return nil }

func (v *originURL) String() string {
	if *v == "" {
		return ""
	}
	u, err := origin.ParseURL(string(*v))
	if err != nil {
		return "(not a URL)"
	}
	return u.String()
}

// Type names the value in usage texts.
func (v *originURL) Type() string { return "url" }

// Secret reports whether the value must not be shown.
func (v *originURL) Secret() bool {
	u, err := origin.ParseURL(string(*v))
	return *v != "" && (err != nil || u.Password != "")
}
