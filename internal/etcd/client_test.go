package etcd

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"polder/internal/testcert"
	"polder/internal/testetcd"
)

// patient is longer than a server takes on a busy machine.
const patient = 30 * time.Second

func client(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patient
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestKeysLeasesAndWatchesOfARealServer(t *testing.T) {
	c, ctx := client(t, Config{Endpoints: []string{testetcd.New(t, 1)[0].Addr}}), t.Context()
	get := func(key string) (string, int64) {
		t.Helper()
		kv, _, err := c.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return string(kv.Value), kv.Mod
	}
	swap := func(key string, mod int64, value string, lease Lease, want bool) int64 {
		t.Helper()
		ok, revision, err := c.Swap(ctx, key, mod, []byte(value), lease)
		if err != nil || ok != want {
			t.Fatalf("swap %s: got %t, %v, want %t", key, ok, err, want)
		}
		return revision
	}
	if _, mod := get("/a/1"); mod != 0 {
		t.Errorf("a key that there is not was changed at %d", mod)
	}
	first := swap("/a/1", 0, "one", 0, true)
	swap("/a/1", 0, "other", 0, false)
	if v, mod := get("/a/1"); v != "one" || mod != first {
		t.Errorf("got %q of revision %d, want one of %d", v, mod, first)
	}
	second := swap("/a/1", first, "", 0, true)
	swap("/a/1", first, "late", 0, false)
	if v, mod := get("/a/1"); v != "" || mod != second {
		t.Errorf("got %q of revision %d, want nothing of %d", v, mod, second)
	}
	if ok, err := c.Delete(ctx, "/a/1", first); ok || err != nil {
		t.Errorf("a key that has changed was deleted: %t, %v", ok, err)
	}
	swap("/ab", 0, "of another prefix", 0, true)

	changes := make(chan struct{}, 16)
	watching, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(watching, "/a/", func() { changes <- struct{}{} }) }()
	change := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case err := <-ended:
			t.Fatalf("the watch has ended: %v", err)
		case <-time.After(patient):
			t.Fatalf("%s was not seen", what)
		}
	}
	change("the beginning")
	lease, ttl, err := c.Grant(ctx, 1500*time.Millisecond)
	if err != nil || ttl < 2*time.Second {
		t.Fatalf("got a lease of %v, %v, want two seconds or more", ttl, err)
	}
	swap("/a/2", 0, "two", lease, true)
	change("a new key")
	if err := c.Keep(ctx, lease); err != nil {
		t.Error(err)
	}
	if kvs, more, err := c.List(ctx, "/a/", 1); err != nil || len(kvs) != 1 || !more || string(kvs[0].Key) != "/a/1" {
		t.Errorf("got %v, %t, %v, want the first of two keys", kvs, more, err)
	}
	if kvs, more, err := c.List(ctx, "/a/", 9); err != nil || len(kvs) != 2 || more || string(kvs[1].Value) != "two" {
		t.Errorf("got %v, %t, %v, want two keys", kvs, more, err)
	}
	if err := c.Revoke(ctx, lease); err != nil {
		t.Error(err)
	}
	change("the end of a key with its lease")
	if v, mod := get("/a/2"); mod != 0 {
		t.Errorf("its lease was revoked, and the key has %q", v)
	}
	if err := c.Keep(ctx, lease); !errors.Is(err, ErrNoLease) {
		t.Errorf("a lease that has ended is kept: %v", err)
	}
	if err := c.Revoke(ctx, lease); err != nil {
		t.Errorf("a lease is ended twice: %v", err)
	}
	if ok, _, err := c.Swap(ctx, "/a/3", 0, nil, lease); ok || !errors.Is(err, ErrNoLease) || errors.Is(err, ErrUnknown) {
		t.Errorf("under a lease that has ended: got %t, %v", ok, err)
	}
	if lease, _, err = c.Grant(ctx, time.Second); err != nil {
		t.Fatal(err)
	}
	swap("/a/3", 0, "three", lease, true)
	change("a new key")
	change("the end of a key whose lease nobody keeps")
	if ok, err := c.Delete(ctx, "/a/1", second); !ok || err != nil {
		t.Errorf("delete: %t, %v", ok, err)
	}
	change("the end of a key")
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v", err)
	}
	if _, _, err := c.Swap(ctx, "/big", 0, make([]byte, 3<<20), 0); err == nil {
		t.Error("3 MiB were taken")
	}
}

