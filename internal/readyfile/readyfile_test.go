package readyfile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestAReaderNeverSeesHalfAFile writes again and again while it reads, as a
// script that waits for the file does.
func TestAReaderNeverSeesHalfAFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ready")
	addrs := map[string]string{"redis": "127.0.0.1:6379", "admin": "127.0.0.1:7079"}
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := Write(path, addrs); err != nil {
				ended <- err
				return
			}
		}
	}()
	read := 0
	for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until) || read == 0; {
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		}
		var got map[string]string
		if err != nil || json.Unmarshal(b, &got) != nil || !maps.Equal(got, addrs) {
			t.Errorf("a reader found %q, %v; want all of the addresses", b, err)
			break
		}
		read++
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("the directory holds %v, %v; want the ready file alone", list, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("its mode is %v, %v; want 0644, so that other users can wait for it", st.Mode(), err)
	}
}

func TestAPipeIsWrittenTo(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	if err := Write(fmt.Sprintf("/dev/fd/%d", w.Fd()), map[string]string{"redis": "x"}); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(r).ReadString('\n'); got != "{\"redis\":\"x\"}\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestWhatCannotBeWrittenIsSaid(t *testing.T) {
	if err := Write(filepath.Join(t.TempDir(), "none", "ready"), nil); err == nil {
		t.Error("writing into a directory that is not there: got no error")
	}
}
