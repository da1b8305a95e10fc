package listen

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// Role is what somebody with a certificate may do. Each has an authority of its
// own, so that a certificate for one opens nothing of another's.
type Role int

// The roles.
const (
	Node   Role = iota // lend memory to others, or borrow it from a node
	Client             // use a door: Redis, memcached, the remote clients of share
	Admin              // see everything at the administrative address
	roles
)

// flag is the flag that names the file of the role's authority.
func (r Role) flag() string { return [roles]string{"tls-ca", "tls-client-ca", "tls-admin-ca"}[r] }

// Files are the files of TLS, all in PEM.
type Files struct {
	Cert, Key string        // this daemon's certificate, and its private key
	CA        [roles]string // by role: who must have signed the other side's certificate
}

// Check refuses files that lack others. It opens none.
func (f Files) Check() error {
	if f != (Files{}) && (f.Cert == "" || f.Key == "") {
		return errors.New("cannot use TLS: expected --tls-cert and --tls-key, together and with every authority")
	}
	return nil
}

// Certificates has the contents of Files. They can be read anew while connections are accepted and dialled: existing
// connections go on as they are, and new ones use what was read last.
//
// Any number of goroutines may use it.
type Certificates struct {
	now atomic.Pointer[material]
}

// material does not change.
type material struct {
	files Files
	cert  *tls.Certificate
	ca    [roles]*x509.CertPool // nil where there is none
	peers *x509.CertPool        // the authorities of clients and of nodes
	sum   [roles + 1][sha256.Size]byte
}

// Load reads the files, of which there may be none.
func Load(files Files) (*Certificates, error) {
	m, err := files.load(time.Now())
	if err != nil {
		return nil, err
	}
	c := new(Certificates)
	c.now.Store(m)
	return c, nil
}

// Unread stands for files that nobody has read. It is good for Security.Check.
func Unread(files Files) *Certificates {
	c := new(Certificates)
	c.now.Store(&material{files: files})
	return c
}

func (f Files) load(now time.Time) (*material, error) {
	m := &material{files: f}
	if err := f.Check(); err != nil || f == (Files{}) {
		return m, err
	}
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot use --tls-cert %s with --tls-key %s: %w", f.Cert, f.Key, err)
	}
	if leaf := cert.Leaf; now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, fmt.Errorf("cannot use --tls-cert %s: it is valid from %s to %s, and now it is %s", f.Cert,
			leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	m.cert, m.sum[roles] = &cert, sha256.Sum256(cert.Leaf.Raw)
	m.peers = x509.NewCertPool()
	owner := map[string]Role{}
	for r, path := range f.CA {
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("cannot use --%s: %w", Role(r).flag(), err)
		}
		m.ca[r], m.sum[r] = x509.NewCertPool(), sha256.Sum256(text)
		if !m.ca[r].AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("cannot use --%s %s: expected certificates in PEM", Role(r).flag(), path)
		}
		if err := distinct(owner, text, Role(r), path); err != nil {
			return nil, err
		}
		if r := Role(r); r == Node || r == Client {
			m.peers.AppendCertsFromPEM(text)
		}
	}
	return m, nil
}

// distinct adds the authorities in b to those whose roles are known. It refuses an authority that has another role
// already: otherwise somebody with a certificate for a door could borrow all memory.
func distinct(known map[string]Role, b []byte, r Role, path string) error {
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			return nil
		}
		if other, ok := known[string(block.Bytes)]; ok && other != r {
			return fmt.Errorf("cannot use --%s %s: it has an authority of --%s, too: whoever has a certificate for one could do what is for the other; "+
				"expected an authority of its own", r.flag(), path, other.flag())
		}
		known[string(block.Bytes)] = r
	}
}

// Reload reads the files, which may have changed, and returns what is new in them. What TLS is used for stays as it
// was at the start. After an error, nothing has changed.
func (c *Certificates) Reload(files Files) (news []string, err error) {
	was := c.now.Load()
	m, err := files.load(time.Now())
	if err != nil {
		return nil, err
	}
	if (m.cert == nil) != (was.cert == nil) {
		return nil, errors.New("cannot begin or cease to use --tls-cert without a restart")
	}
	for r := range roles {
		if (m.ca[r] == nil) != (was.ca[r] == nil) {
			return nil, fmt.Errorf("cannot begin or cease to use --%s without a restart", r.flag())
		}
		if m.sum[r] != was.sum[r] {
			news = append(news, "the authority of --"+r.flag())
		}
	}
	if m.sum[roles] != was.sum[roles] {
		news = append(news, fmt.Sprintf("the certificate of --tls-cert, valid until %s", m.cert.Leaf.NotAfter.UTC().Format(time.RFC3339)))
	}
	c.now.Store(m)
	return news, nil
}

// Has reports whether the role has an authority.
func (c *Certificates) Has(r Role) bool { return c.now.Load().files.CA[r] != "" }

// Expires is when the certificate does, and false if there is none.
func (c *Certificates) Expires() (time.Time, bool) {
	m := c.now.Load()
	if m.cert == nil {
		return time.Time{}, false
	}
	return m.cert.Leaf.NotAfter, true
}

// Server returns the configuration to accept the role's connections with, which
// goes on to be right after a Reload. It is nil if the role has no authority.
func (c *Certificates) Server(r Role) *tls.Config {
	if !c.Has(r) {
		return nil
	}
	return c.server(func(m *material, t *tls.Config) {
		t.ClientAuth, t.ClientCAs = tls.RequireAndVerifyClientCert, m.ca[r]
	})
}

// PeerServer is Server for a door that other daemons use, too, like clients, with their own certificates. These are
// of the nodes' authority: a daemon with one may do more at a node. It is nil if clients have no authority.
func (c *Certificates) PeerServer() *tls.Config {
	if !c.Has(Client) {
		return nil
	}
	return c.server(func(m *material, t *tls.Config) {
		t.ClientAuth, t.ClientCAs = tls.RequireAndVerifyClientCert, m.peers
	})
}

// AdminServer is Server for the administrative address, where a token may stand in
// for a certificate: one that is shown must be right. It is nil if there is no
// certificate to show.
func (c *Certificates) AdminServer() *tls.Config {
	if c.now.Load().cert == nil {
		return nil
	}
	return c.server(func(m *material, t *tls.Config) {
		if m.ca[Admin] != nil {
			t.ClientAuth, t.ClientCAs = tls.VerifyClientCertIfGiven, m.ca[Admin]
		}
	})
}

func (c *Certificates) server(demand func(*material, *tls.Config)) *tls.Config {
	config := func() *tls.Config {
		m := c.now.Load()
		t := &tls.Config{
			MinVersion:   tls.VersionTLS13,
			Certificates: []tls.Certificate{*m.cert},
			// A ticket would let in whom an authority of before has let in.
			SessionTicketsDisabled: true,
		}
		demand(m, t)
		return t
	}
	t := config()
	t.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return config(), nil }
	return t
}

// Dial returns the configuration to dial a node with, as it is at the moment:
// ask again for each connection. It is nil if nodes have no authority.
func (c *Certificates) Dial() *tls.Config {
	m := c.now.Load()
	if m.ca[Node] == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{*m.cert},
		RootCAs:      m.ca[Node],
	}
}