func TestAServerThatAsksForCertificates(t *testing.T) {
	ca := testcert.NewAuthority(t, "etcd")
	cert, key := ca.Issue(t, "server")
	m := testetcd.New(t, 1, "--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca.File, "--client-cert-auth")[0]
	config := ca.Client(t, "client", ca)
	c := client(t, Config{Endpoints: []string{m.Addr}, TLS: func() *tls.Config { return config }})
	if _, _, err := c.Get(t.Context(), "/a"); err != nil {
		t.Fatal(err)
	}
	config = config.Clone()
	config.Certificates = nil
	c = client(t, Config{Endpoints: []string{m.Addr}, TLS: func() *tls.Config { return config }})
	if _, _, err := c.Get(t.Context(), "/a"); err == nil {
		t.Error("somebody without a certificate was answered")
	}
}

func TestAServerWithTLSAndPasswords(t *testing.T) {
	ca := testcert.NewAuthority(t, "etcd")
	cert, key := ca.Issue(t, "server")
	m := testetcd.New(t, 1, "--cert-file", cert, "--key-file", key)[0]
	config := ca.Client(t, "client", ca)
	admin := client(t, Config{Endpoints: []string{m.Addr}, TLS: func() *tls.Config { return config }})
	ctx := t.Context()
	for _, step := range []struct {
		path string
		body any
	}{
		{"auth/role/add", map[string]any{"name": "root"}},
		{"auth/user/add", map[string]any{"name": "root", "password": "secret"}},
		{"auth/user/grant", map[string]any{"user": "root", "role": "root"}},
		{"auth/enable", map[string]any{}},
	} {
		if err := admin.ask(ctx, step.path, false, step.body, new(rangeAnswer)); err != nil {
			t.Fatal(step.path, err)
		}
	}
	if _, _, err := admin.Get(ctx, "/a"); err == nil {
		t.Error("somebody without a name was answered")
	}
	wrong := client(t, Config{Endpoints: []string{m.Addr}, TLS: admin.cfg.TLS, User: "root", Password: "wrong"})
	if _, _, err := wrong.Get(ctx, "/a"); err == nil || !strings.Contains(err.Error(), `cannot log in as "root"`) {
		t.Errorf("a wrong password: %v", err)
	}
	c := client(t, Config{Endpoints: []string{m.Addr}, TLS: admin.cfg.TLS, User: "root", Password: "secret"})
	if ok, _, err := c.Swap(ctx, "/a", 0, []byte("v"), 0); !ok || err != nil {
		t.Fatalf("swap: %t, %v", ok, err)
	}
	c.mu.Lock()
	c.token = "one that has ended"
	c.mu.Unlock()
	if kv, _, err := c.Get(ctx, "/a"); err != nil || string(kv.Value) != "v" {
		t.Errorf("after the token has ended: %q, %v", kv.Value, err)
	}
	plain := client(t, Config{Endpoints: []string{m.Addr}, User: "root", Password: "secret"})
	if _, _, err := plain.Get(ctx, "/a"); err == nil {
		t.Error("a server with TLS has answered without")
	}
	stranger := testcert.NewAuthority(t, "another")
	config = stranger.Client(t, "client", stranger)
	other := client(t, Config{Endpoints: []string{m.Addr}, TLS: admin.cfg.TLS, User: "root", Password: "secret"})
	if _, _, err := other.Get(ctx, "/a"); err == nil {
		t.Error("a server of another authority was trusted")
	}
}

const fine = `{"header":{"cluster_id":"7","revision":"5"},"succeeded":true,"kvs":[{"key":"L2E=","mod_revision":"3","value":"dg=="}]}`

// fake serves HTTP as handler says, and returns its address.
func fake(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// silent accepts and says nothing until the test ends.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// nobody is an address at which nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// An endpoint that is of no use is not the end: the next one is asked. What changes something is asked for again only if the
// first endpoint cannot have seen it.
func TestTheNextEndpointIsAsked(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		for line := strings.Repeat(" ", 1<<16); ; {
			if _, err := io.WriteString(w, line); err != nil {
				return
			}
		}
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, " ")
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
	}
	for name, c := range map[string]struct {
		addr   string
		unseen bool // that a change was asked for
	}{
		"nobody listens":       {nobody(t), true},
		"silent":               {silent(t), false},
		"endless":              {fake(t, endless), false},
		"dripping":             {fake(t, drip), false},
		"no JSON":              {fake(t, says(200, "<html>")), false},
		"other JSON":           {fake(t, says(200, "{}")), false},
		"wrong types":          {fake(t, says(200, `{"header":{"cluster_id":7}}`)), false},
		"another cluster":      {fake(t, says(200, strings.Replace(fine, `"7"`, `"8"`, 1))), false},
		"no leader":            {fake(t, says(503, `{"code":14,"message":"etcdserver: no leader"}`)), false},
		"a proxy":              {fake(t, says(502, "<html>")), false},
		"elsewhere":            {fake(t, says(302, "")), false},
		"too long to be read":  {fake(t, says(429, `{"code":8,"message":"grpc: received message larger than max"}`)), false},
		"error without end":    {fake(t, says(500, `{"message":"`+strings.Repeat("x", 1<<20))), false},
		"a header without end": {fake(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }), false},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			good := fake(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); says(200, fine)(w, r) })
			cfg := Config{Endpoints: []string{c.addr, good}}
			if name == "silent" || name == "dripping" {
				cfg.Timeout = time.Second
			}
			k := client(t, cfg)
			k.cluster = 7
			ok, _, err := k.Swap(t.Context(), "/a", 3, nil, 0)
			if c.unseen && (!ok || err != nil) {
				t.Errorf("swap: %t, %v, want it done at the second endpoint", ok, err)
			}
			if !c.unseen && (ok || !errors.Is(err, ErrUnknown) || asked.Load() != 0) {
				t.Errorf("swap: %t, %v, and the other endpoint was asked %d times; want ErrUnknown", ok, err, asked.Load())
			}
			k.next.Store(0)
			asked.Store(0)
			for range 2 {
				if kv, _, err := k.Get(t.Context(), "/a"); err != nil || string(kv.Value) != "v" || kv.Mod != 3 {
					t.Errorf("get: %v, %v", kv, err)
				}
			}
			if n := asked.Load(); n != 2 || k.next.Load() != 1 {
				t.Errorf("the good endpoint was asked %d times, and the next to ask is %d", n, k.next.Load())
			}
		})
	}
}

