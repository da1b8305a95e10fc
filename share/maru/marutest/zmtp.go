package marutest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// zmtp is a connection that speaks ZMTP 3.1 with mechanism NULL, as a DEALER.
type zmtp struct {
	conn net.Conn
	in   *bufio.Reader
}

func (z *zmtp) Close() error { return z.conn.Close() }

func dialZMTP(network, addr, identity string) (*zmtp, error) {
	conn, err := net.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	z := &zmtp{conn: conn, in: bufio.NewReader(conn)}
	if err := z.greet(identity); err != nil {
		conn.Close()
		return nil, err
	}
	return z, nil
}

func (z *zmtp) greet(identity string) error {
	if err := z.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	hello := make([]byte, 64)
	hello[0], hello[9], hello[10], hello[11] = 0xff, 0x7f, 3, 1
	copy(hello[12:], "NULL")
	ready := []byte("\x05READY")
	for name, value := range map[string]string{"Socket-Type": "DEALER", "Identity": identity} {
		ready = append(append(ready, byte(len(name))), name...)
		ready = append(binary.BigEndian.AppendUint32(ready, uint32(len(value))), value...)
	}
	if _, err := z.conn.Write(append(append(hello, 4, byte(len(ready))), ready...)); err != nil {
		return err
	}
	if _, err := io.ReadFull(z.in, hello); err != nil {
		return err
	}
	flags, body, err := z.frame()
	if err == nil && (hello[0] != 0xff || flags != 4 || len(body) < 6 || string(body[:6]) != "\x05READY") {
		err = fmt.Errorf("the server greets with %x and %q", hello[:33], body)
	}
	return err
}

// send sends a message: an empty frame and the body.
func (z *zmtp) send(body []byte) error {
	b := []byte{1, 0}
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, 2), uint64(len(body)))
	} else {
		b = append(b, 0, byte(len(body)))
	}
	_, err := z.conn.Write(append(b, body...))
	return err
}

// receive reads the body of the next message, and answers the server's heartbeats.
func (z *zmtp) receive() ([]byte, error) {
	for delimited := false; ; {
		flags, body, err := z.frame()
		switch {
		case err != nil:
			return nil, err
		case flags&4 != 0:
			if len(body) >= 7 && string(body[:5]) == "\x04PING" {
				pong := append([]byte("\x04PONG"), body[7:]...)
				if _, err := z.conn.Write(append([]byte{4, byte(len(pong))}, pong...)); err != nil {
					return nil, err
				}
			}
		case !delimited && flags&1 != 0 && len(body) == 0:
			delimited = true
		case delimited && flags&1 == 0:
			return body, nil
		default:
			return nil, errors.New("the answer is not an empty frame and a body")
		}
	}
}

func (z *zmtp) frame() (flags byte, body []byte, err error) {
	var head [9]byte
	n := 2
	if _, err := io.ReadFull(z.in, head[:n]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	if head[0]&2 != 0 {
		if _, err := io.ReadFull(z.in, head[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if size > 1<<30 {
		return 0, nil, fmt.Errorf("the server announces a frame of %d bytes", size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(z.in, body)
	return head[0], body, err
}
