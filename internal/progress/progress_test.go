package progress

import (
	"bytes"
	"os"
	"path/filepath"
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
