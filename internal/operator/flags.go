// Package operator is what every daemon of the binary takes from those who run it:
// the flags of its log, of certificates, secrets and the administrative address,
// and the signals that concern them.
//
// SIGHUP ends no daemon: what the daemon holds would be lost. It makes the daemon read anew what can change while it
// runs: the log level, the password, the administrative token, and the certificates. Each of them is replaced, or
// stays as it was if something is wrong with the new one; the log says which. SIGPIPE ends no daemon either, and a
// log that nobody reads blocks none (package output).
//
// Concurrency: a Control has one goroutine, which waits for SIGHUP and reloads; its
// fields do not change, and its methods may be called by any number of goroutines.
package operator

import (
	"errors"

	"github.com/spf13/pflag"

	"polder/internal/config"
	"polder/internal/listen"
)

// Flags are the values of the flags. The zero value is ready for Add.
type Flags struct {
	config    string
	logLevel  string
	logFormat string
	readyFile string
	admin     string
	files     listen.Files
	insecure  bool
	tokenFile string

	password     string
	passwordFile string
}

// The flags that SIGHUP reads anew from the configuration file.
var reloadable = []string{
	"log-level", "tls-cert", "tls-key", "tls-ca", "tls-client-ca", "tls-admin-ca", "admin-token-file", "password", "password-file",
}

// authorities are the flags of the roles' authorities.
var authorities = map[listen.Role]struct{ flag, usage string }{
	listen.Node:   {"tls-ca", "authority that must have signed the certificates of nodes and of those who borrow from them, a PEM `file`"},
	listen.Client: {"tls-client-ca", "authority that must have signed clients' certificates, another one than the others, a PEM `file`; with it, clients need TLS"},
	listen.Admin:  {"tls-admin-ca", "authority that must have signed the certificates of those who look at the administrative address, another one than the others, a PEM `file`"},
}

// Add adds the flags of a daemon whose administrative address is admin by default,
// and whose connections have the roles, beside listen.Admin, which all have.
func (f *Flags) Add(fs *pflag.FlagSet, admin string, roles ...listen.Role) {
	f.logLevel, f.logFormat, f.admin = "info", "text", admin
	fs.StringVar(&f.config, config.FileFlag, "", "read configuration from this YAML `file`; its keys are the names of the flags")
	fs.StringVar(&f.readyFile, "ready-file", "", "write the addresses listened on to this `file`, as JSON, when ready")
	fs.Var(config.NewChoice(&f.logLevel, "debug", "info", "warn", "error"), "log-level", "least level to log: debug, info, warn or error")
	fs.Var(config.NewChoice(&f.logFormat, "text", "json"), "log-format", "how to log to standard error: text or json")
	fs.Var(config.NewDoor(&f.admin, true), "admin", `where the console, metrics, status, health and profiles are served over HTTP, HOST:PORT, unix:PATH or "off"`)
	fs.StringVar(&f.tokenFile, "admin-token-file", "", "the administrative address asks for the token in this `file` of mode 0600, or for a certificate")
	fs.StringVar(&f.files.Cert, "tls-cert", "", "certificate to show, a PEM `file`")
	fs.StringVar(&f.files.Key, "tls-key", "", "its private key, a PEM `file`")
	for _, r := range append(roles, listen.Admin) {
		fs.StringVar(&f.files.CA[r], authorities[r].flag, "", authorities[r].usage)
	}
	fs.BoolVar(&f.insecure, "insecure", false, "allow connections with other machines without TLS, and without proof of who they are")
}

// Address is one at which a daemon would listen, which a flag names.
type Address struct {
	Role       listen.Role
	Flag, Addr string // Addr is HOST:PORT or unix:PATH, or "" for none
}

// Check refuses flags that contradict one another, and addresses that other machines
// could reach without proof of who they are; the administrative one is among them. It
// opens no file.
func (f *Flags) Check(set *pflag.FlagSet, addrs ...Address) error {
	if err := f.agree(set); err != nil {
		return err
	}
	s := listen.Security{Certificates: listen.Unread(f.files), Token: f.tokenFile != "", Insecure: f.insecure}
	for _, a := range append(addrs, Address{listen.Admin, "admin", f.admin}) {
		if a.Addr == "" {
			continue
		}
		if err := s.Check(a.Role, a.Flag, a.Addr); err != nil {
			return err
		}
	}
	return nil
}

// Insecure reports whether the operator says --insecure.
func (f *Flags) Insecure() bool { return f.insecure }

// agree refuses flags that contradict one another.
func (f *Flags) agree(set *pflag.FlagSet) error {
	if p := set.Lookup("password"); p != nil && config.OnCommandLine(p) {
		return &config.Error{Source: "--password", Err: errors.New(
			"every user of this machine can read a command line; expected the password in a file that --password-file names, in POLDER_PASSWORD or in the configuration file")}
	}
	if f.password != "" && f.passwordFile != "" {
		return &config.Error{Source: "--password-file", Value: f.passwordFile, Err: errors.New("expected none beside a password in POLDER_PASSWORD or the configuration file")}
	}
	if f.files.Cert != "" && f.files.CA == (listen.Files{}.CA) && f.tokenFile == "" {
		return &config.Error{Source: "--tls-cert", Value: f.files.Cert, Err: errors.New(
			"expected an authority or --admin-token-file with it: nobody would be shown it")}
	}
	return f.files.Check()
}

// AddPassword adds the flags of a password that clients must present.
func (f *Flags) AddPassword(fs *pflag.FlagSet) {
	fs.StringVar(&f.passwordFile, "password-file", "", "clients must present with AUTH the password in this `file` of mode 0600")
	fs.StringVar(&f.password, "password", "", "the password itself, in POLDER_PASSWORD or the configuration file; not on the command line, which every user of the machine can read")
}
