package admin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"polder/internal/console"
)

// TestAStrangerLearnsOnlyWhetherAllIsWell: everything else takes the token, which
// can be replaced.
func TestAStrangerLearnsOnlyWhetherAllIsWell(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const token, next = "0123456789abcdef", "fedcba9876543210"
	cfg := Config{
		Token:  NewToken(token),
		About:  console.About{Service: "the service", Version: "the version"},
		Health: func() error { return errors.New("a node with a name is gone") },
		Logger: slog.New(slog.DiscardHandler),
	}
	s, err := Start(lis, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path, authorization string) (code int, body string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://"+lis.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	paths := []string{"/metrics", "/status", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/heap", "/stream", "/nothing"}
	for _, wrong := range []string{"", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Basic " + token, token} {
		for _, path := range paths {
			if code, body := get(path, wrong); code != http.StatusUnauthorized || len(body) > 100 {
				t.Errorf("%s with %q: got %d %q, want 401", path, wrong, code, body)
			}
		}
		for _, path := range []string{"/", "/console.js", "/console.css"} {
			if code, body := get(path, wrong); code != 200 || strings.Contains(body, "the service") || strings.Contains(body, "the version") {
				t.Errorf("%s with %q: got %d, want the page without anything of the daemon", path, wrong, code)
			}
		}
		if code, body := get("/healthz", wrong); code != 503 || strings.Contains(body, "node") {
			t.Errorf("/healthz with %q: got %d %q, want 503 without a reason", wrong, code, body)
		}
	}
	right := func(token string) {
		t.Helper()
		for path, want := range map[string]string{"/status": "the service", "/metrics": "go_goroutines"} {
			if code, body := get(path, "Bearer "+token); code != 200 || !strings.Contains(body, want) {
				t.Errorf("%s with the token: got %d %.100q, want 200 with %q", path, code, body, want)
			}
		}
		if code, body := get("/healthz", "Bearer "+token); code != 503 || !strings.Contains(body, "a node with a name") {
			t.Errorf("/healthz with the token: got %d %q, want 503 with the reason", code, body)
		}
	}
	right(token)
	if !cfg.Token.Replace(next) || cfg.Token.Replace(next) {
		t.Error("want Replace to report whether the token is a new one")
	}
	right(next)
	if code, _ := get("/status", "Bearer "+token); code != http.StatusUnauthorized {
		t.Errorf("with the token of before: got %d, want 401", code)
	}
}

// TestOnlyAVerifiedCertificateCounts: TLS admits clients that show none, who may
// have the token.
func TestOnlyAVerifiedCertificateCounts(t *testing.T) {
	for _, tt := range []struct {
		what string
		tls  *tls.ConnectionState
		want bool
	}{
		{"no TLS", nil, false},
		{"TLS without a certificate", &tls.ConnectionState{}, false},
		{"a certificate that nobody has verified", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}, false},
		{"a verified one", &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}, true},
	} {
		for _, c := range []Config{{Certificates: true}, {Certificates: true, Token: NewToken("0123456789abcdef")}} {
			r := httptest.NewRequest(http.MethodGet, "/status", nil)
			r.TLS = tt.tls
			if got := c.allowed(r); got != tt.want {
				t.Errorf("%s, with a token to show %t: allowed %t, want %t", tt.what, c.Token != nil, got, tt.want)
			}
		}
	}
}

// TestAStrangerDrainsNothing: nor does a page of another site in an administrator's browser, nor who asks for what is not
// a time. With the token it is as asked.
func TestAStrangerDrainsNothing(t *testing.T) {
	const token = "0123456789abcdef"
	for _, tt := range []struct {
		what   string
		token  *Token
		header map[string]string
		query  string
		want   int
		says   string
	}{
		{"no way to tell who may", nil, nil, "?within=1s", http.StatusForbidden, "--admin-token-file"},
		{"no token shown", NewToken(token), nil, "?within=1s", http.StatusUnauthorized, ""},
		{"another site", NewToken(token), map[string]string{"Authorization": "Bearer " + token, "Sec-Fetch-Site": "cross-site"}, "?within=1s", http.StatusForbidden, ""},
		{"no time", NewToken(token), map[string]string{"Authorization": "Bearer " + token}, "", http.StatusBadRequest, "expected a time such as 30s"},
		{"a negative time", NewToken(token), map[string]string{"Authorization": "Bearer " + token}, "?within=-1s", http.StatusBadRequest, "expected a time"},
		{"the token", NewToken(token), map[string]string{"Authorization": "Bearer " + token}, "?within=1s", http.StatusOK, "drained"},
		{"the token, and it cannot be", NewToken(token), map[string]string{"Authorization": "Bearer " + token}, "?within=2s", http.StatusConflict, "still lent"},
		{"the token, by force", NewToken(token), map[string]string{"Authorization": "Bearer " + token}, "?within=2s&force=true", http.StatusOK, "by force: still lent"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			drained := false
			s, err := Start(lis, Config{
				Token: tt.token, About: console.About{Service: "node"}, Health: func() error { return nil }, Logger: slog.New(slog.DiscardHandler),
				Drain: func(_ context.Context, within time.Duration, force bool) (lost, err error) {
					drained = true
					switch still := errors.New("still lent"); {
					case within == time.Second:
						return nil, nil
					case force:
						return still, nil
					default:
						return nil, still
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			req, err := http.NewRequest(http.MethodPost, "http://"+lis.Addr().String()+"/drain"+tt.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range tt.header {
				req.Header.Set(k, v)
			}
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != tt.want || !strings.Contains(string(b), tt.says) {
				t.Errorf("got %d %q, %v, want %d with %q", resp.StatusCode, b, err, tt.want, tt.says)
			}
			if want := tt.want == http.StatusOK || tt.want == http.StatusConflict; drained != want {
				t.Errorf("it was drained: %t, want %t", drained, want)
			}
		})
	}
}
