package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"polder/internal/admin"
	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/output"
	"polder/internal/progress"
	"polder/internal/ratelog"
	"polder/internal/readyfile"
	"polder/internal/systemd"
)

// Control is what a running daemon has of its operator. One that Start has not
// made, but with fields set, serves a daemon that is never reloaded.
type Control struct {
	Out       io.Writer // for the greeting; never blocks or fails
	Logger    *slog.Logger
	ReadyFile string // "" for none
	Admin     string // the administrative address; "" for none
	Security  listen.Security
	Token     *admin.Token // nil: none is asked for

	flags    *Flags
	set      *pflag.FlagSet
	out, log *output.Writer
	level    slog.LevelVar
	password atomic.Pointer[string]
	hangups  chan os.Signal
	end      chan struct{}
	ended    chan struct{}
	once     sync.Once // ends
	ready    atomic.Bool
	terminal io.Writer // log, if it is written to a terminal; otherwise nil

	mu    sync.Mutex // held while a reload is going on
	parts []part     // guarded by mu
}

// A part of a daemon can be reloaded.
type part struct {
	what   string
	reload func() (news string, err error)
}

// Run runs a daemon's command: from Start to the daemon's end. The service manager
// is told when that begins, and the terminal, if it takes longer than a second.
func (f *Flags) Run(cmd *cobra.Command, daemon func(*Control) error) error {
	c, err := f.Start(cmd.Flags(), cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer c.Close()
	told, ended := make(chan struct{}), func() {}
	stop := context.AfterFunc(cmd.Context(), func() {
		defer close(told)
		ended = c.Waiting("what is under way comes to its end")
		c.notify("STOPPING=1")
	})
	defer func() {
		if !stop() {
			<-told
			ended()
		}
	}()
	return daemon(c)
}

// Ready says that the daemon serves, and where: in the file that --ready-file names,
// and to the service manager.
func (c *Control) Ready(addrs map[string]string) error {
	if err := readyfile.Write(c.ReadyFile, addrs); err != nil {
		return err
	}
	for _, addr := range systemd.Unused() {
		c.Logger.Warn("the service manager listens at an address that no flag names, and nobody answers there", "address", addr)
	}
	c.ready.Store(true)
	c.notify("READY=1")
	return nil
}

// Waiting says on the terminal, if there is one, what the daemon waits for, until
// end is called.
func (c *Control) Waiting(what string) (end func()) { return progress.Waiting(c.terminal, what) }

// notify tells the service manager, if there is one.
func (c *Control) notify(state string) {
	if err := systemd.Notify(state); err != nil {
		c.Logger.Warn("the service manager does not hear of this", "state", state, "err", err)
	}
}

// StartLog begins to log, and to survive SIGHUP and SIGPIPE. Of the flags, only
// those of the log count.
//
// Preconditions: the flags have been loaded (config.Load).
func (f *Flags) StartLog(set *pflag.FlagSet, out, log io.Writer) (*Control, error) {
	c, err := f.startLog(set, out, log)
	if err != nil {
		return nil, err
	}
	go c.run()
	return c, nil
}

func (f *Flags) startLog(set *pflag.FlagSet, out, log io.Writer) (*Control, error) {
	c := &Control{flags: f, set: set, ReadyFile: f.readyFile, hangups: make(chan os.Signal, 1), end: make(chan struct{}), ended: make(chan struct{})}
	if err := c.setLevel(); err != nil {
		return nil, err
	}
	c.out, c.log = output.New(out), output.New(log)
	c.Out = c.out
	if progress.Terminal(log) != nil {
		c.terminal = c.log
	}
	opts := &slog.HandlerOptions{Level: &c.level}
	var h slog.Handler = slog.NewTextHandler(c.log, opts)
	if f.logFormat == "json" {
		h = slog.NewJSONHandler(c.log, opts)
	}
	c.Logger = ratelog.Bound(slog.New(h))
	survivePipes()
	signal.Notify(c.hangups, syscall.SIGHUP)
	c.OnReload("log level", func() (string, error) {
		was := c.level.Level()
		if err := c.setLevel(); err != nil || c.level.Level() == was {
			return "", err
		}
		return strings.ToLower(c.level.Level().String()), nil
	})
	return c, nil
}

// survivePipes makes a write to standard output or error fail if it is a pipe that nobody reads, like any other
// write: in a program that has not asked for SIGPIPE, Go ends the process. Nobody needs to read the channel.
var survivePipes = sync.OnceFunc(func() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) })

// Start is StartLog, and reads certificates and secrets.
func (f *Flags) Start(set *pflag.FlagSet, out, log io.Writer) (*Control, error) {
	if err := f.agree(set); err != nil {
		return nil, err
	}
	password, token, err := f.secrets()
	if err != nil {
		return nil, err
	}
	certs, err := listen.Load(f.files)
	if err != nil {
		return nil, err
	}
	c, err := f.startLog(set, out, log)
	if err != nil {
		return nil, err
	}
	c.password.Store(&password)
	if token != "" {
		c.Token = admin.NewToken(token)
	}
	c.Admin = f.admin
	c.Security = listen.Security{Certificates: certs, Token: token != "", Insecure: f.insecure}
	c.OnReload("certificates", func() (string, error) {
		news, err := certs.Reload(f.files)
		return strings.Join(news, " and "), err
	})
	c.OnReload("secrets", func() (string, error) { return c.reloadSecrets(token) })
	go c.run()
	return c, nil
}

