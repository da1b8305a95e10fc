package ledger

import (
	"bytes"
	"log/slog"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/memnode/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shelf is a Store with one descriptor.
type shelf struct{ fd int }

func (s *shelf) Keep(_ string, f *os.File) (err error) {
	s.fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return err
}
func (s *shelf) Forget(string) error { return nil }
func (s *shelf) Kept(string) *os.File {
	if s.fd == 0 {
		return nil
	}
	return os.NewFile(uintptr(s.fd), "kept")
}

func take(t *testing.T, s *shelf, f Form) *Ledger {
	t.Helper()
	o, err := NewOutliving(s, "memory", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := o.Take(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestTheNextProcessFindsWhatWasWrittenDown, as it was when the first one ended without a word.
func TestTheNextProcessFindsWhatWasWrittenDown(t *testing.T) {
	for _, f := range []Form{
		{Manager: wire.RPCMW, ChunkSize: wire.MinChunkSize, Chunks: 64, Sessions: 3},
		{Manager: wire.Native, ChunkSize: 4 * arena.PageSize, Chunks: 16, Sessions: 3},
	} {
		t.Run(f.Manager, func(t *testing.T) {
			s := new(shelf)
			l := take(t, s, f)
			gone := l.Add(1, &wire.Session{ID: 11}, &wire.Keep{})
			kept := l.Add(2, &wire.Session{ID: 12, Secret: [wire.SecretSize]byte{7}}, &wire.Keep{Heap: "a longer name", Epoch: 4})
			l.Add(3, &wire.Session{ID: 13}, &wire.Keep{})
			if !l.Full() {
				t.Error("there is room for a fourth session, of three")
			}
			l.Keep(kept, &wire.Keep{Heap: "orders", Epoch: 5})
			for i, owner := range []uint64{2, 3, 0, 2, 1} {
				l.SetOwner(i, owner)
			}
			mem := l.Memory().Bytes()
			for i := range mem {
				mem[i] = 0xee
			}
			l.Drop(gone)

			next := take(t, s, Form{Manager: f.Manager, ChunkSize: f.ChunkSize, Chunks: 1, Sessions: 9})
			if got := next.Form(); got != f {
				t.Errorf("the form is %+v, want %+v", got, f)
			}
			left := next.TakeLeft()
			if len(left) != 2 || left[0].Owner != 2 || left[1].Owner != 3 {
				t.Fatalf("left are %+v, want the sessions of the owners 2 and 3", left)
			}
			if got, want := left[0].Keep, (wire.Keep{Heap: "orders", Epoch: 5}); got != want {
				t.Errorf("session 12 is kept as %+v, want %+v", got, want)
			}
			if w := left[0].Wire; w.ID != 12 || w.Secret[0] != 7 {
				t.Errorf("the session is %+v", w)
			}
			if got := left[0].Chunks; !slices.Equal(got, []uint32{0, 3}) {
				t.Errorf("owner 2 has chunks %v, want 0 and 3", got)
			}
			if len(next.TakeLeft()) != 0 || next.Full() {
				t.Error("a session is left twice, or the one that was struck out takes up room")
			}
			for i := range f.Chunks {
				want := make([]byte, f.ChunkSize)
				if i == 0 || i == 1 || i == 3 {
					want = bytes.Repeat([]byte{0xee}, f.ChunkSize)
				} else if owner := next.Owner(i); owner != 0 {
					t.Errorf("chunk %d belongs to %d, who has no session", i, owner)
				}
				if !bytes.Equal(next.Memory().Bytes()[i*f.ChunkSize:][:f.ChunkSize], want) {
					t.Errorf("chunk %d has other content than it should", i)
				}
			}
		})
	}
}
