package dirlock

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestALockThatIsAboutToBeFreeIsWaitedFor, and the wait is said, once.
func TestALockThatIsAboutToBeFreeIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		log, dir := slog.New(slog.NewTextHandler(&said, nil)), t.TempDir()
		first, err := Lock(dir, log)
		if err != nil || said.Len() > 0 {
			t.Fatalf("locking what nobody uses: %v, and it says %q", err, said.String())
		}
		time.AfterFunc(patience/2, func() { first.Close() })
		second, err := Lock(dir, log)
		if err != nil {
			t.Fatalf("locking what is free soon: %v", err)
		}
		defer second.Close()
		if n := strings.Count(said.String(), "waiting"); n != 1 {
			t.Errorf("it says %q, want once that it waits", said.String())
		}
	})
}

func TestALockThatIsNotFreedIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, dir := slog.New(slog.DiscardHandler), t.TempDir()
		first, err := Lock(dir, log)
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		began := time.Now()
		_, err = Lock(dir, log)
		if took := time.Since(began); !errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), "another process uses it") || took != patience {
			t.Errorf("got %v after %v, want that another process uses it after %v", err, took, patience)
		}
	})
}

func TestADirectoryThatIsMissingIsNotWaitedFor(t *testing.T) {
	if _, err := Lock("/nonexistent", slog.New(slog.DiscardHandler)); err == nil || errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("got %v", err)
	}
}
