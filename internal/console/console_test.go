package console

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"polder/internal/ratelog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// daemon is something to look at.
type daemon struct {
	reg      *prometheus.Registry
	commands prometheus.Counter
	hits     prometheus.Counter
	fetched  prometheus.Counter
	local    *prometheus.GaugeVec
	rounds   prometheus.Histogram
	sick     atomic.Bool
	log      *slog.Logger
}

func newDaemon() *daemon {
	d := &daemon{
		reg:      prometheus.NewRegistry(),
		commands: prometheus.NewCounter(prometheus.CounterOpts{Name: "polder_resp_commands_total", Help: "Commands run."}),
		hits:     prometheus.NewCounter(prometheus.CounterOpts{Name: "polder_far_hits_total", Help: "Hits."}),
		fetched:  prometheus.NewCounter(prometheus.CounterOpts{Name: "polder_far_prefetched_total", Help: "Fetched before."}),
		local:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "polder_far_local_bytes", Help: "Memory."}, []string{"use"}),
		rounds:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "polder_resp_round_seconds", Help: "Time.", Buckets: []float64{1, 2, 4}}),
		log:      ratelog.Bound(slog.New(slog.DiscardHandler)),
	}
	d.reg.MustRegister(d.commands, d.hits, d.fetched, d.local, d.rounds)
	d.local.WithLabelValues("cold").Set(100)
	return d
}

func (d *daemon) config() Config {
	return Config{
		About: About{Service: "serve", Version: "v1", Started: time.Now(), Addresses: map[string]string{"redis": "127.0.0.1:6379"}},
		Health: func() error {
			if d.sick.Load() {
				return errors.New("no node can be used")
			}
			return nil
		},
		Report:   func(s *State) { s.Advice = []string{"Raise --local."} },
		Gatherer: d.reg,
		Logger:   d.log,
	}
}

func TestAStateIsTheMetricsAndTheRest(t *testing.T) {
	d := newDaemon()
	d.commands.Add(7)
	d.sick.Store(true)
	d.log.With("node", "a").Warn("connection lost", "error", errors.New("reset by peer"))
	c := Start(d.config())
	defer c.Close()
	s := c.State()
	if s.Service != "serve" || s.Problem != "no node can be used" || s.Metrics.Sum("polder_resp_commands_total") != 7 || s.Advice[0] != "Raise --local." {
		t.Errorf("got %+v", s)
	}
	if len(s.Events) != 0 { // a logger that writes nothing has no lines to show
		t.Errorf("events that were not written: %+v", s.Events)
	}
}

func TestTheLastLinesOfTheLogAreEvents(t *testing.T) {
	d := newDaemon()
	var out bytes.Buffer
	d.log = ratelog.Bound(slog.New(slog.NewTextHandler(&out, nil)))
	d.log.Debug("not shown")
	l := d.log.With("node", "a")
	for range 2 * MaxEvents {
		d.log.Info("filled up") // most are left out of the log
	}
	l.Error("connection lost", "error", errors.New("reset by peer"), "text", strings.Repeat("x", 1000))
	c := Start(d.config())
	defer c.Close()
	events := c.State().Events
	last := events[len(events)-1]
	if len(events) != ratelog.Burst+1 || last.Level != "error" || last.Text != "connection lost" || !strings.HasPrefix(last.More, " node=a error=reset by peer text=xxx") || len(last.More) > 500 {
		t.Errorf("got %d events, the last %+v", len(events), last)
	}
}

