package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"polder/internal/config"
	"polder/internal/console"
)

// report is what the demonstration showed.
type report struct {
	dir          string
	files        int   // found
	bytes        int64 // in them
	local, limit int64 // the server's budget; its largest value

	store, fetch   time.Duration
	keys           int   // stored
	stored         int64 // bytes
	tooLarge       int   // files that the server does not take
	different      []string
	serverResident int64
	nodeResident   int64
	status         *console.State
}

// count adds what became of f.
func (r *report) count(f *file) {
	switch {
	case !f.stored:
		r.tooLarge++
		return
	case !f.equal:
		r.different = append(r.different, f.path)
	}
	r.keys++
	r.stored += f.size
}

func (r *report) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) // Flush returns the error
	}
	row("keys", "%d", r.keys)
	row("bytes", "%s, %.1f times the local budget of %s", mib(r.stored), float64(r.stored)/float64(r.local), config.FormatSize(r.local))
	if r.tooLarge > 0 {
		row("left out", "%d files larger than the server's limit of %s", r.tooLarge, config.FormatSize(r.limit))
	}
	row("stored", "in %s, %s/s", seconds(r.store), mib(int64(float64(r.stored)/r.store.Seconds())))
	row("read back", "in %s, %s/s", seconds(r.fetch), mib(int64(float64(r.stored)/r.fetch.Seconds())))
	row("SHA-256", "%d of %d the same", r.keys-len(r.different), r.keys)
	m := r.status.Metrics
	row("local hits", "%d of %d files", max(0, int64(r.keys)-m.Int("polder_far_prefetched_total")), r.keys)
	row("far reads", "%d entries and pieces of entries", m.Int("polder_far_fetches_total"))
	row("bytes moved", "%s to the node, %s from it", mib(m.Int("polder_pool_written_bytes_total")), mib(m.Int("polder_pool_read_bytes_total")))
	row("resident", "server %s, node %s", mib(r.serverResident), mib(r.nodeResident))
	return t.Flush()
}

// verdict is an error if what came back is not what was stored.
func (r *report) verdict() error {
	if len(r.different) == 0 {
		return nil
	}
	return fmt.Errorf("%d files are not what they were: %s", len(r.different), strings.Join(r.different[:min(len(r.different), 10)], ", "))
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
