// Package ratelog bounds what is logged about strangers, and counts it.
//
// Whoever reaches a daemon can make it log something: by connecting and leaving,
// by talking nonsense, by using up its descriptors. Written one by one, such
// lines would fill its disk. So every message gets [Burst] lines at once and then
// one each [Every], which says how many were left out meanwhile; and every
// message is counted, written or not. Package admin shows the counts as
// polder_log_messages_total, and the last lines that were written as events.
//
// A message is the constant text that a call of slog begins with, together with
// its level. What varies belongs into attributes.
//
// Loggers of this package may be used by any number of goroutines.
package ratelog

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// How many lines a message may have: Burst at once, and one more each Every.
const (
	Burst = 20
	Every = 10 * time.Second
)

// maxMessages bounds how many messages are told apart. The program has far
// fewer; if text that varies gets into a message, that must not cost memory.
const maxMessages = 512

// others stands for the messages beyond maxMessages.
const others = "(other messages)"

// A Message is what is counted and bounded by itself.
type Message struct {
	Level slog.Level
	Text  string
}

// Bound returns a logger that writes to where l does, within bounds. What it is
// given is counted from level Info on, even if l does not write it. If l is of
// this package already, it is returned as it is, and goes on counting where it
// did.
func Bound(l *slog.Logger) *slog.Logger {
	if _, ok := l.Handler().(*handler); ok {
		return l
	}
	return slog.New(&handler{next: l.Handler(), book: &book{entries: make(map[Message]*entry)}})
}

// Counts returns how often each message was logged. It has none for a logger that
// Bound has not returned.
func Counts(l *slog.Logger) iter.Seq2[Message, uint64] {
	return func(yield func(Message, uint64) bool) {
		h, ok := l.Handler().(*handler)
		if !ok {
			return
		}
		for m, n := range h.book.counts() {
			if !yield(m, n) {
				return
			}
		}
	}
}

// handler is a slog.Handler.
type handler struct {
	next  slog.Handler
	book  *book  // shared with the handlers that WithAttrs and WithGroup have made
	attrs string // of WithAttrs, as Recent shows them
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	leftOut, write := h.book.enter(Message{r.Level, r.Message}, h.next.Enabled(ctx, r.Level))
	if !write {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("left_out", leftOut))
	}
	if r.Level >= slog.LevelInfo {
		h.book.keep(h.event(r))
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrs), h.book, h.attrs + attrsText(slices.Values(attrs))}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.next.WithGroup(name), h.book, h.attrs}
}

// book is the account of all messages.
type book struct {
	mu      sync.Mutex
	entries map[Message]*entry // guarded by mu
	recent  []Event            // guarded by mu; the oldest first, at most MaxRecent
}

// entry is the account of one message.
type entry struct {
	count   uint64
	leftOut uint64    // since the last line
	paid    time.Time // the lines that were written use up one Every each, until then
}

// enter counts a message. It reports whether a line may be written, and how many
// were left out before it.
func (b *book) enter(m Message, enabled bool) (leftOut uint64, write bool) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[m]
	if e == nil && len(b.entries) >= maxMessages {
		m.Text = others
		e = b.entries[m]
	}
	if e == nil {
		e = &entry{}
		b.entries[m] = e
	}
	e.count++
	if !enabled {
		return 0, false
	}
	if e.paid.Before(now) {
		e.paid = now
	}
	if e.paid.Sub(now) > (Burst-1)*Every {
		e.leftOut++
		return 0, false
	}
	e.paid = e.paid.Add(Every)
	leftOut, e.leftOut = e.leftOut, 0
	return leftOut, true
}

func (b *book) counts() map[Message]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := make(map[Message]uint64, len(b.entries))
	for k, e := range b.entries {
		m[k] = e.count
	}
	return m
}
