package files

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"polder/soft/blocks"
)

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	w := s.newResponse(to)
	defer func() { s.count.answered(w.code) }()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are answered here", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	name := strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/")
	if name == "" {
		name = "."
	}
	f, st, err := s.open(name)
	if err != nil {
		refuse(w, err)
		return
	}
	defer func() { _ = f.Close() }()
	slash := strings.HasSuffix(r.URL.Path, "/")
	switch {
	case !st.IsDir() && slash && name != ".":
		refuse(w, fs.ErrNotExist) // a file is no directory
	case !st.IsDir():
		serveFile(w, r, f, st)
	case !slash && name != ".":
		redirect(w, r, "./"+url.PathEscape(path.Base(name))+"/")
	default:
		s.serveDir(w, r, name, f)
	}
}

// open opens a file or directory.
func (s *Server) open(name string) (fs.File, fs.FileInfo, error) {
	f, err := s.fsys.Open(name)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, st, nil
}

// refuse says why there is no file. What os.Root does not let out looks as if it were not
// there.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, fs.ErrPermission):
		http.Error(w, "this may not be read", http.StatusForbidden)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many files are open: try again", http.StatusServiceUnavailable)
	case errors.Is(err, syscall.EIO), errors.Is(err, fs.ErrClosed):
		http.Error(w, "this cannot be read", http.StatusInternalServerError)
	default:
		http.Error(w, "there is no such file", http.StatusNotFound)
	}
}

// redirect sends the client to a place beside the one that it has asked for.
func redirect(w http.ResponseWriter, r *http.Request, to string) {
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusMovedPermanently)
}

// serveFile serves an open file. If the file may yet change under the same version, the answer has nothing by which a
// client could take it for unchanged.
func serveFile(w http.ResponseWriter, r *http.Request, f fs.File, st fs.FileInfo) {
	content, ok := f.(io.ReadSeeker)
	if !ok {
		refuse(w, fs.ErrNotExist)
		return
	}
	var modified time.Time
	if version, settled := blocks.Version(st); settled {
		modified = st.ModTime()
		sum := sha256.Sum256([]byte(version))
		w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:12])+`"`)
	}
	http.ServeContent(w, r, st.Name(), modified, content)
}

// maxEntries is how many names a list of a directory has.
const maxEntries = 10_000

// serveDir serves a directory: its index.html, or a list.
func (s *Server) serveDir(w http.ResponseWriter, r *http.Request, name string, dir fs.File) {
	if f, st, err := s.open(path.Join(name, "index.html")); err == nil {
		defer func() { _ = f.Close() }()
		if !st.IsDir() {
			serveFile(w, r, f, st)
			return
		}
	}
	d, ok := dir.(fs.ReadDirFile)
	if !ok {
		refuse(w, fs.ErrNotExist)
		return
	}
	entries, err := d.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		refuse(w, err)
		return
	}
	more := len(entries) > maxEntries
	entries = entries[:min(len(entries), maxEntries)]
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	var b strings.Builder
	b.WriteString("<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>Files</title>\n<pre>\n")
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		ref := url.URL{Path: "./" + name}
		fmt.Fprintf(&b, "<a href=\"%s\">%s</a>\n", html.EscapeString(ref.String()), html.EscapeString(name))
	}
	if more {
		fmt.Fprintf(&b, "and more: %d are shown\n", maxEntries)
	}
	b.WriteString("</pre>\n")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = io.WriteString(w, b.String()) // the client has gone if this fails; nothing is written after HEAD
}
