package listen

import (
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/internal/testcert"
)

// files are those of a certificate of issuer's, and of the authorities of roles.
func files(t *testing.T, issuer *testcert.Authority, roles map[Role]*testcert.Authority) (f Files) {
	t.Helper()
	f.Cert, f.Key = issuer.Issue(t, "polder")
	for r, a := range roles {
		f.CA[r] = a.File
	}
	return f
}

func load(t *testing.T, f Files) *Certificates {
	t.Helper()
	c, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOnlyLoopbackMayBePlain, and elsewhere a listener needs the authority of
// those who connect there: that of others does not count.
func TestOnlyLoopbackMayBePlain(t *testing.T) {
	nodes, clients, admins := testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients"), testcert.NewAuthority(t, "admins")
	all := map[Role]*testcert.Authority{Node: nodes, Client: clients, Admin: admins}
	for r, hint := range map[Role]string{
		Node:   "give --tls-cert, --tls-key and --tls-ca, or say --insecure",
		Client: "give --tls-cert, --tls-key and --tls-client-ca, or say --insecure",
		Admin:  "give --tls-cert, --tls-key and --admin-token-file or --tls-admin-ca, or say --insecure",
	} {
		own, others := map[Role]*testcert.Authority{r: all[r]}, maps.Clone(all)
		delete(others, r)
		for addr, local := range map[string]bool{
			"127.0.0.1:0": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
			":1": false, "0.0.0.0:1": false, "[::]:1": false, "192.0.2.1:1": false,
		} {
			for _, tt := range []struct {
				what    string
				s       Security
				allowed bool
			}{
				{"plain", Security{}, local},
				{"insecure", Security{Insecure: true}, true},
				{"its authority", Security{Certificates: load(t, files(t, nodes, own))}, true},
				{"the others' authorities", Security{Certificates: load(t, files(t, nodes, others))}, local},
				{"a token", Security{Token: true}, local},
				{"a token and a certificate", Security{Token: true, Certificates: load(t, files(t, nodes, nil))}, local || r == Admin},
			} {
				err := tt.s.Check(r, "listen", addr)
				if (err == nil) != tt.allowed {
					t.Errorf("%s, role %d, %s: got %v, want it allowed: %v", addr, r, tt.what, err, tt.allowed)
				}
				if err != nil && !strings.Contains(err.Error(), hint) {
					t.Errorf("%s, role %d, %s: got %v, want it to say what to do", addr, r, tt.what, err)
				}
			}
		}
	}
}

func TestAnAddressInUseIsExplained(t *testing.T) {
	first, err := Security{}.Listen(Node, "listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	addr := first.Addr().String()
	_, err = Security{}.Listen(Admin, "admin", addr)
	want := "cannot listen on " + addr + ": another program does already: stop it, or choose another port with " +
		"--admin 127.0.0.1:PORT (port 0 takes a free one)"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestFilesThatCannotBeUsedAreRefused(t *testing.T) {
	nodes, clients := testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients")
	good := files(t, nodes, map[Role]*testcert.Authority{Node: nodes, Client: clients})
	for want, spoil := range map[string]func(*Files){
		"expected --tls-cert and --tls-key":                                        func(f *Files) { f.Key = "" },
		"together and with every authority":                                        func(f *Files) { f.Cert, f.Key = "", "" },
		"private key does not match":                                               func(f *Files) { _, f.Key = nodes.Issue(t, "other") },
		"cannot use --tls-client-ca":                                               func(f *Files) { f.CA[Client] = "/nonexistent" },
		"expected certificates in PEM":                                             func(f *Files) { f.CA[Node] = f.Key },
		"--tls-client-ca " + nodes.File + ": it has an authority of --tls-ca, too": func(f *Files) { f.CA[Client] = f.CA[Node] },
		"and now it is":                                                            func(f *Files) { f.Cert, f.Key = nodes.IssueUntil(t, "old", time.Now().Add(-time.Minute)) },
	} {
		f := good
		spoil(&f)
		if _, err := Load(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		c := load(t, good)
		if news, err := c.Reload(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reloading: got %q, %v, want %q", news, err, want)
		}
		if news, err := c.Reload(good); len(news) > 0 || err != nil {
			t.Errorf("reloading what was there, after an error: got %q, %v, want nothing new", news, err)
		}
	}
	c := load(t, good)
	for want, f := range map[string]Files{
		"--tls-cert without a restart":      {},
		"--tls-client-ca without a restart": files(t, nodes, map[Role]*testcert.Authority{Node: nodes}),
	} {
		if _, err := c.Reload(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reloading %+v: got %v, want %q", f, err, want)
		}
	}
	if news, err := load(t, Files{}).Reload(Files{}); news != nil || err != nil {
		t.Errorf("reloading nothing: got %q, %v", news, err)
	}
}

// TestEachRoleHasAnAuthorityOfItsOwn: a certificate for a door opens no node, and
// the other way round.
func TestEachRoleHasAnAuthorityOfItsOwn(t *testing.T) {
	nodes, clients, admins := testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients"), testcert.NewAuthority(t, "admins")
	of := map[Role]*testcert.Authority{Node: nodes, Client: clients, Admin: admins}
	s := Security{Certificates: load(t, files(t, nodes, of))}
	for r := range of {
		addr := serveEcho(t, s, r)
		for other, a := range of {
			shown := a.Client(t, "somebody", nodes)
			shown.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &shown.Certificates[0], nil // whether it is asked for or not
			}
			if err := echo(addr, shown); (err == nil) != (other == r) {
				t.Errorf("role %d, a certificate of role %d: got %v", r, other, err)
			}
		}
		nobody := of[r].Client(t, "nobody", nodes)
		nobody.Certificates = nil
		if err := echo(addr, nobody); (err == nil) != (r == Admin) {
			t.Errorf("role %d, no certificate: got %v; an administrator may show a token instead, others may not", r, err)
		}
	}
	if err := echo(serveEcho(t, s, Node), s.Dial()); err != nil {
		t.Errorf("a node's borrower: %v", err)
	}
}

// TestOtherDaemonsComeToADoorLikeClients: with certificates of the nodes' authority,
// which lets in nobody else, and opens no other door.
func TestOtherDaemonsComeToADoorLikeClients(t *testing.T) {
	nodes, clients, admins := testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients"), testcert.NewAuthority(t, "admins")
	s := Security{Certificates: load(t, files(t, nodes, map[Role]*testcert.Authority{Node: nodes, Client: clients, Admin: admins}))}
	lis, err := s.ListenPeers("listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := echoes(t, lis)
	lets := func(a *testcert.Authority, want bool) {
		t.Helper()
		if err := echo(addr, a.Client(t, "somebody", nodes)); (err == nil) != want {
			t.Errorf("a certificate of %s: got %v, want it let in: %v", a.File, err, want)
		}
	}
	lets(nodes, true)
	lets(clients, true)
	lets(admins, false)
	lets(testcert.NewAuthority(t, "strangers"), false)
	if err := echo(addr, s.Dial()); err != nil {
		t.Errorf("another server: %v", err)
	}
	nobody := clients.Client(t, "nobody", nodes)
	nobody.Certificates = nil
	if echo(addr, nobody) == nil {
		t.Error("who shows no certificate is let in")
	}
	new := testcert.NewAuthority(t, "new")
	if _, err := s.Reload(files(t, nodes, map[Role]*testcert.Authority{Node: nodes, Client: new, Admin: admins})); err != nil {
		t.Fatal(err)
	}
	lets(new, true)
	lets(clients, false)
	// Without an authority of clients, the rule is that of any door.
	s = Security{Certificates: load(t, files(t, nodes, map[Role]*testcert.Authority{Node: nodes}))}
	if lis, err := s.ListenPeers("listen", "0.0.0.0:0"); err == nil {
		_ = lis.Close()
		t.Error("the authority of nodes alone opens a door to other machines")
	}
}

// TestCertificatesAreReplacedWhileTheyAreUsed: who comes later is shown the new
// certificate and held to the new authority; who is there stays.
func TestCertificatesAreReplacedWhileTheyAreUsed(t *testing.T) {
	old, new := testcert.NewAuthority(t, "old"), testcert.NewAuthority(t, "new")
	s := Security{Certificates: load(t, files(t, old, map[Role]*testcert.Authority{Node: old}))}
	addr := serveEcho(t, s, Node)
	before := s.Dial()
	before.ClientSessionCache = tls.NewLRUClientSessionCache(8) // would resume, if it were let
	conn, err := tls.Dial("tcp", addr, before)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := say(conn); err != nil {
		t.Fatal(err)
	}

	news, err := s.Reload(files(t, new, map[Role]*testcert.Authority{Node: new}))
	if err != nil || len(news) != 2 || !strings.Contains(news[0], "--tls-ca") || !strings.Contains(news[1], "valid until 2") {
		t.Errorf("got %q, %v, want a new authority and a new certificate", news, err)
	}
	if err := say(conn); err != nil {
		t.Errorf("a connection of before: %v", err)
	}
	if err := echo(addr, s.Dial()); err != nil {
		t.Errorf("the new certificate: %v", err)
	}
	before.RootCAs = s.Dial().RootCAs
	if err := echo(addr, before); err == nil {
		t.Error("a certificate of the old authority was let in")
	}
	before.Certificates, before.RootCAs = s.Dial().Certificates, old.Client(t, "somebody", old).RootCAs
	if err := echo(addr, before); err == nil {
		t.Error("the old certificate was shown")
	}
}

// serveEcho listens for a role, and sends everybody what they send until the test
// ends.
func serveEcho(t *testing.T, s Security, r Role) (addr string) {
	t.Helper()
	lis, err := s.Listen(r, "listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return echoes(t, lis)
}

// echoes sends everybody who connects what they send until the test ends.
func echoes(t *testing.T, lis net.Listener) (addr string) {
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				_, _ = io.Copy(c, c) // fails for those who are not let in
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = lis.Close(); conns.Wait() })
	return lis.Addr().String()
}

func echo(addr string, cfg *tls.Config) (err error) {
	c, err := tls.Dial("tcp", addr, cfg)
	if err != nil {
		return err
	}
	return errors.Join(say(c), c.Close())
}

func say(c net.Conn) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}