// TestHistoryHasRatesAndQuantiles: as Prometheus would compute them, over the time
// between two points.
func TestHistoryHasRatesAndQuantiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		c := Start(d.config())
		defer c.Close()
		synctest.Wait() // the first point
		d.commands.Add(300)
		d.hits.Add(90)
		d.fetched.Add(30)
		for range 100 {
			d.rounds.Observe(1.5)
		}
		d.local.WithLabelValues("free").Set(28)
		time.Sleep(Step)
		synctest.Wait()
		snapshot := func() *History {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.history.snapshot(Points)
		}
		h := snapshot()
		for _, want := range []struct {
			panel, name string
			value       float64
		}{{"commands", "commands", 100}, {"reads", "local", 20}, {"round", "p50", 1.5}, {"round", "p99", 1.99}, {"local", "cold", 100}, {"local", "free", 28}} {
			if got := h.Last(want.panel, want.name); math.Abs(got-want.value) > 1e-6 {
				t.Errorf("%s, %s: got %v, want %v", want.panel, want.name, got, want.value)
			}
		}
		time.Sleep(Step)
		synctest.Wait()
		h = snapshot()
		if got := h.Last("round", "p99"); !math.IsNaN(got) {
			t.Errorf("a quantile of nothing: got %v, want none", got)
		}
		if got := h.Last("commands", "commands"); got != 0 {
			t.Errorf("a rate of nothing: got %v, want 0", got)
		}
		text, err := json.Marshal(h)
		back := new(History)
		if err == nil {
			err = json.Unmarshal(text, back)
		}
		if err != nil || len(back.Times) != 3 || back.Last("local", "free") != 28 || !math.IsNaN(back.Last("round", "p99")) {
			t.Errorf("got %s back as %+v, %v", text, back, err)
		}
	})
}

// TestHistoryIsBounded: by points and by series, whatever labels there are.
func TestHistoryIsBounded(t *testing.T) {
	var h history
	now := time.Now()
	for i := range Points + 10 {
		m := Metrics{"polder_pool_borrowed_bytes": {}}
		for node := range 2 * MaxSeries {
			m["polder_pool_borrowed_bytes"].Samples = append(m["polder_pool_borrowed_bytes"].Samples,
				Sample{Labels: map[string]string{"node": string(rune('A' + node))}, Value: float64(i)})
			if i > 5 && node > 2 {
				break // most tests of time are enough
			}
		}
		h.add(now.Add(time.Duration(i)*Step), m)
	}
	if len(h.times) != Points || len(h.series) != MaxSeries {
		t.Fatalf("got %d points of %d series, want %d of %d", len(h.times), len(h.series), Points, MaxSeries)
	}
	for _, s := range h.series {
		if len(s.Values) != Points || cap(s.Values) > 2*Points {
			t.Fatalf("%s has %d points and room for %d", s.Name, len(s.Values), cap(s.Values))
		}
	}
	if got := h.snapshot(10).Last("nodes", "A"); got != Points+9 {
		t.Errorf("the newest point is %v, want %v", got, Points+9)
	}
}

// startSettled starts a Console and waits until it has taken its first state, which
// would otherwise come among those that a test takes.
func startSettled(d *daemon) *Console {
	c := Start(d.config())
	for first := false; !first; {
		runtime.Gosched()
		c.mu.Lock()
		first = len(c.history.times) > 0
		c.mu.Unlock()
	}
	return c
}

// stream reads the events of a stream.
func stream(t *testing.T, url string) (next func() (event, data string, err error), closeIt func()) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return func() (string, string, error) { return "", "", errors.New(resp.Status) }, func() {}
	}
	r := bufio.NewReader(resp.Body)
	return func() (string, string, error) {
		first, err := r.ReadString('\n')
		if err != nil {
			return "", "", err
		}
		second, err := r.ReadString('\n')
		if err == nil {
			_, err = r.ReadString('\n')
		}
		return strings.TrimSpace(strings.TrimPrefix(first, "event: ")), strings.TrimPrefix(second, "data: "), err
	}, func() { _ = resp.Body.Close() }
}

