package admin

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"polder/internal/console"
	"polder/internal/ratelog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAdminShowsWhatItIsGiven(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := ratelog.Bound(slog.New(slog.DiscardHandler))
	for range 1000 {
		log.Warn("connection refused", "peer", "a stranger")
	}
	var sick atomic.Bool
	lent := prometheus.NewGauge(prometheus.GaugeOpts{Name: "polder_test_bytes", Help: "For this test."})
	lent.Set(4096)
	s, err := Start(lis, Config{
		About:  console.About{Service: "test", Started: time.Now()},
		Report: func(s *console.State) { s.Advice = []string{"lend more"} },
		Health: func() error {
			if sick.Load() {
				return errors.New("node gone")
			}
			return nil
		},
		Collectors: []prometheus.Collector{lent},
		Logger:     log,
	})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	get := func(path string, wantCode int, want string) {
		t.Helper()
		resp, err := client.Get("http://" + lis.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != wantCode || !strings.Contains(string(body), want) {
			t.Errorf("%s: got %d %.200q, %v, want %d with %q", path, resp.StatusCode, body, err, wantCode, want)
		}
	}
	get("/metrics", 200, "polder_test_bytes 4096")
	get("/metrics", 200, "process_resident_memory_bytes")
	get("/metrics", 200, `polder_log_messages_total{level="warn",message="connection refused"} 1000`)
	get("/status", 200, `"lend more"`)
	get("/status", 200, `"polder_test_bytes": {`)
	get("/status?points=x", 400, "expected a number")
	get("/", 200, "<title>Polder</title>")
	get("/console.js", 200, "stream")
	get("/healthz", 200, "ok")
	sick.Store(true)
	get("/healthz", 503, "node gone")
	get("/debug/pprof/goroutine?debug=1", 200, "goroutine profile")
	get("/nothing", 404, "")
	client.CloseIdleConnections()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", lis.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}

// TestConnectionsAreBoundedAndTheSilentOnesMakeRoom opens more connections than
// there may be, of which most never say anything.
func TestConnectionsAreBoundedAndTheSilentOnesMakeRoom(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(lis, Config{
		About:  console.About{Service: "test"},
		Health: func() error { return nil },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const more = 100
	ended := make(chan struct{}, maxConns+more)
	for i := range maxConns + more {
		nc, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if i%10 == 0 { // it waits for its next request
			if _, err := io.WriteString(nc, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			_, _ = io.Copy(io.Discard, nc)
			ended <- struct{}{}
		}()
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + lis.Addr().String() + "/healthz")
	if err != nil {
		t.Fatalf("a client that asks: %v", err)
	}
	resp.Body.Close()
	if got := s.http.Conns(); got > maxConns {
		t.Errorf("there are %d connections, want at most %d", got, maxConns)
	}
	for range more {
		<-ended
	}
}