// What etcd refuses is refused at once, and has not happened.
func TestARefusalIsFinal(t *testing.T) {
	for _, body := range []string{
		`{"code":3,"message":"etcdserver: user name is empty"}`,
		`{"code":7,"message":"etcdserver: permission denied"}`,
		`{"code":8,"message":"etcdserver: mvcc: database space exceeded"}`,
		`{"code":3,"message":"etcdserver: request is too large"}Grpc-Trailer-Content-Type: application/grpc`,
	} {
		var asked atomic.Int64
		count := func(w http.ResponseWriter, r *http.Request) { asked.Add(1); says(400, body)(w, r) }
		k := client(t, Config{Endpoints: []string{fake(t, count), fake(t, count)}})
		if ok, _, err := k.Swap(t.Context(), "/a", 3, nil, 0); ok || err == nil || errors.Is(err, ErrUnknown) || asked.Load() != 1 {
			t.Errorf("%s: got %t, %v after %d requests", body, ok, err, asked.Load())
		}
	}
}

// Answers about something else than was asked for are refused.
func TestAnswersAreAboutWhatWasAsked(t *testing.T) {
	k := client(t, Config{Endpoints: []string{fake(t, says(200, fine))}})
	if kv, _, err := k.Get(t.Context(), "/b"); err == nil {
		t.Errorf("got %v for another key", kv)
	}
	if kvs, _, err := k.List(t.Context(), "/a", 0); err == nil {
		t.Errorf("got %v where none were asked for", kvs)
	}
	if _, _, err := k.Grant(t.Context(), time.Second); err == nil {
		t.Error("got a lease without a number")
	}
	if err := k.Keep(t.Context(), 1); err == nil {
		t.Error("a lease was kept by an answer about something else")
	}
}

