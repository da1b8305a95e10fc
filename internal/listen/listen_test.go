package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOnlyLoopbackMayBePlain(t *testing.T) {
	for addr, allowed := range map[string]bool{
		"127.0.0.1:0": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "192.0.2.1:1": false,
	} {
		err := Security{}.Check("listen", addr)
		if (err == nil) != allowed {
			t.Errorf("plain listener on %s: got %v, want it allowed: %v", addr, err, allowed)
		}
		if err != nil && !strings.Contains(err.Error(), "--tls-cert, --tls-key and --tls-ca, or say --insecure") {
			t.Errorf("plain listener on %s: got %v, want it to say what to do", addr, err)
		}
		if err := (Security{Insecure: true}).Check("listen", addr); err != nil {
			t.Errorf("insecure listener on %s: got %v", addr, err)
		}
	}
}

func TestAnAddressInUseIsExplained(t *testing.T) {
	first, err := Security{}.Listen("listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	addr := first.Addr().String()
	_, err = Security{}.Listen("admin", addr)
	want := "cannot listen on " + addr + ": another program does already: stop it, or choose another port with " +
		"--admin 127.0.0.1:PORT (port 0 takes a free one)"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestCertificatesComeTogether(t *testing.T) {
	for _, s := range []Security{{CertFile: "a"}, {CertFile: "a", KeyFile: "b"}, {CAFile: "c"}} {
		if _, _, err := s.TLS(); err == nil || !strings.Contains(err.Error(), "together") {
			t.Errorf("%+v: got %v", s, err)
		}
	}
}

func TestTLSDemandsAClientCertificate(t *testing.T) {
	dir := t.TempDir()
	ours := authority(t, dir, "ours")
	stranger := authority(t, dir, "stranger")
	lis, err := ours.Listen("listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c) // fails for those who are not let in
			_ = c.Close()
		}
	}()
	defer func() { _ = lis.Close(); <-done }()

	_, client, err := ours.TLS()
	if err != nil {
		t.Fatal(err)
	}
	if err := echo(lis.Addr().String(), client); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	_, other, err := stranger.TLS()
	if err != nil {
		t.Fatal(err)
	}
	other.RootCAs = client.RootCAs
	if err := echo(lis.Addr().String(), other); err == nil {
		t.Error("a certificate of another authority was accepted")
	}
	client.Certificates = nil
	if err := echo(lis.Addr().String(), client); err == nil {
		t.Error("a client without a certificate was let in")
	}
}

func echo(addr string, cfg *tls.Config) (err error) {
	c, err := tls.Dial("tcp", addr, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// authority makes a self-signed certificate for 127.0.0.1 that is its own
// authority.
func authority(t *testing.T, dir, name string) Security {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	s := Security{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
	s.CAFile = s.CertFile
	for file, block := range map[string]*pem.Block{
		s.CertFile: {Type: "CERTIFICATE", Bytes: der},
		s.KeyFile:  {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
