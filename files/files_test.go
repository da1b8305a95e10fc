package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/soft"
	"polder/soft/blocks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "what lies outside of the directory"

// tree makes a directory beside a secret, and a server for it.
func tree(t testing.TB) (*Server, string) {
	t.Helper()
	top := t.TempDir()
	dir := filepath.Join(top, "site")
	for name, data := range map[string]string{
		"../secret": secret, "hello.txt": "hello", "sub/index.html": "<p>index", "plain/a&<b>.txt": "a", "plain/.hidden": "h", "index.html/file": "no index",
		"large.bin": string(bytes.Repeat([]byte("0123456789abcdef"), 8<<10)), "a:b/file": "colon",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(data), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"inside": "hello.txt", "outside": "../secret", "absolute": filepath.Join(top, "secret"), "up": "..", "loop": "loop", "gone": "nothing",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	heap, err := soft.Open(soft.Config{Budget: soft.MinBudget, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Dir: dir, Heap: heap, MaxConns: 16, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), heap.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, dir
}

// settle waits until a file counts as one that does not change.
func settle(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, settled := blocks.Version(st); settled {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has changed a minute ago and does not count as settled", path)
		}
	}
}

// ask asks s for something, with headers by name and value.
func ask(s http.Handler, method, path string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, "/", nil)
	r.URL.Path = path
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

func body(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPathsAreFilesOfTheDirectory(t *testing.T) {
	s, dir := tree(t)
	for _, tt := range []struct {
		path string
		code int
		says string // a part of the body, or the place of a redirect
	}{
		{"/hello.txt", 200, "hello"},
		{"//hello.txt", 200, "hello"},
		{"/sub/../hello.txt", 200, "hello"},
		{"/../../hello.txt", 200, "hello"},
		{"/inside", 200, "hello"},
		{"/sub/", 200, "<p>index"},
		{"/sub", 301, "./sub/"},
		{"/a:b", 301, "./a:b/"},
		{"//plain", 301, "./plain/"},
		{"/", 200, `<a href="./plain/">plain/</a>`},
		{"/", 200, `<a href="./a:b/">a:b/</a>`},
		{"/plain/", 200, `<a href="./a&amp;%3Cb%3E.txt">a&amp;&lt;b&gt;.txt</a>`},
		{"/plain/", 200, `.hidden`},
		{"/plain/a&<b>.txt", 200, "a"},
		{"/hello.txt/", 404, "no such file"},
		{"/hello.txt/more", 404, "no such file"},
		{"/nothing", 404, "no such file"},
		{"/fifo", 404, "no such file"},
		{"/outside", 404, "no such file"},
		{"/absolute", 404, "no such file"},
		{"/up/secret", 404, "no such file"},
		{"/up", 404, "no such file"},
		{"/loop", 404, "no such file"},
		{"/gone", 404, "no such file"},
		{"/../secret", 404, "no such file"},
		{"/hello.txt\x00", 404, "no such file"},
		{"/" + strings.Repeat("x", 5000), 404, "no such file"},
		{"/" + strings.Repeat("x/", 5000), 404, "no such file"},
	} {
		r := ask(s, http.MethodGet, tt.path)
		got := body(t, r) + r.Header.Get("Location")
		if r.StatusCode != tt.code || !strings.Contains(got, tt.says) {
			t.Errorf("%.50q: got %d and %q, want %d and %q", tt.path, r.StatusCode, got, tt.code, tt.says)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "hello.txt"), 0); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		if r := ask(s, http.MethodGet, "/hello.txt"); r.StatusCode != http.StatusForbidden {
			t.Errorf("a file that may not be read: got %d, want 403", r.StatusCode)
		}
	}
	if r := ask(s, http.MethodPost, "/hello.txt"); r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: got %d, want 405", r.StatusCode)
	}
}

// FuzzNoPathLeavesTheDirectory: whatever is asked for, what is outside does not come, and
// the server neither panics nor waits.
func FuzzNoPathLeavesTheDirectory(f *testing.F) {
	for _, path := range []string{"/", "/hello.txt", "/../secret", "/up/secret", "/sub/..//../secret", "/outside/", "\\..\\secret", "/./up/../up/secret", "/fifo"} {
		f.Add(path, "")
	}
	f.Add("/large.bin", "bytes=0-1,5-6,-1")
	s, _ := tree(f)
	f.Fuzz(func(t *testing.T, path, ranges string) {
		r := ask(s, http.MethodGet, path, "Range", ranges)
		if b := body(t, r); strings.Contains(b, secret) {
			t.Errorf("%q: got %d and what is outside of the directory", path, r.StatusCode)
		}
	})
}