// A request ends with its context, whatever the endpoints do.
func TestARequestEndsWithItsContext(t *testing.T) {
	k := client(t, Config{Endpoints: []string{silent(t), silent(t)}, Timeout: time.Hour})
	why := errors.New("it is enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 3)
	go func() { _, _, err := k.Get(ctx, "/a"); ended <- err }()
	go func() { _, _, err := k.Swap(ctx, "/a", 0, nil, 0); ended <- err }()
	go func() { ended <- k.Watch(ctx, "/a", func() {}) }()
	cancel(why)
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
	}
	if _, _, err := k.Swap(ctx, "/a", 0, nil, 0); !errors.Is(err, why) || errors.Is(err, ErrUnknown) {
		t.Errorf("a change that was not begun: %v", err)
	}
}

// A watch that is of no use ends with an error, and the next one is at the next endpoint.
func TestAWatchThatIsOfNoUseEnds(t *testing.T) {
	created := `{"result":{"header":{"cluster_id":"7"},"created":true}}` + "\n"
	for name, c := range map[string]struct {
		addr    string
		changes int
	}{
		"silent":          {silent(t), 0},
		"ends":            {fake(t, says(200, created)), 1},
		"canceled":        {fake(t, says(200, created+`{"result":{"header":{"cluster_id":"7"},"canceled":true,"cancel_reason":"x"}}`+"\n")), 1},
		"error":           {fake(t, says(200, `{"error":{"grpc_code":7,"message":"etcdserver: permission denied"}}`+"\n")), 0},
		"not a watch":     {fake(t, says(200, fine+"\n")), 0},
		"another cluster": {fake(t, says(200, strings.Replace(created, "7", "8", 1))), 0},
		"endless":         {fake(t, says(200, created+strings.Repeat("x", 1<<20))), 1},
		"no JSON":         {fake(t, says(200, created+"x\n")), 1},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Endpoints: []string{c.addr, nobody(t)}}
			if name == "silent" {
				cfg.Timeout = time.Second
			}
			k := client(t, cfg)
			k.cluster = 7
			changes := 0
			err := k.Watch(t.Context(), "/a", func() { changes++ })
			if err == nil || changes != c.changes || k.next.Load() != 1 {
				t.Errorf("got %v after %d changes; the next endpoint is %d", err, changes, k.next.Load())
			}
		})
	}
}

// What the server sends while nobody reads waits at the server.
func TestAWatchDoesNotReadAhead(t *testing.T) {
	const size = 64 << 20
	var sent atomic.Int64
	k := client(t, Config{Endpoints: []string{fake(t, func(w http.ResponseWriter, r *http.Request) {
		b := bufio.NewWriter(w)
		fmt.Fprintln(b, `{"result":{"header":{"cluster_id":"7"},"created":true}}`)
		for event := `{"result":{"header":{"cluster_id":"7"},"events":[{"kv":"` + strings.Repeat("x", 32<<10) + `"}]}}` + "\n"; sent.Load() < size; {
			n, err := b.WriteString(event)
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})}})
	changes := 0
	ctx, stop := context.WithCancel(t.Context())
	_ = k.Watch(ctx, "/a", func() {
		if changes++; changes == 3 {
			stop()
		}
	})
	if n := sent.Load(); n >= size {
		t.Errorf("%d bytes were read, of which three messages are wanted", n)
	}
}
