package robustness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"polder/far"
	"polder/far/prom"
	"polder/internal/child"
	"polder/internal/console"
	"polder/internal/docpage"
	"polder/internal/load"
	"polder/internal/proctest"
	"polder/internal/testcert"
	"polder/internal/testetcd"
	"polder/pool/finemem"
	"polder/soft"
	softprom "polder/soft/prom"
)

// exportsOfDaemons starts a daemon of each kind, with everything that has metrics, and
// returns what each exports.
func exportsOfDaemons(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	secret, password := filepath.Join(dir, "secret"), filepath.Join(dir, "password")
	for _, path := range []string{secret, password} {
		if err := os.WriteFile(path, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca := testcert.NewAuthority(t, "everybody")
	cert, key := ca.Issue(t, "node")
	cluster := "etcd://" + testetcd.New(t, 1)[0].Addr + "/metrics"
	node := proctest.Start(t, "node", "--lend", "64MiB", "--component-memory", "16MiB", "--component-client-memory", "8MiB", "--directory", cluster)
	fine := proctest.Start(t, "node", "--lend", "64MiB", "--manager", finemem.Name, "--service-secret-file", secret)
	socket, witnesses := filepath.Join(dir, "soft"), startWitnesses(t)
	daemons := map[string]*child.Process{
		"node": node, "node with finemem": fine,
		"node with TLS":      proctest.Start(t, "node", "--lend", "64MiB", "--tls-cert", cert, "--tls-key", key, "--tls-ca", ca.File),
		"serve":              proctest.Start(t, "serve", "--far", cluster, "--local", "8MiB", "--password-file", password, "--idle-timeout", "1h", "--heap", "orders", "--witness", witnesses),
		"serve --partitions": proctest.Start(t, "serve", "--far", cluster, "--local", "8MiB", "--heap", "shared", "--witness", witnesses, "--partitions", "2"),
		"block":              proctest.Start(t, "block", "--far", node.Addr("verbs"), "--local", "8MiB", "--size", "1GiB"),
		"pager":              proctest.Run(t, "pager", "--listen", "unix:"+filepath.Join(dir, "pager"), "--far", node.Addr("verbs"), "--local", "8MiB"),
		"broker":             proctest.Run(t, "broker", "--listen", filepath.Join(dir, "broker"), "--far", fine.Addr("verbs"), "--service-secret-file", secret),
		"witness":            proctest.Start(t, "witness", "--dir", filepath.Join(dir, "witness")),
		"coordinator":        proctest.Run(t, "coordinator", "--socket", socket),
		"serve files":        proctest.RunCommand(t, child.Command{Path: proctest.Binary(), Args: []string{"serve", "files", dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--coordinator", "off"}}),
		"share": proctest.Run(t, "share", "--dir", filepath.Join(dir, "state"), "--socket", filepath.Join(dir, "s"), "--pool", "memfd:1MiB",
			"--maru", "tcp://127.0.0.1:0", "--maru-resources", "127.0.0.1:0"),
	}
	daemons["serve --tier soft"] = proctest.Start(t, "serve", "--tier", "soft", "--coordinator", socket)
	daemons["serve --origin"] = proctest.Start(t, "serve", "--tier", "soft", "--coordinator", "off", "--origin", "redis://127.0.0.1:1")
	proctest.Until(t, "the coordinator knows the cache", func() bool {
		return proctest.State(t, daemons["coordinator"]).Metrics.Has("polder_coordinator_client_granted_bytes")
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	all := map[string]string{"a Go program": aProgram(t)}
	for name, d := range daemons {
		resp, err := client.Get("http://" + d.Addr("admin") + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(b)
		rowsHaveNames(t, name, proctest.State(t, d))
	}
	return all
}

// rowsHaveNames checks that no two rows of what polder status prints have one name,
// unless they are of one kind.
func rowsHaveNames(t *testing.T, daemon string, s *console.State) {
	t.Helper()
	var b strings.Builder
	if err := s.Print(&b); err != nil {
		t.Fatal(err)
	}
	var last string
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^  (\S+(?: \S+)*)  `).FindAllStringSubmatch(b.String(), -1) {
		if name := m[1]; name != last && seen[name] {
			t.Errorf("the status of %s has two rows %q:\n%s", daemon, name, b.String())
		}
		last, seen[m[1]] = m[1], true
	}
}

// TestAReadIsLocalOrFar: what a server fetches for a client is found in local memory
// then, but that is one read.
func TestAReadIsLocalOrFar(t *testing.T) {
	node := startNode(t, "64MiB")
	server := startServer(t, node.Addr("verbs"), "8MiB")
	c := connect(t, server)
	const keys, reads = 20_000, 2_000
	fill(t, c, keys, 1000)
	counted := func() (local, far int64) {
		var b strings.Builder
		if err := proctest.State(t, server).Print(&b); err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`map +keys: \d+ entries, (\d+) reads local, (\d+) reads and writes needed far memory`).FindStringSubmatch(b.String())
		if m == nil {
			t.Fatalf("no reads are counted in:\n%s", b.String())
		}
		local, _ = strconv.ParseInt(m[1], 10, 64)
		far, _ = strconv.ParseInt(m[2], 10, 64)
		return local, far
	}
	localBefore, farBefore := counted()
	for i := range reads {
		if err := c.Get(t.Context(), string(load.Key(uint32(i*10)))).Err(); err != nil {
			t.Fatal(err)
		}
	}
	local, far := counted()
	local, far = local-localBefore, far-farBefore
	t.Logf("%d reads: %d local, %d far", reads, local, far)
	if far < reads/4 {
		t.Fatalf("%d of %d reads were far: want some", far, reads)
	}
	if got := local + far; got < reads || got > reads+reads/20 { // who has to fetch twice counts twice
		t.Errorf("%d reads count as %d local and %d far", reads, local, far)
	}
}

// aProgram is what a program exports that uses pointers and soft memory by itself.
func aProgram(t *testing.T) string {
	t.Helper()
	h, err := far.NewHeap(far.NewMemStore(1<<20, 8), far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	a, err := far.NewArray[int64](t.Context(), h, 1000, far.StructureConfig{Name: "numbers"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Free)
	s, err := soft.Open(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	p, err := soft.NewPool(s, soft.PoolConfig[int, int]{Rebuild: func(_ context.Context, k int) (int, error) { return k, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if _, err := p.GetOrRebuild(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(prom.NewCollector(h), softprom.NewCollector(s))
	w := &recorder{header: http.Header{}}
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, &http.Request{Method: "GET", Header: http.Header{}})
	return w.String()
}

type recorder struct {
	bytes.Buffer
	header http.Header
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(int)     {}

// exported is a metric as Prometheus's text format has it.
type exported struct {
	kind, help string
	labels, of []string
}

var (
	helpLine = regexp.MustCompile(`^# HELP (\S+) (.*)$`)
	typeLine = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	labelsOf = regexp.MustCompile(`^([a-z_]+?)(?:_bucket|_sum|_count)?\{(.*)\} `)
	label    = regexp.MustCompile(`([a-z_]+)="`)
)

// exports are the metrics of all daemons, by name.
func exports(all map[string]string) map[string]*exported {
	list := map[string]*exported{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for line := range strings.Lines(all[name]) {
			line = strings.TrimSpace(line)
			if m := helpLine.FindStringSubmatch(line); m != nil {
				if list[m[1]] == nil {
					list[m[1]] = &exported{help: m[2]}
				}
				list[m[1]].of = append(list[m[1]].of, name)
			} else if m := typeLine.FindStringSubmatch(line); m != nil {
				list[m[1]].kind = m[2]
			} else if m := labelsOf.FindStringSubmatch(line); m != nil {
				e := list[m[1]]
				for _, l := range label.FindAllStringSubmatch(m[2], -1) {
					if e != nil && l[1] != "le" && !slices.Contains(e.labels, l[1]) {
						e.labels = append(e.labels, l[1])
					}
				}
			}
		}
	}
	return list
}

// TestEveryDaemonsMetricsKeepTheConventions: what "promtool check metrics" complains
// of is no metric of ours; whatever the console, polder top, the dashboard and the alert
// rules name is a metric of some daemon; and docs/reference/metrics.md lists them.
func TestEveryDaemonsMetricsKeepTheConventions(t *testing.T) {
	t.Parallel()
	all := exportsOfDaemons(t)
	for name, text := range all {
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
		}
	}
	there := exports(all)
	for _, p := range console.Panels {
		for _, l := range p.Lines {
			for _, metric := range []string{l.Metric, l.Less} {
				if metric != "" && there[metric] == nil {
					t.Errorf("the panel %q plots %s, which no daemon has", p.Title, metric)
				}
			}
		}
	}
	// Texts that name metrics. A name that ends in an underscore stands for several.
	for path, least := range map[string]int{"../docs/alerts.yml": 9, "../docs/grafana.json": 30, "../docs/reference/errors.md": 3} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`\bpolder_[a-z_]+`).FindAllString(string(b), -1)
		for _, metric := range named {
			if there[metric] == nil && there[strings.TrimSuffix(metric, "_bucket")] == nil {
				t.Errorf("%s names %s, which no daemon has", path, metric)
			}
		}
		if len(named) < least {
			t.Errorf("%s names %d metrics: is it the file?", path, len(named))
		}
	}
	docpage.Check(t, "../docs/reference/metrics.md", metricsPage(there))
}

func metricsPage(there map[string]*exported) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\n" +
		"Every daemon exports its metrics at `/metrics` of its administrative address. A metric is there only where it can be other than 0: " +
		"those that are about TLS need a certificate, those about passwords a password. `go_…` and `process_…` are what every Go program has. " +
		"[monitor.md](../how-to/monitor.md) has alerts and a dashboard.\n\n" +
		"This page is made by `make docs`, of what the daemons export.\n\n" +
		"| metric | kind | labels | of | |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(there)) {
		e := there[name]
		if !strings.HasPrefix(name, "polder_") {
			continue
		}
		slices.Sort(e.labels)
		slices.Sort(e.of)
		of := strings.Join(e.of, ", ")
		if len(e.of) >= 8 {
			of = "all"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, e.kind, strings.Join(e.labels, ", "), of, strings.ReplaceAll(e.help, "|", "\\|"))
	}
	return b.String()
}
