package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"polder/internal/failpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memDir returns a fresh directory, in memory where there is such a place: the
// tests open thousands of logs.
func memDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "wal")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// reopen opens the log and returns the records that it replays.
func reopen(dir string, opt Options) (*Log, []string, Recovery, error) {
	var recs []string
	l, found, err := Open(dir, opt, func(rec []byte) error {
		recs = append(recs, string(rec))
		return nil
	})
	return l, recs, found, err
}

func mustOpen(t *testing.T, dir string, opt Options) (*Log, []string) {
	t.Helper()
	l, recs, _, err := reopen(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, recs
}

func appendAll(t *testing.T, l *Log, recs ...string) {
	t.Helper()
	for _, r := range recs {
		lsn, err := l.Append([]byte(r))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Commit(lsn, false); err != nil {
			t.Fatal(err)
		}
	}
}

func number(from, to int) []string {
	var recs []string
	for i := from; i < to; i++ {
		recs = append(recs, fmt.Sprintf("record %d %s", i, strings.Repeat("x", i%40)))
	}
	return recs
}

func TestReplayReturnsWhatWasCommitted(t *testing.T) {
	dir := memDir(t)
	opt := Options{SegmentSize: 4 << 10}
	want := number(0, 1000) // several segments
	l, _ := mustOpen(t, dir, opt)
	appendAll(t, l, want[:600]...)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, got := mustOpen(t, dir, opt)
	if !slices.Equal(got, want[:600]) {
		t.Fatalf("replayed %d records, want 600", len(got))
	}
	appendAll(t, l, want[600:]...)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, got = mustOpen(t, dir, opt); !slices.Equal(got, want) {
		t.Fatalf("replayed %d records, want 1000", len(got))
	}
}

func TestCheckpointStandsForWhatCameBefore(t *testing.T) {
	dir := memDir(t)
	opt := Options{SegmentSize: 4 << 10}
	l, _ := mustOpen(t, dir, opt)
	for round := range 3 {
		appendAll(t, l, number(0, 300)...)
		snap := l.Snapshot()
		appendAll(t, l, "after")
		snap.Add([]byte(fmt.Sprintf("state %d", round)))
		if err := l.Save(snap); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, got := mustOpen(t, dir, opt)
	if want := []string{"state 2", "after"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	names, err := list(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(names.checkpoints) != 1 || len(names.segments) != 1 {
		t.Fatalf("got %d checkpoints and %d segments, want 1 and 1", len(names.checkpoints), len(names.segments))
	}
}

// What others add to a checkpoint while a part of it is written is in it.
func TestRecordsAddedWhileACheckpointIsWrittenAreInIt(t *testing.T) {
	dir := memDir(t)
	l, _ := mustOpen(t, dir, Options{})
	snap := l.Snapshot()
	var want []string
	add := func(n, size int) {
		rec := fmt.Sprintf("%0*d", size, n)
		want = append(want, rec)
		snap.Add([]byte(rec))
	}
	parts := 0
	failpoint.Set(func(name string) {
		if name == "wal.checkpoint-part" {
			parts++
			for n := range 100 {
				add(n, 1000)
			}
		}
	})
	defer failpoint.Set(nil)
	for n := range 20 {
		add(n, partBytes/4)
		if err := snap.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	failpoint.Set(nil)
	if parts < 4 {
		t.Fatalf("the checkpoint was written in %d parts, want several", parts)
	}
	if err := errors.Join(l.Save(snap), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, got := mustOpen(t, dir, Options{}); !slices.Equal(got, want) {
		t.Fatalf("got %d records, want %d, or in another order", len(got), len(want))
	}
}

func TestConcurrentCommitsAreGroupedAndKeepTheirOrder(t *testing.T) {
	dir := memDir(t)
	l, _ := mustOpen(t, dir, Options{SegmentSize: 8 << 10})
	const writers, each = 8, 200
	var order sync.Mutex
	var appended []string
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				rec := fmt.Sprintf("%d/%d", w, i)
				order.Lock()
				lsn, err := l.Append([]byte(rec))
				appended = append(appended, rec)
				order.Unlock()
				if err == nil {
					err = l.Commit(lsn, i%20 == 0)
				}
				if err != nil || l.Committed() < lsn {
					t.Errorf("commit of %d: %v; committed up to %d", lsn, err, l.Committed())
					return
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, got := mustOpen(t, dir, Options{SegmentSize: 8 << 10}); !slices.Equal(got, appended) {
		t.Fatalf("replayed %d records in another order than they were appended, want %d", len(got), len(appended))
	}
}

// TestNothingIsPromisedAfterASyncThatFailed has a sync fail during a write.
func TestNothingIsPromisedAfterASyncThatFailed(t *testing.T) {
	l, _, err := Open(t.TempDir(), Options{}, func([]byte) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	lsn, err := l.Append([]byte("record"))
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("the disk is gone")
	failpoint.Set(func(name string) {
		if name == "wal.after-write" {
			l.mu.Lock()
			l.failed = failed
			l.mu.Unlock()
		}
	})
	err = l.Commit(lsn, false)
	failpoint.Set(nil)
	if !errors.Is(err, failed) {
		t.Errorf("Commit = %v, want %v", err, failed)
	}
	if err := l.Commit(lsn, false); !errors.Is(err, failed) || l.Committed() >= lsn {
		t.Errorf("Commit = %v with %d records committed, want %v and less than %d", err, l.Committed(), failed, lsn)
	}
	if err := l.Close(); !errors.Is(err, failed) {
		t.Errorf("Close = %v, want %v", err, failed)
	}
}

// holdSync appends a record and has it synced, by a sync that ends when release is
// closed, as all do until then.
func holdSync(t *testing.T, l *Log) (lsn uint64, release chan struct{}, durable <-chan error) {
	t.Helper()
	syncing, release := make(chan struct{}, 100), make(chan struct{})
	failpoint.Set(func(name string) {
		if name == "wal.after-sync" {
			syncing <- struct{}{}
			<-release
		}
	})
	lsn, err := l.Append([]byte("to be synced"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.Commit(lsn, true) }()
	<-syncing
	return lsn, release, done
}

func TestWritingGoesOnDuringASync(t *testing.T) {
	l, _ := mustOpen(t, memDir(t), Options{})
	first, release, done := holdSync(t, l)
	second, err := l.Append([]byte("only to be written"))
	if err == nil {
		err = l.Commit(second, false)
	}
	if err != nil || l.Committed() != second {
		t.Errorf("during a sync: %v, committed up to %d, want %d", err, l.Committed(), second)
	}
	if l.Synced() >= first {
		t.Errorf("synced up to %d before the sync has ended", l.Synced())
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	failpoint.Set(nil)
	if got := l.Synced(); got != first {
		t.Errorf("synced up to %d, want %d: the second was written after the sync had begun", got, first)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// history writes a small log: a checkpoint and two segments behind it.
func history(t *testing.T) (dir string, want []string) {
	t.Helper()
	dir = memDir(t)
	l, _ := mustOpen(t, dir, Options{SegmentSize: 4 << 10})
	appendAll(t, l, number(0, 5)...)
	snap := l.Snapshot()
	for _, r := range number(100, 103) {
		snap.Add([]byte(r))
	}
	if err := l.Save(snap); err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, number(5, 85)...)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, want = mustOpen(t, dir, Options{SegmentSize: 4 << 10})
	names, err := list(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(names.segments) < 2 || len(names.checkpoints) != 1 {
		t.Fatalf("the history has %d segments and %d checkpoints, want 2 or more and 1", len(names.segments), len(names.checkpoints))
	}
	return dir, want
}

// damaged copies a history and changes one file of it.
func damaged(t *testing.T, dir, name string, change func([]byte) []byte) string {
	t.Helper()
	copied := filepath.Join(memDir(t), "copy")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(copied, name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return copied
}

func isPrefix(got, want []string) bool {
	return len(got) <= len(want) && slices.Equal(got, want[:len(got)])
}

func TestLostSectorOfTheLastWriteIsATornTail(t *testing.T) {
	dir := memDir(t)
	l, _ := mustOpen(t, dir, Options{SegmentSize: 16 << 10})
	appendAll(t, l, "kept", strings.Repeat("y", 3*sectorSize))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	copied := damaged(t, dir, filepath.Base(segPath(dir, 1)), func(b []byte) []byte {
		clear(b[2*sectorSize : 3*sectorSize])
		return b
	})
	_, got := mustOpen(t, copied, Options{SegmentSize: 16 << 10})
	if want := []string{"kept"}; !slices.Equal(got, want) {
		t.Fatalf("got %d records, want %q", len(got), want)
	}
}

func TestLostSectorBeforeTheLastWriteIsCorruption(t *testing.T) {
	dir := memDir(t)
	l, _ := mustOpen(t, dir, Options{SegmentSize: 16 << 10})
	appendAll(t, l, "kept", strings.Repeat("y", 3*sectorSize), "acknowledged", "later")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	copied := damaged(t, dir, filepath.Base(segPath(dir, 1)), func(b []byte) []byte {
		clear(b[2*sectorSize : 3*sectorSize])
		return b
	})
	if _, _, _, err := reopen(copied, Options{SegmentSize: 16 << 10}); !errors.As(err, new(*CorruptError)) {
		t.Fatalf("got %v, want a CorruptError", err)
	}
}

func TestUnsyncedWritesMayBeMissingAfterARestartOfTheMachine(t *testing.T) {
	for _, synced := range []bool{false, true} {
		dir := memDir(t)
		l, _ := mustOpen(t, dir, Options{SegmentSize: 16 << 10})
		appendAll(t, l, "kept", strings.Repeat("y", 3*sectorSize))
		if synced {
			if err := l.Commit(l.Last(), true); err != nil {
				t.Fatal(err)
			}
		}
		appendAll(t, l, "later", "and later")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		copied := damaged(t, dir, filepath.Base(segPath(dir, 1)), func(b []byte) []byte {
			clear(b[2*sectorSize : 3*sectorSize])
			return b
		})
		l, got, _, err := reopen(copied, Options{SegmentSize: 16 << 10, Restarted: true})
		switch {
		case synced && !errors.As(err, new(*CorruptError)):
			t.Errorf("a synced record is lost: got %v, want a CorruptError", err)
		case !synced && (err != nil || !slices.Equal(got, []string{"kept"})):
			t.Errorf("a record that was not synced is lost: got %d records, %v, want 1", len(got), err)
		}
		if err == nil {
			l.Close()
		}
	}
}

func TestWritingGoesOnAfterATornTail(t *testing.T) {
	dir := memDir(t)
	opt := Options{SegmentSize: 4 << 10}
	l, _ := mustOpen(t, dir, opt)
	appendAll(t, l, "one", "two")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	copied := damaged(t, dir, filepath.Base(segPath(dir, 1)), func(b []byte) []byte { return b[:segHeaderSize+frameSize+3+10] })
	l, got := mustOpen(t, copied, opt)
	if want := []string{"one"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	appendAll(t, l, "three")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, got = mustOpen(t, copied, opt); !slices.Equal(got, []string{"one", "three"}) {
		t.Fatalf("got %q, want one, three", got)
	}
}

func TestRecordsThatCannotBeAppended(t *testing.T) {
	l, _ := mustOpen(t, memDir(t), Options{SegmentSize: 4 << 10})
	if _, err := l.Append(nil); err == nil {
		t.Error("an empty record was appended")
	}
	if _, err := l.Append(make([]byte, 4<<10)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a record larger than a segment: got %v, want %v", err, ErrTooLarge)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("append to a closed log: got %v, want %v", err, ErrClosed)
	}
}

// FuzzRecovery feeds arbitrary bytes as a segment: recovery must say yes or
// no, and what it accepts it must be able to write to and read again.
func FuzzRecovery(f *testing.F) {
	good := segHeader(1)
	good = appendFrame(good, frame{group: 1, lsn: 1, payload: []byte("one")})
	good = appendFrame(good, frame{group: 2, lsn: 2, payload: []byte("two")})
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(append(slices.Clone(good), make([]byte, 600)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := memDir(t)
		if err := os.WriteFile(segPath(dir, 1), data, 0o600); err != nil {
			t.Fatal(err)
		}
		l, got, _, err := reopen(dir, Options{SegmentSize: 4 << 10})
		if err != nil {
			return
		}
		lsn, err := l.Append([]byte("more"))
		if err == nil {
			err = l.Commit(lsn, false)
		}
		if err = errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
		l, again, _, err := reopen(dir, Options{SegmentSize: 4 << 10})
		if err != nil {
			t.Fatalf("what was accepted once is refused: %v", err)
		}
		l.Close()
		if want := append(got, "more"); !slices.Equal(again, want) {
			t.Fatalf("got %q, want %q", again, want)
		}
	})
}

func BenchmarkAppendCommit(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("sync=%v", sync), func(b *testing.B) {
			l, _, _, err := reopen(b.TempDir(), Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			rec := make([]byte, 100)
			for b.Loop() {
				lsn, err := l.Append(rec)
				if err == nil {
					err = l.Commit(lsn, sync)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
