package sharebench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// echoes are two servers in a process of their own that answer at once. Round trips to
// the daemon are compared with theirs. One is written like any server in Go; the other,
// and its clients, block in system calls instead of in Go's runtime, so that hardly more
// than TCP is measured.
type echoes struct{ inGo, bare net.Listener }

func startEchoes() (*echoes, error) {
	inGo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, inGo.Close())
	}
	go serveEchoes(inGo, func(nc net.Conn) (io.ReadWriteCloser, error) { return nc, nil })
	go serveEchoes(bare, blocking)
	return &echoes{inGo, bare}, nil
}

func (e *echoes) addrs() []string { return []string{e.inGo.Addr().String(), e.bare.Addr().String()} }

func (e *echoes) close() error { return errors.Join(e.inGo.Close(), e.bare.Close()) }

// blocking takes a connection out of Go's poller.
func blocking(nc net.Conn) (io.ReadWriteCloser, error) {
	f, err := nc.(*net.TCPConn).File()
	return f, errors.Join(err, nc.Close())
}

// serveEchoes serves connections until the listener is closed. A client first sends the
// length of its requests and that of the answers, 4 bytes each.
func serveEchoes(lis net.Listener, through func(net.Conn) (io.ReadWriteCloser, error)) {
	for {
		nc, err := lis.Accept()
		if err != nil {
			return
		}
		go func() {
			c, err := through(nc)
			if err != nil {
				return
			}
			defer c.Close()
			var head [8]byte
			if _, err := io.ReadFull(c, head[:]); err != nil {
				return
			}
			in, out := make([]byte, binary.LittleEndian.Uint32(head[:])), make([]byte, binary.LittleEndian.Uint32(head[4:]))
			for {
				if _, err := io.ReadFull(c, in); err != nil {
					return
				}
				if _, err := c.Write(out); err != nil {
					return
				}
			}
		}()
	}
}

// echo is a client of an echo.
type echo struct {
	io.ReadWriteCloser
	request, answer []byte
}

func dialEcho(addr string, bare bool, request, answer int) (*echo, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot reach an echo: %w", err)
	}
	e := &echo{nc, make([]byte, request), make([]byte, answer)}
	if bare {
		if e.ReadWriteCloser, err = blocking(nc); err != nil {
			return nil, err
		}
	}
	head := binary.LittleEndian.AppendUint32(nil, uint32(request))
	_, err = e.Write(binary.LittleEndian.AppendUint32(head, uint32(answer)))
	return e, err
}

// measure makes one round trip and adds its time to s.
func (e *echo) measure(s *summary) error {
	began := time.Now()
	if _, err := e.Write(e.request); err != nil {
		return err
	}
	_, err := io.ReadFull(e, e.answer)
	s.add(time.Since(began))
	return err
}
