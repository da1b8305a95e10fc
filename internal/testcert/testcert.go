// Package testcert makes certificates for tests.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"polder/internal/testaddr"
)

// Authority signs certificates. Its files go when the test ends.
type Authority struct {
	File string // the authority's own certificate, in PEM

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority.
func NewAuthority(tb testing.TB, name string) *Authority {
	tb.Helper()
	a := &Authority{dir: tb.TempDir()}
	a.cert, a.key = a.sign(tb, &x509.Certificate{
		Subject:  pkix.Name{CommonName: name},
		KeyUsage: x509.KeyUsageCertSign,
		IsCA:     true, BasicConstraintsValid: true,
	})
	a.File = a.write(tb, name+".crt", "CERTIFICATE", a.cert.Raw)
	return a
}

// Issue makes a certificate for 127.0.0.1 and testaddr.Host, valid for an hour, for clients and
// servers, and returns the PEM files of it and of its key.
func (a *Authority) Issue(tb testing.TB, name string) (cert, key string) {
	tb.Helper()
	return a.IssueUntil(tb, name, time.Now().Add(time.Hour))
}

// IssueUntil is Issue for a certificate that is valid until end. It replaces the
// files of the certificate of that name.
func (a *Authority) IssueUntil(tb testing.TB, name string, end time.Time) (cert, key string) {
	tb.Helper()
	c, k := a.sign(tb, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		NotAfter:    end,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(testaddr.Host())},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		tb.Fatal(err)
	}
	return a.write(tb, name+".crt", "CERTIFICATE", c.Raw), a.write(tb, name+".key", "PRIVATE KEY", pkcs8)
}

// Client is the configuration of a client with a certificate of that name, which
// trusts the servers of authority servers.
func (a *Authority) Client(tb testing.TB, name string, servers *Authority) *tls.Config {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(a.Issue(tb, name))
	if err != nil {
		tb.Fatal(err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: x509.NewCertPool()}
	c.RootCAs.AddCert(servers.cert)
	return c
}

// sign makes a key and a certificate for it, which a signs, or which signs itself
// if a has no key yet.
func (a *Authority) sign(tb testing.TB, tmpl *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatal(err)
	}
	tmpl.SerialNumber, tmpl.NotBefore = serial, time.Now().Add(-24*time.Hour)
	if tmpl.NotAfter.IsZero() {
		tmpl.NotAfter = time.Now().Add(time.Hour)
	}
	parent, by := tmpl, key
	if a.key != nil {
		parent, by = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, by)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert, key
}

func (a *Authority) write(tb testing.TB, name, kind string, der []byte) string {
	tb.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
