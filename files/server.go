package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"polder/internal/httpserver"
	"polder/soft"
	"polder/soft/blocks"
)

// Config says what is served. All fields but Stall are required.
type Config struct {
	Dir      string     // the directory, as it is when the server is made
	Heap     *soft.Heap // caches what is read of it
	MaxConns int
	Stall    time.Duration // how long a client may take for 64 KiB; 30 s if it is 0
	Logger   *slog.Logger
}

// Server serves the files of a directory.
type Server struct {
	cfg    Config
	root   *os.Root
	blocks *blocks.Cache
	fsys   fs.FS
	count  counters

	mu      sync.Mutex
	closed  bool                 // guarded by mu
	serving []*httpserver.Server // guarded by mu
}

// New makes a server, which serves nobody yet.
func New(cfg Config) (*Server, error) {
	root, err := os.OpenRoot(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot serve a directory: %w", err)
	}
	cache, err := blocks.New(cfg.Heap, blocks.Config{})
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	if cfg.Stall == 0 {
		cfg.Stall = 30 * time.Second
	}
	return &Server{cfg: cfg, root: root, blocks: cache, fsys: cache.FS(within{root})}, nil
}

// Serve serves lis, and closes it. It returns nil after Close, which may come first.
func (s *Server) Serve(lis net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return lis.Close()
	}
	h := httpserver.Start(lis, httpserver.Config{Name: "door for files", Handler: s, MaxConns: s.cfg.MaxConns, Logger: s.cfg.Logger})
	s.serving = append(s.serving, h)
	s.mu.Unlock()
	return h.Wait()
}

// Close stops listening, lets requests finish for a second, and ends. Closing twice is a
// no-op.
func (s *Server) Close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, h := range s.serving {
		err = errors.Join(err, h.Close())
	}
	s.blocks.Close()
	return errors.Join(err, s.root.Close())
}

// conns is how many connections there are.
func (s *Server) conns() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.serving {
		n += h.Conns()
	}
	return n
}

// within is the file system of a directory. No path leads out of it.
type within struct{ root *os.Root }

// Open implements fs.FS. It does not wait for somebody to open the other end of a FIFO.
func (w within) Open(name string) (fs.File, error) {
	return w.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// response is a response whose client must take it in time, and whose bytes are counted.
type response struct {
	http.ResponseWriter
	server *Server
	code   int
	until  time.Time // the connection's deadline for writing
	bytes  *atomic.Int64
}

func (s *Server) newResponse(w http.ResponseWriter) *response {
	r := &response{ResponseWriter: w, server: s, code: http.StatusOK, bytes: &s.count.sent}
	r.extend()
	return r
}

// extend gives the client time for the next piece.
func (w *response) extend() {
	if now := time.Now(); w.until.Sub(now) < w.server.cfg.Stall*3/4 {
		w.until = now.Add(w.server.cfg.Stall)
		// A writer that is not a connection, as in tests, has no deadline.
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(w.until)
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) {
	w.extend()
	n, err := w.ResponseWriter.Write(b)
	w.bytes.Add(int64(n))
	return n, err
}

// pieces are buffers for ReadFrom.
var pieces = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// ReadFrom implements io.ReaderFrom, by which net/http copies files.
func (w *response) ReadFrom(src io.Reader) (int64, error) {
	b := pieces.Get().(*[64 << 10]byte)
	defer pieces.Put(b)
	return io.CopyBuffer(struct{ io.Writer }{w}, src, b[:])
}
