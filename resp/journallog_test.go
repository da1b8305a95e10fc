package resp

import (
	"context"
	"slices"
	"sync"
	"testing"
)

// memLog is a RecordLog as nodes keep it: what the next owner replays is dropped when it begins.
type memLog struct {
	mu   sync.Mutex
	recs [][]byte
	n    uint64
}

func (l *memLog) Begin(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recs = nil
	return nil
}

func (l *memLog) Append(rec []byte) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	l.recs = append(l.recs, slices.Clone(rec))
	return l.n, nil
}

func (l *memLog) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *memLog) Snapshot([]byte) (save func() error, discard func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.recs)
	return func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.recs = slices.Delete(l.recs, 0, n)
		return nil
	}, func() {}
}

func (l *memLog) MaxRecord() int            { return 1 << 20 }
func (l *memLog) Commit(uint64, bool) error { return nil }
func (l *memLog) Copies() (int, bool)       { return 2, false }
func (l *memLog) Starved() error            { return nil }
func (l *memLog) Close() error              { return nil }

// TestALogIsDroppedWhenACheckpointHasIt: what was replayed survives a second crash at once, and after an end in good order there is
// nothing to be kept, so that no checkpoint is taken.
func TestALogIsDroppedWhenACheckpointHasIt(t *testing.T) {
	log := new(memLog)
	k := newKept(t, Journal{Durable: true, Log: func(_ context.Context, replay func(rec []byte) error) (RecordLog, error) {
		for _, rec := range log.recs {
			if err := replay(rec); err != nil {
				return nil, err
			}
		}
		return log, nil
	}})
	crash := func() {
		t.Helper()
		log.mu.Lock()
		left := slices.Clone(log.recs)
		log.mu.Unlock()
		log = &memLog{recs: left} // what the old server does as it ends is not seen
		k.crash()
	}
	k.do("SET", "a", "1")
	for range 2 {
		crash()
		if got := k.do("GET", "a"); got != "$1\r\n1\r\n" {
			t.Fatalf("after a crash: %q", got)
		}
	}
	k.do("SET", "b", "2")
	k.abandon() // which ends it in good order
	k.open()
	if at := k.heap.LastCheckpoint(); at.After(k.srv.since) {
		t.Errorf("a checkpoint was taken at the opening, %v after the server was made", at.Sub(k.srv.since))
	}
	crash()
	if got := k.do("GET", "b"); got != "$1\r\n2\r\n" {
		t.Errorf("after an end in good order, and a crash: %q", got)
	}
}
