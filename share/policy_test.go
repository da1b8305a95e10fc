package share_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"polder/internal/wal"
	"polder/share"
	"polder/share/resource"
	"polder/share/server"
)

func TestKeysExpire(t *testing.T) {
	var clock atomic.Int64
	clock.Store(time.Now().UnixMilli())
	s, opt := startDaemon(t, func(o *server.Options) {
		o.Now = func() time.Time { return time.UnixMilli(clock.Load()) }
	})
	c, r := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	p, err := c.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PutWith(t.Context(), "k", p, copy(p.Bytes(), "short-lived"), share.PutOptions{TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	put(t, c, "forever", "v")
	v := mustGet(t, r, "k")
	clock.Add(time.Hour.Milliseconds() - 1)
	wantValue(t, r, "k", "short-lived")
	clock.Add(1)
	if found, err := r.Exists(t.Context(), "k"); err != nil || found {
		t.Fatalf("after its time: found %v, %v", found, err)
	}
	eventually(t, "the key is gone", func() bool { return s.Info().Keys == 1 })
	if string(v.Bytes()) != "short-lived" {
		t.Fatal("a view changed when its key expired")
	}
	v.Close()
	eventually(t, "the page is free", func() bool { return s.Info().Waiting == 0 })
	if !put(t, c, "k", "again") {
		t.Fatal("an expired key cannot be put again")
	}
}

func TestLRUEvictsWhatWasNotUsedForLongest(t *testing.T) {
	s, opt := startDaemon(t, func(o *server.Options) {
		o.LRU = true
		o.Pools[0].Size = 64 << 10 // one region of four pages
	})
	c := open(t, opt.Socket, nil)
	for i := range 4 {
		put(t, c, fmt.Sprint(i), "v")
	}
	wantValue(t, c, "0", "v") // asked
	wantValue(t, c, "0", "v") // remembered
	if err := c.Pin(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	held := mustGet(t, c, "2")
	defer held.Close()
	put(t, c, "new", "v") // 3 is the oldest that is neither pinned nor looked at
	found, err := c.ExistsAll(t.Context(), []string{"1", "2", "3"})
	if err != nil || !found[0] || !found[1] || found[2] {
		t.Fatalf("after an eviction: 1, 2, 3 are there: %v, %v, want true, true, false", found, err)
	}
	if s.Info().Evictions == 0 {
		t.Fatal("nothing was counted as evicted")
	}
}

func TestLRUFreesRegionsWhoseOwnerIsGone(t *testing.T) {
	_, opt := startDaemon(t, func(o *server.Options) {
		o.LRU = true
		o.Pools[0].Size = 64 << 10
	})
	a, b := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	put(t, a, "old", "v")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, b, "new", "v")
	if found, err := b.Exists(t.Context(), "old"); err != nil || found {
		t.Fatalf("the key of a region that had to go: found %v, %v", found, err)
	}
}

func TestFullPoolWithoutEviction(t *testing.T) {
	_, opt := startDaemon(t, func(o *server.Options) { o.Pools[0].Size = 64 << 10 })
	c := open(t, opt.Socket, nil)
	for i := range 4 {
		put(t, c, fmt.Sprint(i), "v")
	}
	if _, err := c.Alloc(t.Context()); !errors.Is(err, share.ErrFull) {
		t.Fatalf("got %v, want %v", err, share.ErrFull)
	}
	wantValue(t, c, "0", "v")
}

func TestQuotaOfATenant(t *testing.T) {
	_, opt := startDaemon(t, func(o *server.Options) {
		o.Quotas = map[string]int64{fmt.Sprintf("uid:%d", os.Getuid()): 64 << 10}
	})
	a, b := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	put(t, a, "k", "v")
	if _, err := b.Alloc(t.Context()); !errors.Is(err, share.ErrQuota) {
		t.Fatalf("got %v, want %v", err, share.ErrQuota)
	}
}

func TestFilePoolKeepsItsKeysOverARestart(t *testing.T) {
	dir := t.TempDir()
	opt := testOptions(dir)
	opt.Pools = []resource.Spec{{Kind: resource.File, Path: filepath.Join(dir, "pmem0"), Size: 8 << 20}}
	s, err := server.Start(opt)
	if err != nil {
		t.Fatal(err)
	}
	c, err := share.Open(t.Context(), share.Config{Socket: opt.Socket, PageSize: 16 << 10, RegionSize: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	put(t, c, "k", "durable")
	v := mustGet(t, c, "k")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = server.Start(opt); err != nil {
		t.Fatal(err)
	}
	wantValue(t, c, "k", "durable")
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	wantValue(t, open(t, opt.Socket, nil), "k", "durable")
	if err := os.Remove(filepath.Join(opt.Dir, "secret")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := server.Start(opt); err == nil {
		s.Close()
		t.Fatal("the daemon started without its secret, although there are allocations")
	}
}

func TestMemoryThatNothingKeptIsToldAsLost(t *testing.T) {
	dir := t.TempDir()
	opt := testOptions(dir)
	s, err := server.Start(opt)
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, opt.Socket, nil)
	put(t, c, "k", "volatile")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = server.Start(opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := c.Get(t.Context(), "k"); !errors.Is(err, share.ErrNotFound) {
		t.Fatalf("got %v, want %v", err, share.ErrNotFound)
	}
	put(t, c, "k", "anew")
	wantValue(t, c, "k", "anew")
}

// TestDamagedStateIsRefused flips bits and cuts bytes of a daemon's own log
// and checkpoint.
func TestDamagedStateIsRefused(t *testing.T) {
	base, err := os.MkdirTemp("/dev/shm", "damage")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	opt := testOptions(base)
	opt.SegmentSize = 4 << 10
	opt.Pools = []resource.Spec{{Kind: resource.File, Path: filepath.Join(base, "pool"), Size: 1 << 20}}
	s, err := server.Start(opt)
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, opt.Socket, nil)
	put(t, c, "before", "v")
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		put(t, c, fmt.Sprint(i), "v")
	}
	saved := filepath.Join(base, "saved")
	if err := os.CopyFS(saved, os.DirFS(filepath.Join(opt.Dir, "log"))); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(saved, "0*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("the history has %d files, %v", len(files), err)
	}
	refused, prefix, whole := 0, 0, 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for at := range bytes.TrimRight(data, "\x00") { // behind it, nothing is said
			for _, cut := range []bool{false, true} {
				damaged := append([]byte(nil), data...)
				if damaged[at] ^= 1 << (at % 8); cut {
					damaged = data[:at]
				}
				switch keys, err := startDamaged(opt, saved, filepath.Base(file), damaged); {
				case errors.As(err, new(*wal.CorruptError)):
					refused++
				case err != nil:
					t.Fatalf("%s damaged at %d, cut %v: %v", file, at, cut, err)
				case keys == 9:
					whole++
				case cut:
					prefix++
				default:
					t.Fatalf("%s flipped at %d: the daemon starts with %d of 9 keys and says nothing", file, at, keys)
				}
			}
		}
	}
	t.Logf("damaged at %d places: %d refused with the offset, %d a prefix of the history, %d without effect", refused+prefix+whole, refused, prefix, whole)
}

// startDamaged starts a daemon on a log one of whose files is damaged, without
// letting it serve, and counts its keys.
func startDamaged(opt server.Options, saved, name string, data []byte) (int, error) {
	dir := filepath.Join(filepath.Dir(opt.Dir), "try")
	if err := os.CopyFS(filepath.Join(dir, "log"), os.DirFS(saved)); err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "log", name), data, 0o600); err != nil {
		return 0, err
	}
	for _, f := range []string{"secret", "boot"} {
		b, err := os.ReadFile(filepath.Join(opt.Dir, f))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f), b, 0o600)
		}
		if err != nil {
			return 0, err
		}
	}
	// The pool is a copy, as a daemon removes what its log does not know.
	pool := filepath.Join(dir, "pool")
	if err := os.CopyFS(pool, os.DirFS(opt.Pools[0].Path)); err != nil {
		return 0, err
	}
	opt.Dir = dir
	return server.CountKeys(opt)
}

