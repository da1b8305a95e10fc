// Package httpserver serves HTTP to strangers. Every connection has deadlines, and their number is bounded: when
// there are too many, the one that has been silent longest is closed.
//
// A Server owns a goroutine, and those of net/http; Close ends them all. Its methods may be
// called by any number of goroutines.
package httpserver

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"polder/internal/accept"
)

// Config says what is served. All fields are required.
type Config struct {
	Name     string // what the log calls it, such as "administrative address"
	Handler  http.Handler
	MaxConns int
	Logger   *slog.Logger
}

// Server is a running server.
type Server struct {
	name  string
	http  *http.Server
	conns conns
	done  chan struct{}
	err   error // why it does not serve any more; immutable once done is closed
}

// closeTimeout is how long Close lets requests finish.
const closeTimeout = time.Second

// Start serves lis until Close.
func Start(lis net.Listener, cfg Config) *Server {
	s := &Server{name: cfg.Name, done: make(chan struct{})}
	s.conns.most = cfg.MaxConns
	s.conns.all = make(map[net.Conn]*list.Element)
	s.http = &http.Server{
		Handler:           cfg.Handler,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnState:         s.conns.changed,
		ErrorLog:          log.New(serverLog{cfg.Name, cfg.Logger}, "", 0),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(accept.Listen(lis, cfg.Logger)); !errors.Is(err, http.ErrServerClosed) {
			s.err = err
			cfg.Logger.Error("the "+cfg.Name+" is gone", "err", err)
		}
	}()
	return s
}

// Wait waits until the server does not serve any more, and returns why: nil after Close.
func (s *Server) Wait() error {
	<-s.done
	return s.err
}

// Conns is how many connections there are.
func (s *Server) Conns() int {
	s.conns.mu.Lock()
	defer s.conns.mu.Unlock()
	return len(s.conns.all)
}

// Close stops listening, lets requests finish for a second, and ends.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	<-s.done
	if err != nil {
		return fmt.Errorf("cannot close the %s: %w", s.name, err)
	}
	return nil
}

// serverLog logs what net/http has to say about its clients, as one message.
type serverLog struct {
	name string
	log  *slog.Logger
}

// Write implements io.Writer.
func (l serverLog) Write(b []byte) (int, error) {
	l.log.Debug(l.name, "err", strings.TrimSpace(string(b)))
	return len(b), nil
}
