package ratelog

import (
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// MaxRecent is how many lines are kept to be shown, and maxText how long in bytes
// the text of one and its attributes may be.
const (
	MaxRecent = 50
	maxText   = 400
)

// Event is a line that was written.
type Event struct {
	Time  time.Time
	Level slog.Level
	Text  string
	Attrs string // such as " peer=127.0.0.1:4711"
}

// Recent returns the last lines that were written at level Info or above, the
// oldest first; none for a logger that Bound has not returned.
func Recent(l *slog.Logger) []Event {
	h, ok := l.Handler().(*handler)
	if !ok {
		return nil
	}
	h.book.mu.Lock()
	defer h.book.mu.Unlock()
	return slices.Clone(h.book.recent)
}

// event is what is kept of a line.
func (h *handler) event(r slog.Record) Event {
	return Event{r.Time, r.Level, bounded(r.Message), bounded(h.attrs + attrsText(r.Attrs))}
}

// keep keeps an event, and forgets the oldest if there are too many.
func (b *book) keep(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.recent) == MaxRecent {
		b.recent = slices.Delete(b.recent, 0, 1)
	}
	b.recent = append(b.recent, e)
}

// attrsText is how attributes are shown; those without a value are not.
func attrsText(attrs iter.Seq[slog.Attr]) string {
	var b strings.Builder
	attrs(func(a slog.Attr) bool {
		value := a.Value.Resolve().String()
		if value != "" && value != "<nil>" && b.Len() < maxText {
			b.WriteString(" " + a.Key + "=" + value)
		}
		return true
	})
	return b.String()
}

// bounded cuts text that is too long.
func bounded(s string) string {
	if len(s) <= maxText {
		return strings.Clone(s)
	}
	return strings.ToValidUTF8(s[:maxText], "") + "..."
}
