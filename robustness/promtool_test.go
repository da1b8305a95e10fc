//go:build promtool

package robustness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPromtoolAcceptsEverything: Prometheus's own tool finds nothing wrong with the
// metrics of any daemon, the alert rules, or an expression of the dashboard.
func TestPromtoolAcceptsEverything(t *testing.T) {
	promtool := func(stdin string, args ...string) {
		t.Helper()
		cmd := exec.Command("promtool", args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for name, text := range exportsOfDaemons(t) {
		t.Log(name)
		promtool(text, "check", "metrics")
	}
	promtool("", "check", "rules", "../docs/alerts.yml")

	// Promtool does not know dashboards: each expression becomes a rule.
	b, err := os.ReadFile("../docs/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(b, &dashboard); err != nil {
		t.Fatal(err)
	}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	n := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			n++
			expr := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(target.Expr)
			fmt.Fprintf(&rules, "  - record: polder:%d\n    expr: %q\n", n, expr)
		}
	}
	if n < 40 {
		t.Errorf("the dashboard has %d expressions, want at least 40", n)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(path, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool("", "check", "rules", path)
}