// TestConditionsAndRanges are those of RFC 9110, for a file that is read from disk and then
// from memory.
func TestConditionsAndRanges(t *testing.T) {
	s, dir := tree(t)
	path := filepath.Join(dir, "large.bin")
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if r := ask(s, http.MethodGet, "/large.bin"); r.Header.Get("ETag") != "" || r.Header.Get("Last-Modified") != "" || body(t, r) != string(want) {
		t.Errorf("a file that has just changed: got %v, want all of it and nothing to tell it by", r.Header)
	}
	settle(t, path)
	for _, from := range []string{"disk", "memory"} {
		r := ask(s, http.MethodGet, "/large.bin")
		tag, modified := r.Header.Get("ETag"), r.Header.Get("Last-Modified")
		if got := body(t, r); got != string(want) || !strings.HasPrefix(tag, `"`) || modified == "" || r.Header.Get("Content-Length") != fmt.Sprint(len(want)) {
			t.Fatalf("from %s: got %d bytes and %v", from, len(got), r.Header)
		}
		for _, tt := range []struct {
			method  string
			headers []string
			code    int
			want    string
		}{
			{http.MethodHead, nil, 200, ""},
			{http.MethodGet, []string{"If-None-Match", tag}, 304, ""},
			{http.MethodGet, []string{"If-None-Match", `"other", ` + tag}, 304, ""},
			{http.MethodGet, []string{"If-None-Match", `"other"`, "If-Modified-Since", modified}, 200, string(want)},
			{http.MethodGet, []string{"If-Modified-Since", modified}, 304, ""},
			{http.MethodGet, []string{"If-Match", `"other"`}, 412, ""},
			{http.MethodGet, []string{"Range", "bytes=100-199"}, 206, string(want[100:200])},
			{http.MethodGet, []string{"Range", "bytes=-10"}, 206, string(want[len(want)-10:])},
			{http.MethodGet, []string{"Range", "bytes=16380-16390", "If-Range", tag}, 206, string(want[16380:16391])},
			{http.MethodGet, []string{"Range", "bytes=0-1", "If-Range", `"other"`}, 200, string(want)},
			{http.MethodHead, []string{"Range", "bytes=0-1"}, 206, ""},
		} {
			r := ask(s, tt.method, "/large.bin", tt.headers...)
			if got := body(t, r); r.StatusCode != tt.code || got != tt.want {
				t.Errorf("from %s, %s %q: got %d and %d bytes, want %d and %d", from, tt.method, tt.headers, r.StatusCode, len(got), tt.code, len(tt.want))
			}
		}
		if r := ask(s, http.MethodGet, "/large.bin", "Range", "bytes=9999999-"); r.StatusCode != 416 {
			t.Errorf("from %s, a range behind the end: got %d, want 416", from, r.StatusCode)
		}
	}
	was := ask(s, http.MethodHead, "/large.bin").Header.Get("ETag")
	if err := errors.Join(os.WriteFile(path, want[1:], 0o644)); err != nil {
		t.Fatal(err)
	}
	if r := ask(s, http.MethodGet, "/large.bin", "If-None-Match", was); r.StatusCode != 200 || body(t, r) != string(want[1:]) {
		t.Errorf("after a change: got %d, want 200 and what is new", r.StatusCode)
	}
}

// TestAServerEndsInGoodOrder while a client reads nothing of what it has asked for, and
// another says nothing.
func TestAServerEndsInGoodOrder(t *testing.T) {
	s, dir := tree(t)
	if err := os.WriteFile(filepath.Join(dir, "huge"), make([]byte, 16<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	for _, text := range []string{"", "GET /huge HTTP/1.1\r\nHost: x\r\n\r\n"} {
		c, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if text != "" { // until it is under way
			if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	late, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(late); err != nil {
		t.Errorf("served after it was closed: %v", err)
	}
	if err := late.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("it left the listener open: closing it gives %v", err)
	}
}

// TestAClientThatTakesNothingIsLetGo, and does not hold a connection and a file for ever.
func TestAClientThatTakesNothingIsLetGo(t *testing.T) {
	s, dir := tree(t)
	s.cfg.Stall = 50 * time.Millisecond
	if err := os.WriteFile(filepath.Join(dir, "huge"), make([]byte, 64<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	c, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET /huge HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); s.count.codes[200].Load() == 0 || s.conns() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a client that takes nothing is still there after a minute")
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