// certificates makes an authority and a certificate for both sides.
func certificates(t *testing.T) (serverTLS, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tester"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert},
		&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}
}

func TestRemoteClientsSeeNamesAndHaveAGracePeriod(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serverTLS, client := certificates(t)
	var clock atomic.Int64
	clock.Store(time.Now().UnixMilli())
	s, opt := startDaemon(t, func(o *server.Options) {
		o.Remote, o.TLS, o.Grace = lis, serverTLS, 30*time.Second
		o.Now = func() time.Time { return time.UnixMilli(clock.Load()) }
	})
	c := open(t, opt.Socket, nil)
	put(t, c, "k", "v")
	if r, err := share.Dial(t.Context(), lis.Addr().String(), &tls.Config{RootCAs: client.RootCAs}); err == nil {
		r.Close()
		t.Fatal("a client without a certificate was admitted")
	}
	r, err := share.Dial(t.Context(), lis.Addr().String(), client)
	if err != nil {
		t.Fatal(err)
	}
	found, err := r.ExistsAll(t.Context(), []string{"k", "x"})
	if err != nil || !found[0] || found[1] {
		t.Fatalf("got %v, %v, want true, false", found, err)
	}
	if n, err := r.PinAll(t.Context(), []string{"k"}); err != nil || n != 1 {
		t.Fatalf("pin: got %d, %v, want 1", n, err)
	}
	if _, err := r.Stats(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A call whose time is over breaks the connection off, and nothing else.
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.ExistsAll(over, []string{"k"}); err == nil {
		t.Fatal("a call whose time was over was answered")
	}
	if err := c.Delete(t.Context(), "k"); !errors.Is(err, share.ErrPinned) {
		t.Fatalf("within the grace period: got %v, want %v", err, share.ErrPinned)
	}
	if n := s.Info().Sessions; n != 2 {
		t.Fatalf("within the grace period: %d sessions, want 2", n)
	}
	eventually(t, "the remote client is reaped", func() bool {
		clock.Add(31_000) // the daemon may only just have noticed that the connection is gone
		return s.Info().Sessions == 1
	})
	if err := c.Delete(t.Context(), "k"); err != nil {
		t.Fatalf("after the grace period: %v", err)
	}
	if _, err := r.ExistsAll(t.Context(), []string{"k"}); !errors.Is(err, share.ErrNotFound) {
		t.Fatalf("a session that was reaped: got %v, want %v", err, share.ErrNotFound)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestLRUGivesLatecomersTheirShare(t *testing.T) {
	s, opt := startDaemon(t, func(o *server.Options) {
		o.LRU = true
		o.Pools[0].Size = 4 * 64 << 10 // four regions of four pages
	})
	first, late := open(t, opt.Socket, nil), open(t, opt.Socket, nil)
	for i := range 16 {
		put(t, first, fmt.Sprint("first", i), "v")
	}
	filling, err := first.Alloc(t.Context()) // a page being filled is not taken away
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the latecomer gets a page", func() bool {
		p, err := late.Alloc(t.Context())
		if errors.Is(err, share.ErrFull) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.Put(t.Context(), "late", p, 0); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if _, err := first.Put(t.Context(), "filled", filling, copy(filling.Bytes(), "in time")); err != nil {
		t.Fatal(err)
	}
	wantValue(t, late, "filled", "in time")
	if info := s.Info(); info.Regions > 4 {
		t.Fatalf("got %d regions, want at most 4", info.Regions)
	}
}
