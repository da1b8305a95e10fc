// Package admin is the daemons' administrative address: an HTTP server with
//
//	/             a page that shows the daemon, and the last hour (package console)
//	/stream       what feeds it, as server-sent events
//	/metrics      Prometheus metrics
//	/status       the daemon's state, as JSON; "polder status" and "polder top" read it
//	/healthz      200 if it can do its work, 503 and the reason if not
//	/debug/pprof  profiles
//
// It is open to everybody who can connect, unless there is a token or an authority for administrators. Then a request
// has to show the token or a certificate; without, it learns from /healthz whether all is well, and nothing from
// /stream, /metrics, /status and /debug/pprof (the page alone says nothing either). Nothing here shows what clients
// have stored, passwords or keys. Three requests change something: POST /drain ends a memory node when nothing is
// lent any more ("polder drain"), POST /lend says how much idle memory a node may lend ("polder lend"), and POST
// /forget makes a node take back what it keeps for a heap that nobody will open again. They always take the token or
// a certificate.
//
// A Server owns the goroutines of its Console and of its httpserver.Server; Close ends them all. It has 256
// connections at most: when there are too many, the one that has been silent longest is closed.
package admin

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"polder/internal/console"
	"polder/internal/httpserver"
)

// Config says what the server shows, and to whom. Token, Certificates, Report, Drain, Lend and Forget are optional.
type Config struct {
	Token        *Token // if not nil, it or a certificate must be shown
	Certificates bool   // certificates are demanded; those that the listener lets through are right
	About        console.About
	Health       func() error           // nil if the daemon can do its work; called by any goroutine
	Report       func(*console.State)   // adds to the state what no metric says; called by any goroutine
	Collectors   []prometheus.Collector // more may be added by Collect
	Logger       *slog.Logger           // its messages become metrics, if package ratelog counts them
	// Drain, if not nil, ends the daemon when nothing is lent any more. If that takes longer than within, the daemon
	// stays, and err says why; with force it ends then, and lost says what was lent. If ctx ends the daemon stays.
	Drain func(ctx context.Context, within time.Duration, force bool) (lost, err error)
	// Lend, if not nil, makes the daemon lend no more than most bytes of idle memory from now on. It returns what has
	// been given back, or what has not been within the time.
	Lend func(ctx context.Context, most int64, within time.Duration) (said string, err error)
	// Forget, if not nil, makes the daemon take back what it keeps for a heap that nobody will open again. It returns
	// how much that was.
	Forget func(heap string) (said string, err error)
}

// Server is a running administrative address.
type Server struct {
	http    *httpserver.Server
	reg     *prometheus.Registry
	console *console.Console
}

// maxConns is how many connections there are at most.
const maxConns = 256

// Start serves lis until Close.
func Start(lis net.Listener, cfg Config) (*Server, error) {
	reg := prometheus.NewRegistry()
	all := append([]prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		logCollector{cfg.Logger},
		memoryCollector{},
		buildInfo(cfg.About),
	}, cfg.Collectors...)
	s := &Server{reg: reg}
	if err := s.Collect(all...); err != nil {
		return nil, err
	}

	s.console = console.Start(console.Config{About: cfg.About, Health: cfg.Health, Report: cfg.Report, Gatherer: reg, Logger: cfg.Logger})
	mux := http.NewServeMux() // requests that need permission
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	mux.HandleFunc("GET /status", s.console.ServeStatus)
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		s.console.ServeStream(w, r, func() bool { return cfg.allowed(r) }) // the token may be replaced meanwhile
	})
	for path, does := range map[string]struct {
		what  string
		serve http.HandlerFunc
		has   bool
	}{
		"/drain":  {"drain it; send the process SIGTERM, which drains it if it was started with --drain", cfg.serveDrain, cfg.Drain != nil},
		"/lend":   {"have it lend less", cfg.serveLend, cfg.Lend != nil},
		"/forget": {"have it forget a heap", cfg.serveForget, cfg.Forget != nil},
	} {
		if does.has {
			mux.Handle("POST "+path, http.NewCrossOriginProtection().Handler(cfg.forOperators(does.what, does.serve)))
		}
	}
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)

	page := console.Page()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		allowed := cfg.allowed(r)
		if !allowed {
			w.Header().Set("Connection", "close") // strangers keep no connections
		}
		switch {
		case r.URL.Path == "/healthz":
			cfg.serveHealth(w, allowed)
		case console.InPage(r.URL.Path):
			page.ServeHTTP(w, r)
		case allowed:
			mux.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a token or a certificate is needed here", http.StatusUnauthorized)
		}
	})
	s.http = httpserver.Start(lis, httpserver.Config{Name: "administrative address", Handler: handler, MaxConns: maxConns, Logger: cfg.Logger})
	return s, nil
}

