package console

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/internal/ratelog"
)

// About is what a daemon is. It does not change.
type About struct {
	Service   string
	Version   string
	Started   time.Time
	Addresses map[string]string // by service
}

// Config says what a Console shows. All fields but Report are required.
type Config struct {
	About    About
	Health   func() error // nil if the daemon can do its work
	Report   func(*State) // adds what no metric says; nil adds nothing
	Gatherer prometheus.Gatherer
	Logger   *slog.Logger // its last lines are shown if package ratelog keeps them
}

// MaxStreams is how many pages may be fed at a time.
const MaxStreams = 8

// MaxEvents is how many lines of the log a State has.
const MaxEvents = ratelog.MaxRecent

// Console takes a daemon's states and shows them.
type Console struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	history history                  // guarded by mu
	streams map[chan []byte]struct{} // guarded by mu; each has room for one event
}

// Start returns a Console that takes states until Close.
func Start(cfg Config) *Console {
	c := &Console{cfg: cfg, ended: make(chan struct{}), streams: make(map[chan []byte]struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	go c.run()
	return c
}

// Close ends the streams and the Console. Closing twice is a no-op.
func (c *Console) Close() {
	c.cancel()
	<-c.ended
}

func (c *Console) run() {
	defer close(c.ended)
	tick := time.NewTicker(Step)
	defer tick.Stop()
	for {
		c.step()
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
	}
}

// step takes a state, remembers it, and feeds the streams.
func (c *Console) step() {
	s := c.State()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history.add(s.Now, s.Metrics)
	if len(c.streams) == 0 {
		return
	}
	s.Metrics = s.Metrics.withoutHelp()
	s.History = c.history.snapshot(1)
	event, err := encode("state", s)
	if err != nil {
		c.cfg.Logger.Debug("cannot feed the console", "err", err)
		return
	}
	for ch := range c.streams {
		select {
		case <-ch: // an unsent state, which is out of date
		default:
		}
		ch <- event
	}
}

// State takes a state, without a history.
func (c *Console) State() *State {
	a := &c.cfg.About
	s := &State{
		Service: a.Service, Version: a.Version, PID: os.Getpid(), Started: a.Started, Now: time.Now(), Addresses: a.Addresses,
	}
	if err := c.cfg.Health(); err != nil {
		s.Problem = err.Error()
	}
	// If some metrics could not be gathered, the others are there.
	families, err := c.cfg.Gatherer.Gather()
	if err != nil {
		c.cfg.Logger.Warn("cannot gather all metrics", "err", err)
	}
	s.Metrics = newMetrics(families)
	for _, e := range ratelog.Recent(c.cfg.Logger) {
		s.Events = append(s.Events, Event{Time: e.Time, Level: levelName(e.Level), Text: e.Text, More: e.Attrs})
	}
	if c.cfg.Report != nil {
		c.cfg.Report(s)
	}
	return s
}

func levelName(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "error"
	case l >= slog.LevelWarn:
		return "warn"
	}
	return "info"
}

// ServeStatus answers with a State as JSON. With ?points=N it has a History of so
// many points.
func (c *Console) ServeStatus(w http.ResponseWriter, r *http.Request) {
	s := c.State()
	if text := r.URL.Query().Get("points"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			http.Error(w, "cannot use points="+strconv.Quote(text)+": expected a number", http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		s.History = c.history.snapshot(int(n))
		c.mu.Unlock()
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		c.cfg.Logger.Debug("cannot answer /status", "err", err)
	}
}

// sendTimeout is how long a page may take to read an event.
const sendTimeout = 10 * time.Second

// hello is the first event of a stream.
type hello struct {
	State  *State  `json:"state"` // with help and history
	Panels []Panel `json:"panels"`
	Step   float64 `json:"step"` // seconds between states
}

// ServeStream feeds a page with server-sent events: "hello", then "state" every Step. It goes on until the client
// leaves or does not read, still reports that it may see nothing any more, or the Console is closed.
func (c *Console) ServeStream(w http.ResponseWriter, r *http.Request, still func() bool) {
	events := make(chan []byte, 1)
	s := c.State()
	c.mu.Lock()
	full := len(c.streams) >= MaxStreams
	if !full {
		c.streams[events] = struct{}{}
		s.History = c.history.snapshot(Points)
	}
	c.mu.Unlock()
	if full {
		http.Error(w, fmt.Sprintf("%d consoles are open already: close one", MaxStreams), http.StatusServiceUnavailable)
		return
	}
	defer func() {
		c.mu.Lock()
		delete(c.streams, events)
		c.mu.Unlock()
	}()
	first, err := encode("hello", hello{s, Panels, Step.Seconds()})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	send := func(event []byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(sendTimeout)) // if it cannot be set, the write fails in the end
		_, err := w.Write(event)
		return err == nil && control.Flush() == nil
	}
	for event := first; still() && send(event); {
		select {
		case event = <-events:
		case <-r.Context().Done():
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// encode makes a server-sent event.
func encode(name string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the state: %w", err)
	}
	b := make([]byte, 0, len(data)+len(name)+16)
	b = append(b, "event: "+name+"\ndata: "...)
	b = append(b, data...)
	return append(b, "\n\n"...), nil
}

//go:embed index.html console.css console.js
var files embed.FS

// Page serves the page, which has nothing of the daemon in it. It takes what it
// shows from the stream, and asks for the token if the stream wants one.
func Page() http.Handler {
	serve := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "+
			"form-action 'none'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // a newer daemon may have a newer page
		serve.ServeHTTP(w, r)
	})
}

// InPage reports whether a path belongs to the page.
func InPage(path string) bool { return path == "/" || path == "/console.css" || path == "/console.js" }
