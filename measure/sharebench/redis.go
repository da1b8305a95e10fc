package sharebench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// redis measures SET and GET of the same blobs over redis-server's Unix socket,
// with a client that does no more than these two need.
func redis(t task) (res result, err error) {
	conn, err := net.Dial("unix", t.Socket)
	if err != nil {
		return res, fmt.Errorf("cannot reach redis-server: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	in := bufio.NewReaderSize(conn, 64<<10)
	src, out := blob(t.Size), make([]byte, t.Size+2)
	var set, get summary
	for i := range t.N {
		key := t.key(i)
		began := time.Now()
		head := fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, t.Size)
		bufs := net.Buffers{head, src, []byte("\r\n")}
		if _, err := bufs.WriteTo(conn); err != nil {
			return res, fmt.Errorf("cannot send to redis-server: %w", err)
		}
		line, err := in.ReadSlice('\n')
		if err != nil {
			return res, fmt.Errorf("cannot read from redis-server: %w", err)
		}
		if !bytes.Equal(line, []byte("+OK\r\n")) {
			return res, fmt.Errorf("redis-server answers %q to SET", line)
		}
		set.add(time.Since(began))
	}
	for i := range t.N {
		key := t.key(i)
		began := time.Now()
		if _, err := fmt.Fprintf(conn, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key); err != nil {
			return res, fmt.Errorf("cannot send to redis-server: %w", err)
		}
		line, err := in.ReadSlice('\n')
		if err != nil {
			return res, fmt.Errorf("cannot read from redis-server: %w", err)
		}
		if n, err := strconv.Atoi(string(bytes.Trim(line, "$\r\n"))); err != nil || n != t.Size {
			return res, fmt.Errorf("redis-server answers %q to GET", line)
		}
		if _, err := io.ReadFull(in, out); err != nil {
			return res, fmt.Errorf("cannot read from redis-server: %w", err)
		}
		get.add(time.Since(began))
	}
	if _, err := fmt.Fprint(conn, "*1\r\n$7\r\nFLUSHDB\r\n"); err != nil {
		return res, fmt.Errorf("cannot send to redis-server: %w", err)
	}
	if _, err := in.ReadSlice('\n'); err != nil {
		return res, fmt.Errorf("cannot read from redis-server: %w", err)
	}
	return result{Series: map[string]summary{"set": set.finish(t.Size), "get": get.finish(t.Size)}}, nil
}
