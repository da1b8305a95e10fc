package tcp

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
)

func TestAwayFromLoopbackTLSIsRequired(t *testing.T) {
	dev := newDevice(t)
	c := testCerts()
	noAuth := c.server()
	noAuth.ClientAuth = tls.VerifyClientCertIfGiven
	noCert := c.client()
	noCert.Certificates = nil

	for _, l := range []struct {
		addr string
		cfg  Config
		want error
	}{
		{"0.0.0.0:0", Config{}, endpoint.ErrNeedTLS},
		{":0", Config{}, endpoint.ErrNeedTLS},
		{"[::]:0", Config{}, endpoint.ErrNeedTLS},
		{":0", Config{TLS: noAuth}, endpoint.ErrNeedClientAuth},
		{":0", Config{TLS: c.server()}, nil},
		{":0", Config{Insecure: true}, nil},
		{":0", Config{TLS: noAuth, Insecure: true}, nil},
		{"127.0.0.1:0", Config{}, nil},
		{"127.0.0.2:0", Config{}, nil},
		{"localhost:0", Config{}, nil},
		{"127.0.0.1:0", Config{TLS: noAuth}, nil},
	} {
		got, err := Listen(dev, l.addr, l.cfg)
		if !errors.Is(err, l.want) {
			t.Errorf("listening on %s: got %v, want %v", l.addr, err, l.want)
		}
		if err == nil {
			got.Close()
		}
	}

	// 192.0.2.0/24 is nobody's: only the refusals return at once, and only
	// they are tried.
	for _, d := range []struct {
		cfg  Config
		want error
	}{
		{Config{}, endpoint.ErrNeedTLS},
		{Config{TLS: noCert}, endpoint.ErrNeedClientCert},
	} {
		if _, err := Dial(patient(t), dev, "192.0.2.1:7070", d.cfg); !errors.Is(err, d.want) {
			t.Errorf("dialling: got %v, want %v", err, d.want)
		}
	}
}

func TestTLSAdmitsOnlyWhoHasACertificate(t *testing.T) {
	c := testCerts()
	server, client := newDevice(t), newDevice(t)
	l := newListener(t, server, Config{TLS: c.server()})

	conn, err := Dial(patient(t), client, l.Addr(), Config{TLS: c.client()})
	if err != nil {
		t.Fatalf("with a certificate: %v", err)
	}
	conn.Close()

	noCert := c.client()
	noCert.Certificates = nil
	if _, err := Dial(patient(t), client, l.Addr(), Config{TLS: noCert}); err == nil ||
		!strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: got %v, want that one is required", err)
	}
	stranger := c.client()
	stranger.RootCAs = nil
	if _, err := Dial(patient(t), client, l.Addr(), Config{TLS: stranger}); err == nil {
		t.Error("a client that does not know the authority trusted the server")
	}
	if _, err := Dial(patient(t), client, l.Addr(), Config{}); err == nil {
		t.Error("a client without TLS was admitted")
	}
	plain := newListener(t, server, Config{})
	if _, err := Dial(patient(t), client, plain.Addr(), Config{TLS: c.client()}); err == nil {
		t.Error("a client with TLS was content with a server without")
	}
}

func TestDialSaysWhatIsWrongWithTheVersion(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	heard := make(chan uint32, 1)
	go func() {
		nc, err := nl.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		hello := append([]byte("polderTC"), make([]byte, 24)...)
		hello[8] = 7 // the version
		nc.Write(hello)
		nc.Read(hello)
		heard <- binary.LittleEndian.Uint32(hello[8:])
	}()
	_, err = Dial(patient(t), newDevice(t), nl.Addr().String(), Config{})
	if err == nil || !strings.Contains(err.Error(), "another version: 7, this end 1") {
		t.Errorf("got %v, want the versions of both", err)
	}
	if v := <-heard; v != 1 {
		t.Errorf("the peer was told version %d, want 1", v)
	}
}

func TestDialGivesUpOnASilentListener(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close() // never accepts: the kernel does
	for _, cfg := range []Config{{}, {TLS: testCerts().client()}} {
		cfg.HandshakeTimeout = 20 * time.Millisecond
		if _, err := Dial(patient(t), newDevice(t), nl.Addr().String(), cfg); err == nil {
			t.Error("got a connection to somebody who says nothing")
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	dev := newDevice(t)
	for _, cfg := range []Config{{KeepAlive: -1}, {StallTimeout: -1}, {HandshakeTimeout: -1}, {MaxConns: -1}, {Backlog: -1}} {
		if _, err := Listen(dev, "127.0.0.1:0", cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: Listen: got %v, want ErrInvalid", cfg, err)
		}
		if _, err := Dial(patient(t), dev, "127.0.0.1:1", cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: Dial: got %v, want ErrInvalid", cfg, err)
		}
	}
	if _, err := Listen(nil, "127.0.0.1:0", Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no device: got %v, want ErrInvalid", err)
	}
}

// TestSilentPeersKeepNobodyOut has many connect and say nothing, with all the time
// in the world: a client with a certificate is let in nevertheless.
func TestSilentPeersKeepNobodyOut(t *testing.T) {
	c := testCerts()
	l := newListener(t, newDevice(t), Config{TLS: c.server(), HandshakeTimeout: time.Hour})
	for range 200 {
		nc, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	conn, err := Dial(patient(t), newDevice(t), l.Addr(), Config{TLS: c.client(), HandshakeTimeout: patience / 4})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