// serveHealth answers load balancers and container managers, which have no token. Only others learn why all is not
// well: the reason names nodes.
func (c *Config) serveHealth(w http.ResponseWriter, reason bool) {
	err := c.Health()
	switch {
	case err == nil:
		_, _ = w.Write([]byte("ok\n")) // the client has gone if this fails
	case reason:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		http.Error(w, "not well", http.StatusServiceUnavailable)
	}
}

// forOperators serves only requests that have shown the token or a certificate: it refuses all if the daemon asks for
// neither.
func (c *Config) forOperators(what string, serve http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.Token == nil && !c.Certificates {
			http.Error(w, "it has no --admin-token-file or --tls-admin-ca, by which to tell who may "+what, http.StatusForbidden)
			return
		}
		serve(w, r)
	})
}

// serveDrain answers when the daemon is about to end, or stays after all. The client must wait for the answer: if the
// connection ends, the daemon stays.
func (c *Config) serveDrain(w http.ResponseWriter, r *http.Request) {
	within, ok := timeOf(w, r)
	if !ok {
		return
	}
	switch lost, err := c.Drain(r.Context(), within, r.FormValue("force") == "true"); {
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	case lost != nil:
		_, _ = fmt.Fprintf(w, "ended by force: %v\n", lost)
	default:
		_, _ = w.Write([]byte("drained: it ends\n"))
	}
}

// timeOf returns the time that a request gives. It returns false if there is none, and has answered that.
func timeOf(w http.ResponseWriter, r *http.Request) (within time.Duration, ok bool) {
	within, err := time.ParseDuration(r.FormValue("within"))
	if err != nil || within <= 0 {
		http.Error(w, fmt.Sprintf("within is %q, expected a time such as 30s", r.FormValue("within")), http.StatusBadRequest)
		return 0, false
	}
	return within, true
}

// serveLend answers when the daemon lends no more than it is told to, or will not for now.
func (c *Config) serveLend(w http.ResponseWriter, r *http.Request) {
	most, err := strconv.ParseInt(r.FormValue("most"), 10, 64)
	if err != nil || most < 0 {
		http.Error(w, fmt.Sprintf("most is %q, expected a number of bytes", r.FormValue("most")), http.StatusBadRequest)
		return
	}
	within, ok := timeOf(w, r)
	if !ok {
		return
	}
	said, err := c.Lend(r.Context(), most, within)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	_, _ = fmt.Fprintln(w, said)
}

// serveForget answers when the daemon has taken back what it kept for a heap.
func (c *Config) serveForget(w http.ResponseWriter, r *http.Request) {
	said, err := c.Forget(r.FormValue("heap"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	_, _ = fmt.Fprintln(w, said)
}

// Collect adds collectors to /metrics.
func (s *Server) Collect(list ...prometheus.Collector) error {
	for _, c := range list {
		if err := s.reg.Register(c); err != nil {
			return fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return nil
}

// Close stops listening, lets requests finish for a second, and ends.
func (s *Server) Close() error {
	s.console.Close() // the pages would not let go
	return s.http.Close()
}
