package wal

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/internal/failpoint"
)

// TestAppendDoesNotWaitForTheDisk: callers append under a lock that everybody
// needs, so going on to the next segment must not wait for a sync.
func TestAppendDoesNotWaitForTheDisk(t *testing.T) {
	dir := memDir(t)
	opt := Options{SegmentSize: 4 << 10}
	l, _ := mustOpen(t, dir, opt)
	_, release, durable := holdSync(t, l)
	want := number(0, 200) // more than two segments
	appended := make(chan error, 1)
	go func() {
		for _, r := range want {
			lsn, err := l.Append([]byte(r))
			if err == nil {
				err = l.Commit(lsn, false)
			}
			if err != nil {
				appended <- err
				return
			}
		}
		appended <- nil
	}()
	select {
	case err := <-appended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("records that fill segments wait for a sync of the first")
	}
	close(release)
	if err := <-durable; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	failpoint.Set(nil)
	if _, got := mustOpen(t, dir, opt); !slices.Equal(got, append([]string{"to be synced"}, want...)) && !t.Failed() {
		t.Errorf("%d records are replayed, or others, want %d", len(got), len(want)+1)
	}
}

// TestAnyUnsyncedSectorMayBeMissingAfterARestartOfTheMachine: segments are
// synced behind the records' back, so a restart may find a hole in one segment
// and the next one whole.
func TestAnyUnsyncedSectorMayBeMissingAfterARestartOfTheMachine(t *testing.T) {
	opt := Options{SegmentSize: 4 << 10}
	for _, test := range []struct {
		what      string
		durable   bool // something behind the hole says that it was on the medium
		restarted bool
		hole      func([]byte) []byte // in the first segment
	}{
		{"a sector", false, true, func(b []byte) []byte { clear(b[2*sectorSize : 3*sectorSize]); return b }},
		{"all from a sector on", false, true, func(b []byte) []byte { clear(b[2*sectorSize:]); return b }},
		{"everything", false, true, func(b []byte) []byte { clear(b); return b }},
		{"a sector that was synced", true, true, func(b []byte) []byte { clear(b[2*sectorSize : 3*sectorSize]); return b }},
		{"a sector, without a restart", false, false, func(b []byte) []byte { clear(b[2*sectorSize : 3*sectorSize]); return b }},
		{"all from a sector on, without a restart", false, false, func(b []byte) []byte { clear(b[2*sectorSize:]); return b }},
	} {
		dir := memDir(t)
		l, _, err := Open(dir, Options{SegmentSize: 4 << 10, noSync: true}, func([]byte) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		l.syncing = !test.durable // the disk takes its time: no record says that another is on the medium
		l.mu.Unlock()
		want := number(0, 90)
		appendAll(t, l, want...)
		l.mu.Lock()
		l.syncing = false
		l.flushed.Broadcast()
		l.mu.Unlock()
		if test.durable {
			if err := l.Commit(l.Last(), true); err != nil {
				t.Fatal(err)
			}
			appendAll(t, l, "after a sync")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if names, err := list(dir); err != nil || len(names.segments) < 2 {
			t.Fatalf("%d segments, %v, want several", len(names.segments), err)
		}
		copied := damaged(t, dir, filepath.Base(segPath(dir, 1)), test.hole)
		opt.Restarted = test.restarted
		l, got, _, err := reopen(copied, opt)
		if test.durable || !test.restarted {
			if !errors.As(err, new(*CorruptError)) {
				t.Errorf("%s is missing: got %v, want a CorruptError", test.what, err)
			}
			continue
		}
		if err != nil || !isPrefix(got, want) || len(got) == len(want) {
			t.Errorf("%s is missing: replayed %d records, %v, want some of the first", test.what, len(got), err)
			continue
		}
		appendAll(t, l, "goes on")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, again := mustOpen(t, copied, opt); !slices.Equal(again, append(got, "goes on")) {
			t.Errorf("%s is missing: after that %d records are replayed, want %d", test.what, len(again), len(got)+1)
		}
	}
}

// TestTheFileOfAnUnfinishedCheckpointIsUsedAgain: else each crash during a
// checkpoint would leave a file behind.
func TestTheFileOfAnUnfinishedCheckpointIsUsedAgain(t *testing.T) {
	dir := memDir(t)
	if err := os.WriteFile(ckptPath(dir, 7)+".tmp", make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	l, _ := mustOpen(t, dir, Options{SegmentSize: 4 << 10})
	snap := l.Snapshot()
	snap.Add([]byte("state"))
	if err := l.Save(snap); err != nil {
		t.Fatal(err)
	}
	if err := l.Reserve(10_000); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.ckpt*"))
	if err != nil || len(left) != 1 || !strings.HasSuffix(left[0], ".ckpt") {
		t.Errorf("checkpoints and parts of them: %q, %v, want one, whole", left, err)
	}
	if st, err := os.Stat(filepath.Join(dir, reserveName)); err != nil || st.Size() < 10_000 {
		t.Errorf("the reserve: %v, want 10000 bytes or more", err)
	}
	if _, got := mustOpen(t, dir, Options{SegmentSize: 4 << 10}); !slices.Equal(got, []string{"state"}) {
		t.Errorf("replayed %q, want the checkpoint's state", got)
	}
}
