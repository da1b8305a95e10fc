package tcp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience turns a hang into a failure.
const patience = time.Minute

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newDevice(t testing.TB) verbs.Device {
	t.Helper()
	d, err := NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("cannot close the device: %v", err)
		}
	})
	return d
}

func newListener(t testing.TB, dev verbs.Device, cfg Config) verbs.Listener {
	t.Helper()
	l, err := Listen(dev, "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// newPair makes a pair of devices; server and client are the configurations
// of the two ends.
func newPair(server, client Config) func(t *testing.T) verbstest.Pair {
	return func(t *testing.T) verbstest.Pair {
		p := verbstest.Pair{Client: newDevice(t), Server: newDevice(t)}
		p.Listener = newListener(t, p.Server, server)
		p.Dial = func(ctx context.Context) (verbs.Conn, error) {
			return Dial(ctx, p.Client, p.Listener.Addr(), client)
		}
		return p
	}
}

func TestConformance(t *testing.T) {
	verbstest.Run(t, newPair(Config{}, Config{}))
}

func TestConformanceTLS(t *testing.T) {
	c := testCerts()
	verbstest.Run(t, newPair(Config{TLS: c.server()}, Config{TLS: c.client()}))
}

// certs is a certificate authority with one certificate for both ends.
type certs struct {
	pool *x509.CertPool
	leaf tls.Certificate
}

// testCerts makes them once.
var testCerts = sync.OnceValue(func() certs {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	must(err)
	ca, err = x509.ParseCertificate(caDER)
	must(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test node"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	must(err)
	c := certs{pool: x509.NewCertPool(), leaf: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}}
	c.pool.AddCert(ca)
	return c
})

func (c certs) server() *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{c.leaf},
		ClientCAs:    c.pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

func (c certs) client() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{c.leaf}, RootCAs: c.pool}
}
