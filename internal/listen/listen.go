// Package listen opens the daemons' listeners under one rule: whoever is not
// on this machine proves who it is, and that it may do what is done there.
//
// What may be done has three roles: to borrow memory, to use a door, and to
// administer. Each has an authority of its own. A listener of a role whose
// authority is given uses TLS 1.3 and demands a certificate that this authority
// has signed. Without, it may be plain at a loopback address, where the kernel
// keeps other machines away; at any other address it is refused, unless the
// operator says --insecure. A Unix socket is plain: its permissions say who of this
// machine may connect. At the administrative address a token stands in for a
// certificate; whether a request has either is for package admin to see.
//
// A Security may be used by any number of goroutines.
package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"polder/internal/accept"
	"polder/internal/fdpass"
	"polder/internal/scheme"
	"polder/internal/systemd"
)

// Security is what an operator says about protection on the network.
type Security struct {
	*Certificates      // nil: there are none
	Token         bool // the administrative address asks for a token
	Insecure      bool // allow listeners that others can reach without proof of who they are
}

// Accept is Certificates.Server, nil without certificates.
func (s Security) Accept(r Role) *tls.Config {
	if s.Certificates == nil {
		return nil
	}
	return s.Server(r)
}

// tls is the configuration to accept connections of role r with at addr; nil
// without TLS.
func (s Security) tls(r Role, addr string) *tls.Config {
	if r != Admin || s.Certificates == nil {
		return s.Accept(r)
	}
	if strings.HasPrefix(addr, scheme.Unix) {
		return nil
	}
	if local, err := Loopback(addr); err == nil && local && !s.Has(Admin) {
		return nil
	}
	return s.AdminServer()
}

// Dial is Certificates.Dial, nil without certificates.
func (s Security) Dial() *tls.Config {
	if s.Certificates == nil {
		return nil
	}
	return s.Certificates.Dial()
}

// URL is where HTTP is served at an address of role Admin, as Address has it. That of a
// Unix socket stays as it is: no URL names one.
func (s Security) URL(addr string) string {
	switch {
	case strings.HasPrefix(addr, scheme.Unix):
		return addr
	case s.tls(Admin, addr) != nil:
		return "https://" + addr + "/"
	}
	return "http://" + addr + "/"
}

// Check applies the rule to an address that is to be listened on for a role. Flag
// is the name of the flag that it came from.
func (s Security) Check(r Role, flag, addr string) error {
	if s.Insecure {
		return nil
	}
	loopback, err := Loopback(addr)
	if err != nil {
		return fmt.Errorf("cannot listen on --%s %s: %w", flag, addr, err)
	}
	proof := s.Certificates != nil && s.Has(r)
	if r == Admin {
		proof = proof || s.Token && s.Certificates != nil && s.now.Load().files.Cert != ""
	}
	if !loopback && !proof {
		return fmt.Errorf("cannot listen on --%s %s: it can be reached from other machines: "+
			"give --tls-cert, --tls-key and %s, or say --insecure", flag, addr,
			[roles]string{"--tls-ca", "--tls-client-ca", "--admin-token-file or --tls-admin-ca"}[r])
	}
	return nil
}

// Loopback reports whether only this machine can reach addr, HOST:PORT or unix:PATH.
func Loopback(addr string) (bool, error) {
	if strings.HasPrefix(addr, scheme.Unix) {
		return true, nil
	}
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

// SocketMode are the permissions of Unix sockets: the user of the daemon may connect,
// and root. A socket of the service manager's has those that its unit says.
const SocketMode = 0o600

// Listen listens at addr, which came from the named flag, for connections of role
// r. If the service manager has passed on a socket that has the flag's name, or is
// bound to addr, it is used instead, under the same rule. A Unix socket that a dead
// process has left is replaced; one that is served is not.
func (s Security) Listen(r Role, flag, addr string) (net.Listener, error) {
	lis, config, err := s.ListenPlain(r, flag, addr)
	if config != nil {
		lis = accept.ListenTLS(lis, config)
	}
	return lis, err
}

// ListenPeers is Listen for a door that other daemons use like clients: see
// Certificates.PeerServer.
func (s Security) ListenPeers(flag, addr string) (net.Listener, error) {
	lis, config, err := s.ListenPlain(Client, flag, addr)
	if config != nil {
		lis = accept.ListenTLS(lis, s.PeerServer())
	}
	return lis, err
}

// ListenPlain is Listen for protocols that turn to TLS by themselves. They have to, with
// the configuration that it returns, unless that is nil.
func (s Security) ListenPlain(r Role, flag, addr string) (net.Listener, *tls.Config, error) {
	lis, err := systemd.Listener(flag)
	path, socket := strings.CutPrefix(addr, scheme.Unix)
	switch {
	case lis != nil || err != nil:
	case socket:
		if lis, err = fdpass.ListenStream(path, SocketMode); err != nil {
			return nil, nil, fmt.Errorf("cannot use --%s: %w", flag, err)
		}
	default:
		lis, err = systemd.ListenerAt("tcp", addr)
	}
	if err != nil {
		return nil, nil, err
	}
	if lis != nil && lis.Addr().Network() == "unix" {
		return lis, nil, nil // its permissions say who may connect
	}
	if lis != nil {
		addr = lis.Addr().String()
	}
	if err := s.Check(r, flag, addr); err != nil {
		if lis != nil {
			err = errors.Join(err, lis.Close())
		}
		return nil, nil, err
	}
	if lis == nil {
		lis, err = net.Listen("tcp", addr)
	}
	if err != nil {
		if explained := Explain(flag, addr, err); explained != err {
			return nil, nil, explained
		}
		return nil, nil, fmt.Errorf("cannot listen on --%s %s: %w", flag, addr, err)
	}
	return lis, s.tls(r, addr), nil
}

// Address is where lis listens, as a flag would say it.
func Address(lis net.Listener) string {
	if a := lis.Addr(); a.Network() == "unix" {
		return scheme.Unix + a.String()
	}
	return lis.Addr().String()
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
