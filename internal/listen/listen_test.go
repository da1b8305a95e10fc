package listen

import (
	"crypto/tls"
	"errors"
	"io"
	"strings"
	"testing"

	"polder/internal/testcert"
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
	authority := func() (s Security) {
		s.CertFile, s.KeyFile = testcert.New(t)
		s.CAFile = s.CertFile
		return s
	}
	ours, stranger := authority(), authority()
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
