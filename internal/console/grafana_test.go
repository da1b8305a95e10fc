package console

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"polder/internal/docpage"
)

// TestTheDashboardIsMadeOfThePanels makes docs/grafana.json. A test of package robustness
// sees that there are all the metrics that panels name.
func TestTheDashboardIsMadeOfThePanels(t *testing.T) {
	b, err := json.MarshalIndent(dashboard(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	docpage.Check(t, "../../docs/grafana.json", string(b)+"\n")
}

type object = map[string]any

// dashboard is what Grafana imports: a plot for each panel, two in a row.
func dashboard() object {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var panels []object
	for i, p := range Panels {
		var targets []object
		for j, l := range p.Lines {
			expr, legend := query(l)
			targets = append(targets, object{"refId": string(rune('A' + j)), "datasource": source, "expr": expr, "legendFormat": legend})
		}
		stacking := "none"
		if p.Stacked {
			stacking = "normal"
		}
		panels = append(panels, object{
			"id": i + 1, "type": "timeseries", "title": p.Title, "datasource": source, "targets": targets,
			"gridPos": object{"x": i % 2 * 12, "y": i / 2 * 7, "w": 12, "h": 7},
			"fieldConfig": object{"overrides": []any{}, "defaults": object{"unit": grafanaUnits[p.Unit], "min": 0,
				"custom": object{"fillOpacity": map[bool]int{true: 60}[p.Stacked], "stacking": object{"mode": stacking}}}},
			"options": object{"tooltip": object{"mode": "multi"}, "legend": object{"displayMode": "list", "placement": "bottom"}},
		})
	}
	return object{
		"title": "Polder", "uid": "polder", "schemaVersion": 39, "version": 1, "editable": true, "refresh": "10s",
		"time": object{"from": "now-1h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
			{"name": "instance", "label": "Daemon", "type": "query", "datasource": source, "query": "label_values(polder_build_info, instance)",
				"includeAll": true, "multi": true, "refresh": 2, "current": object{"text": "All", "value": "$__all"}},
		}},
	}
}

var grafanaUnits = map[string]string{Bytes: "bytes", PerSecond: "ops", BytesRate: "Bps", Seconds: "s", Number: "short", Cores: "short"}

// query is a line in Prometheus's language, and its name.
func query(l Line) (expr, legend string) {
	sel := `instance=~"$instance"`
	if label, value, ok := strings.Cut(l.Match, "="); ok {
		sel += fmt.Sprintf(`, %s=%q`, label, value)
	}
	by, legend := "instance", "{{instance}} "+l.Name
	if l.By != "" {
		by, legend = "instance, "+l.By, "{{instance}} {{"+l.By+"}}"
	}
	switch l.Kind {
	case Rate:
		expr = fmt.Sprintf("sum by (%s) (rate(%s{%s}[$__rate_interval]))", by, l.Metric, sel)
		if l.Less != "" {
			expr += fmt.Sprintf(" - sum by (%s) (rate(%s{%s}[$__rate_interval]))", by, l.Less, sel)
		}
		return expr, legend
	case Quantile:
		return fmt.Sprintf("histogram_quantile(%g, sum by (%s, le) (rate(%s_bucket{%s}[$__rate_interval])))", l.Q, by, l.Metric, sel), legend
	}
	return fmt.Sprintf("sum by (%s) (%s{%s})", by, l.Metric, sel), legend
}
