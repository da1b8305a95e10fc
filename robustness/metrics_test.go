package robustness

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"polder/internal/child"
	"polder/internal/console"
	"polder/internal/proctest"
	"polder/pool/finemem"
)

// TestEveryDaemonsMetricsKeepTheConventions: what "promtool check metrics" complains
// of is no metric of ours; and whatever the console and polder top plot is a metric
// of some daemon.
func TestEveryDaemonsMetricsKeepTheConventions(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	node := proctest.Start(t, "node", "--lend", "64MiB")
	fine := proctest.Start(t, "node", "--lend", "64MiB", "--manager", finemem.Name, "--service-secret-file", secret)
	socket := filepath.Join(dir, "soft")
	daemons := map[string]*child.Process{
		"node": node, "a node with finemem": fine,
		"serve":       proctest.Start(t, "serve", "--far", node.Addr("verbs"), "--local", "8MiB"),
		"broker":      proctest.Run(t, "broker", "--listen", filepath.Join(dir, "broker"), "--far", fine.Addr("verbs"), "--service-secret-file", secret),
		"coordinator": proctest.Run(t, "coordinator", "--socket", socket),
		"share":       proctest.Run(t, "share", "--dir", filepath.Join(dir, "state"), "--socket", filepath.Join(dir, "s"), "--pool", "memfd:1MiB"),
	}
	daemons["a cache"] = proctest.Start(t, "serve", "--tier", "soft", "--coordinator", socket)
	there := map[string]bool{}
	proctest.Until(t, "the coordinator knows the cache", func() bool {
		return proctest.State(t, daemons["coordinator"]).Metrics.Has("polder_coordinator_client_granted_bytes")
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for name, d := range daemons {
		resp, err := client.Get("http://" + d.Addr("admin") + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.New(resp.Body).Lint()
		_ = resp.Body.Close()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
		}
		for metric := range proctest.State(t, d).Metrics {
			there[metric] = true
		}
	}
	for _, p := range console.Panels {
		for _, l := range p.Lines {
			if !there[l.Metric] {
				t.Errorf("the panel %q plots %s, which no daemon has", p.Title, l.Metric)
			}
		}
	}
	rules, err := os.ReadFile(filepath.Join("..", "docs", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bpolder_[a-z_]+`).FindAllString(string(rules), -1)
	for _, metric := range named {
		if !there[metric] {
			t.Errorf("docs/alerts.yml names %s, which no daemon has", metric)
		}
	}
	if len(named) < 10 {
		t.Errorf("docs/alerts.yml names %d metrics: is it the file?", len(named))
	}
}
