package progress

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhatIsShortIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		end := Waiting(&out, "reading the log")
		time.Sleep(patience - time.Millisecond)
		end()
		if out.Len() > 0 {
			t.Errorf("of what takes less than %v it says %q", patience, out.String())
		}
		end = Waiting(&out, "reading the log")
		time.Sleep(2*patience + time.Millisecond)
		end()
		end()
		if got, want := out.String(), "\r\x1b[Kreading the log: 1 s\r\x1b[Kreading the log: 2 s\r\x1b[K"; got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	})
}

// TestASecondSeriesHasATotalOfItsOwn, also if it is as long as the first one, whose bar is full.
func TestASecondSeriesHasATotalOfItsOwn(t *testing.T) {
	var out bytes.Buffer
	show, end := Steps(&out)
	defer end()
	for _, total := range []int{2, 5, 5} {
		for done := range total + 1 {
			show(done, total, "a step")
			want := fmt.Sprintf("(%d/%d", done, total)
			if said := out.String(); done < total && !strings.Contains(said, want) {
				t.Errorf("after step %d of %d it says %q, want %q", done, total, said, want)
			}
			out.Reset()
		}
	}
}

func TestNothingIsSaidInFilesAndPipes(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if w := Terminal(f); w != nil {
		t.Errorf("a file is the terminal %v", w)
	}
	if w := Terminal(new(bytes.Buffer)); w != nil {
		t.Errorf("a buffer is the terminal %v", w)
	}
	Waiting(nil, "x")()
	steps, end := Steps(nil)
	end()
	if steps != nil {
		t.Error("steps are shown nowhere")
	}
	if err := Bytes(nil, "x", 10).Finish(); err != nil {
		t.Error(err)
	}
}
