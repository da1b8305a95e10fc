package ratelog

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func lines(b *bytes.Buffer) int { return strings.Count(b.String(), "\n") }

func TestAMessageHasABurstAndThenALineNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := Bound(slog.New(slog.NewTextHandler(&out, nil)))
		for range 10_000 {
			l.Warn("refused", "peer", "somebody")
		}
		if got := lines(&out); got != Burst {
			t.Errorf("10,000 at once: got %d lines, want %d", got, Burst)
		}
		l.Warn("something else")
		if got := lines(&out); got != Burst+1 {
			t.Errorf("another message: got %d lines, want %d", got, Burst+1)
		}

		out.Reset()
		const minutes = 10
		for range minutes * 60 * 10 {
			time.Sleep(100 * time.Millisecond)
			l.Warn("refused", "peer", "somebody")
		}
		if got, want := lines(&out), int(minutes*time.Minute/Every); got != want {
			t.Errorf("ten a second for %d minutes: got %d lines, want %d", minutes, got, want)
		}
		if first, _, _ := strings.Cut(out.String(), "\n"); !strings.Contains(first, fmt.Sprint(" left_out=", 10_000-Burst+99)) {
			t.Errorf("got %q, want it to say how many lines were left out", first)
		}

		out.Reset()
		time.Sleep(time.Hour)
		for range 100 {
			l.Warn("refused")
		}
		if got := lines(&out); got != Burst {
			t.Errorf("after an hour of silence: got %d lines, want %d", got, Burst)
		}
	})
}

func TestEverythingIsCounted(t *testing.T) {
	var out bytes.Buffer
	l := Bound(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError})))
	if Bound(l) != l {
		t.Error("a bounded logger was bounded again: its counts would be split")
	}
	for range 100 {
		l.Warn("refused", "peer", 1)
		l.With("node", "a").WithGroup("g").Warn("refused")
	}
	l.Error("refused")
	l.Info("hello")
	l.Debug("not of interest")
	want := map[Message]uint64{
		{slog.LevelWarn, "refused"}:  200,
		{slog.LevelError, "refused"}: 1,
		{slog.LevelInfo, "hello"}:    1,
	}
	if got := maps.Collect(Counts(l.With("a", "b"))); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := lines(&out); got != 1 {
		t.Errorf("got %d lines of level error, want 1:\n%s", got, &out)
	}
	if got := maps.Collect(Counts(slog.Default())); len(got) > 0 {
		t.Errorf("a logger that is not bounded has counts: %v", got)
	}
}

func TestTextThatVariesCostsNoMemory(t *testing.T) {
	l := Bound(slog.New(slog.NewTextHandler(io.Discard, nil)))
	for i := range 10 * maxMessages {
		l.Warn(fmt.Sprint("peer ", i))
	}
	counts := maps.Collect(Counts(l))
	if len(counts) != maxMessages+1 {
		t.Errorf("got %d messages, want %d", len(counts), maxMessages+1)
	}
	if got := counts[Message{slog.LevelWarn, others}]; got != 9*maxMessages {
		t.Errorf("got %d others, want %d", got, 9*maxMessages)
	}
}

func TestWhatIsLeftOutAllocatesNothing(t *testing.T) {
	l := Bound(slog.New(slog.NewTextHandler(io.Discard, nil)))
	for range Burst {
		l.Warn("refused")
	}
	if n := testing.AllocsPerRun(1000, func() { l.Warn("refused") }); n > 0 {
		t.Errorf("got %v allocations for a line that is not written, want 0", n)
	}
}
