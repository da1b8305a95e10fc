package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reader is a pipe's other end: it can stop reading, and go.
type reader struct {
	mu   sync.Mutex
	cond *sync.Cond
	stop bool
	gone bool
	got  strings.Builder
}

func newReader() *reader {
	r := new(reader)
	r.cond = sync.NewCond(&r.mu)
	return r
}

func (r *reader) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.stop {
		r.cond.Wait()
	}
	if r.gone {
		return 0, errors.New("broken pipe")
	}
	return r.got.Write(p)
}

func (r *reader) set(stop, gone bool) {
	r.mu.Lock()
	r.stop, r.gone = stop, gone
	r.mu.Unlock()
	r.cond.Broadcast()
}

func (r *reader) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.String()
}

func TestWhatIsWrittenArrivesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		w := New(r)
		var want strings.Builder
		for i := range 1000 {
			fmt.Fprintf(w, "line %d\n", i)
			fmt.Fprintf(&want, "line %d\n", i)
		}
		w.Close()
		if got := r.String(); got != want.String() {
			t.Errorf("got %d bytes, want %d: %.80q", len(got), want.Len(), got)
		}
	})
}

func TestAReaderThatHasStoppedBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		r.set(true, false)
		w := New(r)
		line := strings.Repeat("x", 1023) + "\n"
		io.WriteString(w, "first\n")
		synctest.Wait() // the goroutine is stuck with the first line
		const n = 1000
		for range n {
			if k, err := io.WriteString(w, line); k != len(line) || err != nil {
				t.Fatalf("got %d, %v", k, err)
			}
		}
		r.set(false, false)
		synctest.Wait()
		io.WriteString(w, "last\n")
		w.Close()
		got := r.String()
		kept := limit / len(line)
		want := fmt.Sprintf("polder: %d lines were dropped here, because nobody read them\nlast\n", n-kept)
		if !strings.HasPrefix(got, "first\n") || !strings.HasSuffix(got, want) || strings.Count(got, line) != kept {
			t.Errorf("got %d lines, ending in %q, want %d, ending in %q", strings.Count(got, line), got[max(0, len(got)-120):], kept, want)
		}
	})
}

func TestWhatCannotBeWrittenIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		r.set(false, true)
		w := New(r)
		for range 3 {
			io.WriteString(w, "nobody reads this\n")
			synctest.Wait()
		}
		r.set(false, false)
		io.WriteString(w, "again\n")
		w.Close()
		const want = "again\npolder: 3 lines were dropped here, because nobody read them\n"
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestCloseDoesNotWaitForAReaderThatHasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		r.set(true, false)
		w := New(r)
		io.WriteString(w, "x\n")
		began := time.Now()
		w.Close()
		if took := time.Since(began); took != closeTimeout {
			t.Errorf("it took %v, want %v", took, closeTimeout)
		}
		r.set(false, false)
		<-w.done
		io.WriteString(w, "after the end\n")
		w.Close()
		if got := r.String(); got != "x\n" {
			t.Errorf("got %q", got)
		}
	})
}

func TestAPipeWithoutReader(t *testing.T) {
	r, p, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	w := New(p)
	r.Close()
	for range 10 {
		io.WriteString(w, "x\n")
	}
	w.Close()
}
