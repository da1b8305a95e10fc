// Package listen opens the daemons' listeners under one rule: whoever is not
// on this machine proves who it is.
//
// A listener at a loopback address may be plain. Any other needs TLS 1.3 with
// a certificate of the client's that the given authority has signed, unless
// the operator says --insecure. Where certificates are given they are used on
// every listener, loopback or not, and towards every far node.
//
// A Security may be used by any number of goroutines.
package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// Security is what an operator says about protection on the network.
type Security struct {
	CertFile, KeyFile string // this daemon's certificate, in PEM
	CAFile            string // the authority that signs the peers', in PEM
	Insecure          bool   // allow plain listeners other than loopback
}

// Enabled reports whether certificates are given.
func (s Security) Enabled() bool { return s.CertFile != "" || s.KeyFile != "" || s.CAFile != "" }

// URL is where HTTP is served at an address that Listen gave.
func (s Security) URL(addr string) string {
	if s.Enabled() {
		return "https://" + addr
	}
	return "http://" + addr
}

// TLS returns configurations for listening and for dialing, or nil, nil
// without certificates. Each side shows its certificate and demands the
// other's.
func (s Security) TLS() (server, client *tls.Config, err error) {
	if !s.Enabled() {
		return nil, nil, nil
	}
	if s.CertFile == "" || s.KeyFile == "" || s.CAFile == "" {
		return nil, nil, errors.New("cannot use TLS: expected --tls-cert, --tls-key and --tls-ca together")
	}
	cert, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use --tls-cert %s with --tls-key %s: %w", s.CertFile, s.KeyFile, err)
	}
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use --tls-ca: %w", err)
	}
	ca := x509.NewCertPool()
	if !ca.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("cannot use --tls-ca %s: expected certificates in PEM", s.CAFile)
	}
	server = &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    ca,
	}
	client = &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		RootCAs:      ca,
	}
	return server, client, nil
}

// Check applies the rule to an address that is to be listened on. Flag is
// the name of the flag that it came from.
func (s Security) Check(flag, addr string) error {
	if s.Enabled() || s.Insecure {
		return nil
	}
	loopback, err := Loopback(addr)
	if err != nil {
		return fmt.Errorf("cannot listen on --%s %s: %w", flag, addr, err)
	}
	if !loopback {
		return fmt.Errorf("cannot listen on --%s %s: it can be reached from other machines: "+
			"give --tls-cert, --tls-key and --tls-ca, or say --insecure", flag, addr)
	}
	return nil
}

// Loopback reports whether only this machine can reach addr, HOST:PORT.
func Loopback(addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, err
	}
	if host == "" {
		return false, nil // every interface
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback(), nil
	}
	ips, err := net.LookupIP(host)
	if err != nil {
		return false, err
	}
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return false, nil
		}
	}
	return len(ips) > 0, nil
}

// Listen listens at addr, which came from the named flag, with TLS if
// certificates are given.
func (s Security) Listen(flag, addr string) (net.Listener, error) {
	if err := s.Check(flag, addr); err != nil {
		return nil, err
	}
	server, _, err := s.TLS()
	if err != nil {
		return nil, err
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		if explained := Explain(flag, addr, err); explained != err {
			return nil, explained
		}
		return nil, fmt.Errorf("cannot listen on --%s %s: %w", flag, addr, err)
	}
	if server != nil {
		lis = tls.NewListener(lis, server)
	}
	return lis, nil
}

// Explain says what can be done about an address that is in use. It returns
// other errors as they are.
func Explain(flag, addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		host, _, splitErr := net.SplitHostPort(addr)
		if splitErr == nil {
			return fmt.Errorf("cannot listen on %s: another program does already: stop it, or choose another port with "+
				"--%s %s (port 0 takes a free one)", addr, flag, net.JoinHostPort(host, "PORT"))
		}
	}
	return err
}