// secrets reads the password and the token.
func (f *Flags) secrets() (password, token string, err error) {
	password, err = config.ReadSecret("password-file", f.passwordFile)
	if err != nil {
		return "", "", err
	}
	if password == "" {
		password = f.password
	}
	token, err = config.ReadSecret("admin-token-file", f.tokenFile)
	if err == nil && token != "" && len(token) < admin.MinToken {
		err = &config.Error{Source: "--admin-token-file", Value: f.tokenFile,
			Err: fmt.Errorf("expected a token of at least %d characters, such as openssl rand -hex %d prints", admin.MinToken, admin.MinToken)}
	}
	return password, token, err
}

// reloadSecrets replaces the password and the token, which was first at the start.
func (c *Control) reloadSecrets(first string) (string, error) {
	if err := c.flags.agree(c.set); err != nil {
		return "", err
	}
	password, token, err := c.flags.secrets()
	if err != nil {
		return "", err
	}
	if (token == "") != (first == "") {
		return "", errors.New("cannot begin or cease to use --admin-token-file without a restart")
	}
	if password == "" && c.Password() != "" { // half a configuration file opens no door
		return "", errors.New("cannot cease to ask for a password without a restart")
	}
	var news []string
	if password != *c.password.Swap(&password) {
		news = append(news, "the password")
	}
	if c.Token != nil && c.Token.Replace(token) {
		news = append(news, "the administrative token")
	}
	return strings.Join(news, " and "), nil
}

// Password is what clients must present at the moment; "" for nothing.
func (c *Control) Password() string {
	if p := c.password.Load(); p != nil {
		return *p
	}
	return ""
}

// OnReload registers reload to be called at each SIGHUP, after those that were registered earlier. reload returns
// what is new, "" if nothing is, or an error if it has changed nothing.
func (c *Control) OnReload(what string, reload func() (news string, err error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts = append(c.parts, part{what, reload})
}

func (c *Control) setLevel() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(strings.ToUpper(c.flags.logLevel))); err != nil {
		return fmt.Errorf("cannot use the log level: %w", err)
	}
	c.level.Set(level)
	return nil
}

func (c *Control) run() {
	defer close(c.ended)
	var alive <-chan time.Time // nil: the manager does not want to know
	if every := systemd.Watchdog(); every > 0 {
		tick := time.NewTicker(max(every/3, time.Millisecond))
		defer tick.Stop()
		alive = tick.C
	}
	for {
		select {
		case <-c.end:
			return
		case <-c.hangups:
			if c.ready.Load() { // otherwise it has yet to send READY=1
				c.notify(systemd.Reloading())
			}
			c.reload()
			if c.ready.Load() {
				c.notify("READY=1")
			}
		case <-alive:
			c.notify("WATCHDOG=1")
		}
	}
}

// reload reads everything anew that can change.
func (c *Control) reload() {
	c.mu.Lock()
	defer c.mu.Unlock()
	later, err := config.Reload(c.set, reloadable...)
	if err != nil {
		c.Logger.Error("the configuration file stays as it was read before", "err", err)
	} else if len(later) > 0 {
		c.Logger.Warn("some of what is new in the configuration file needs a restart", "keys", later)
	}
	var changed, failed []string
	for _, p := range c.parts {
		news, err := p.reload()
		switch {
		case err != nil:
			failed = append(failed, p.what)
			c.Logger.Error("what is new cannot be used; it stays as it was", "what", p.what, "err", err)
		case news != "":
			changed = append(changed, p.what+": "+news)
		}
	}
	c.Logger.Info("reloaded after SIGHUP", "new", changed, "as before, because of errors", failed)
}

// StartAdmin serves the administrative address at lis to those who may see it.
func (c *Control) StartAdmin(lis net.Listener, cfg admin.Config) (*admin.Server, error) {
	cfg.Token, cfg.Logger = c.Token, c.Logger
	cfg.Certificates = c.Security.Certificates != nil && c.Security.Has(listen.Admin)
	if _, ok := c.expires(); ok {
		cfg.Collectors = append(cfg.Collectors, c.expiry())
	}
	return admin.Start(lis, cfg)
}

// expires is when the certificate expires, if there is one.
func (c *Control) expires() (at time.Time, ok bool) {
	if c.Security.Certificates == nil {
		return time.Time{}, false
	}
	return c.Security.Expires()
}

// expiry is a metric of when the certificate expires, and the operator will be needed.
//
// Preconditions: there is a certificate, for which a reload can only put another.
func (c *Control) expiry() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "polder_tls_certificate_expires_timestamp_seconds", Help: "When the certificate of --tls-cert expires.",
	}, func() float64 {
		at, _ := c.expires()
		return float64(at.Unix())
	})
}

// Close ends the goroutines and writes what has been logged. SIGHUP does nothing
// from then on: the daemon is about to end. Closing twice is a no-op.
//
// Preconditions: Start or StartLog has made c.
func (c *Control) Close() {
	c.once.Do(func() {
		close(c.end)
		<-c.ended
		c.out.Close()
		c.log.Close()
	})
}
