package verbsbench

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// rawHeader is the size of a request, and of a response, without the payload:
// about as much as a hand-written protocol for the same purpose would need.
const rawHeader = 16

// rawBuffer is how many bytes either end reads at once.
const rawBuffer = 256 << 10

// raw is a rival: it exchanges as many bytes over a plain connection of TCP or a Unix
// socket. Both ends know the sizes beforehand; nothing is checked or looked up.
type raw struct{ network, addr string }

func (r *raw) close() {}

// connect returns a connection whose other end answers every req bytes with
// resp bytes.
func (r *raw) connect(req, resp int) (net.Conn, error) {
	c, err := net.Dial(r.network, r.addr)
	if err != nil {
		return nil, err
	}
	sizes := binary.LittleEndian.AppendUint32(nil, uint32(req))
	sizes = binary.LittleEndian.AppendUint32(sizes, uint32(resp))
	if _, err := c.Write(sizes); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (r *raw) roundTrips(c bcase, d time.Duration, lat []time.Duration) ([]time.Duration, error) {
	req, resp := c.rawSizes()
	client, err := r.connect(req, resp)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	out, in := make([]byte, req), make([]byte, resp)
	return timed(d, lat, func() error {
		if _, err := client.Write(out); err != nil {
			return err
		}
		_, err := io.ReadFull(client, in)
		return err
	})
}

func (r *raw) pipelined(c bcase, d time.Duration, depth int) (float64, error) {
	req, resp := c.rawSizes()
	client, err := r.connect(req, resp)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	out, in := make([]byte, depth*req), make([]byte, rawBuffer)
	if _, err := client.Write(out); err != nil {
		return 0, err
	}
	have := 0
	return counted(d, func(more bool) (int, error) {
		n, err := client.Read(in)
		if err != nil {
			return 0, fmt.Errorf("cannot read answers: %w", err)
		}
		have += n
		done := have / resp
		have -= done * resp
		if more && done > 0 {
			_, err = client.Write(out[:done*req])
		}
		return done, err
	})
}
