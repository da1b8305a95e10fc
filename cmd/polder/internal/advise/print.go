package advise

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"polder/internal/config"
	"polder/internal/console"
)

// width is how long the longest bar is, in characters.
const width = 50

// Print writes the curve for people.
func (c *Curve) Print(w io.Writer, s *Sample) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d keys, %s; %.0f uses of a key a second; %d keys looked at\n", c.Keys, console.FormatBytes(float64(c.Bytes)), c.Accesses, len(s.Looked))
	if s.Foreign > 0 {
		fmt.Fprintf(&b, "%s of the keys are neither strings nor hashes, which polder serve does not have\n", percent(float64(s.Foreign)/float64(len(s.Looked))))
	}
	fmt.Fprintf(&b, "\n%10s  reads and writes that find their key local\n", "--local")
	for _, n := range c.Budgets() {
		hits, atLeast := c.Hits(n)
		note := ""
		if atLeast {
			note = " or more"
		}
		fmt.Fprintf(&b, "%10s %5s  %s%s\n", config.FormatSize(n), percent(hits), strings.Repeat("#", int(hits*width+0.5)), note)
	}
	b.WriteString("\n")
	for _, want := range []float64{0.8, 0.9, 0.95} {
		fmt.Fprintf(&b, "%s local: polder serve --local %s\n", percent(want), config.FormatSize(max(c.Budget(want), 4<<20)))
	}
	fmt.Fprintf(&b, "lend at least %s in all: polder node --lend\n", console.FormatBytes(float64(c.Far())))
	_, err := io.WriteString(w, b.String())
	return err
}

// PrintJSON writes the curve for programs, as one JSON object.
func (c *Curve) PrintJSON(w io.Writer, s *Sample) error {
	type size struct {
		Local    int64   `json:"local_bytes"`
		HitRatio float64 `json:"hit_ratio"`
		AtLeast  bool    `json:"at_least,omitempty"` // the ratio may be better
	}
	out := struct {
		Keys      int64   `json:"keys"`
		Bytes     int64   `json:"bytes"`
		Accesses  float64 `json:"accesses_per_second"`
		Looked    int     `json:"keys_looked_at"`
		Unserved  int     `json:"keys_unserved"` // those of Looked that are neither strings nor hashes
		LendBytes int64   `json:"lend_bytes"`
		Curve     []size  `json:"curve"`
	}{c.Keys, c.Bytes, c.Accesses, len(s.Looked), s.Foreign, c.Far(), nil}
	for _, n := range c.Budgets() {
		hits, atLeast := c.Hits(n)
		out.Curve = append(out.Curve, size{n, hits, atLeast})
	}
	return json.NewEncoder(w).Encode(out)
}