func TestAStreamGreetsFollowsAndEnds(t *testing.T) {
	d := newDaemon()
	c := startSettled(d)
	var forbidden atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.ServeStream(w, r, func() bool { return !forbidden.Load() })
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()

	next, done := stream(t, server.URL)
	defer done()
	event, data, err := next()
	var first hello
	if err == nil {
		err = json.Unmarshal([]byte(data), &first)
	}
	if err != nil || event != "hello" || first.State.Metrics["polder_resp_commands_total"].Help != "Commands run." || len(first.Panels) != len(Panels) || first.Step != Step.Seconds() {
		t.Fatalf("got %s %.200s, %v", event, data, err)
	}
	d.commands.Add(3)
	c.step()
	event, data, err = next()
	var state State
	if err == nil {
		err = json.Unmarshal([]byte(data), &state)
	}
	if err != nil || event != "state" || state.Metrics.Sum("polder_resp_commands_total") != 3 || len(state.History.Times) != 1 || state.Metrics["polder_resp_commands_total"].Help != "" {
		t.Fatalf("got %s %.200s, %v", event, data, err)
	}

	// Whoever may see nothing any more sees nothing more.
	forbidden.Store(true)
	c.step()
	if event, data, err := next(); err == nil {
		t.Errorf("with a token that was replaced: got %s %.100s", event, data)
	}
	forbidden.Store(false)

	// Beyond MaxStreams, somebody is told so; and all end with the Console.
	var ends []func() (string, string, error)
	for i := range MaxStreams + 1 {
		next, done := stream(t, server.URL)
		defer done()
		_, _, err := next()
		if (err == nil) != (i < MaxStreams) {
			t.Errorf("stream %d: got %v", i+1, err)
		}
		ends = append(ends, next)
	}
	c.Close()
	for _, next := range ends {
		if _, _, err := next(); err == nil {
			t.Error("a stream outlives its Console")
		}
	}
}

// TestASlowPageCostsOneEvent: whoever does not read keeps nobody, and then gets the
// newest state.
func TestASlowPageCostsOneEvent(t *testing.T) {
	d := newDaemon()
	c := startSettled(d)
	defer c.Close()
	events := make(chan []byte, 1)
	c.mu.Lock()
	c.streams[events] = struct{}{}
	c.mu.Unlock()
	for range 10 {
		d.commands.Inc()
		c.step()
	}
	if got := string(<-events); !strings.Contains(got, `"polder_resp_commands_total":{"type":"counter","samples":[{"value":10}]}`) {
		t.Errorf("got %.300s, want the state with 10 commands", got)
	}
}

// TestThePageIsSmallAndFetchesNothing: and what it names is there.
func TestThePageIsSmallAndFetchesNothing(t *testing.T) {
	size := 0
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		size += len(text)
		for _, bad := range []string{"https://", "//cdn", "innerHTML", "eval(", "document.write"} {
			if bytes.Contains(text, []byte(bad)) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		return err
	})
	if err != nil || size == 0 || size > 200<<10 {
		t.Errorf("the page has %d bytes (%v), want at most 200 KiB", size, err)
	}
	for _, path := range []string{"/", "/console.css", "/console.js"} {
		w := httptest.NewRecorder()
		Page().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK || !InPage(path) || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: got %d %v", path, w.Code, w.Header())
		}
	}
}

// TestStatusSaysWhichNodeIsLeaving.
func TestStatusSaysWhichNodeIsLeaving(t *testing.T) {
	samples := func(a, b float64) *Metric {
		return &Metric{Samples: []Sample{{Labels: map[string]string{"node": "a:1"}, Value: a}, {Labels: map[string]string{"node": "b:1"}, Value: b}}}
	}
	s := State{Service: "serve", Metrics: Metrics{"polder_pool_node_up": samples(1, 1), "polder_pool_node_leaving": samples(0, 1)}}
	var b bytes.Buffer
	if err := s.Print(&b); err != nil || !strings.Contains(b.String(), "a:1: up,") || !strings.Contains(b.String(), "b:1: leaving,") {
		t.Errorf("got %v, %s", err, b.String())
	}
}

// TestStatusDoesNotCountWhatPartitionsShare: each of them sees all that a node has yet to lend, and has borrowed a part.
func TestStatusDoesNotCountWhatPartitionsShare(t *testing.T) {
	samples := func(a, b float64) *Metric {
		return &Metric{Samples: []Sample{{Labels: map[string]string{"node": "a:1", "partition": "0"}, Value: a}, {Labels: map[string]string{"node": "a:1", "partition": "1"}, Value: b}}}
	}
	s := State{Service: "serve", Metrics: Metrics{"polder_pool_node_up": samples(1, 1), "polder_pool_borrowed_bytes": samples(1<<20, 2<<20), "polder_pool_available_bytes": samples(7<<20, 8<<20)}}
	var b bytes.Buffer
	if err := s.Print(&b); err != nil || !strings.Contains(b.String(), "a:1: up, 3 MiB borrowed, 8 MiB more to be had") {
		t.Errorf("got %v, %s", err, b.String())
	}
}
