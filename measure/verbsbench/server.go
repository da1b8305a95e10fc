package verbsbench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"polder/verbs"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// Serve is the far end of all contestants but inproc: two rawServers, for TCP and
// a Unix socket, and devices of the drivers tcp and shm with memory to read and
// write. It writes their addresses to out, as one line, and ends when in does.
func Serve(in io.Reader, out io.Writer) error {
	if err := serve(in, out); err != nil {
		return fmt.Errorf("cannot serve the verbs benchmark: %w", err)
	}
	return nil
}

func serve(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := newRawServer("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer r.close()
	dir, err := os.MkdirTemp("", "polder-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	u, err := newRawServer("unix", filepath.Join(dir, "raw"))
	if err != nil {
		return err
	}
	defer u.close()
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return err
	}
	defer dev.Close()
	l, err := tcp.Listen(dev, "127.0.0.1:0", tcp.Config{})
	if err != nil {
		return err
	}
	near, err := shm.NewDevice(softnic.Config{})
	if err != nil {
		return err
	}
	defer near.Close()
	nl, err := shm.Listen(near, filepath.Join(dir, "sock"), shm.Config{})
	if err != nil {
		return err
	}
	lending := make(chan error, 2)
	go func() { lending <- lend(ctx, dev, l) }()
	go func() { lending <- lend(ctx, near, nl) }()
	if _, err := fmt.Fprintln(out, r.addr(), u.addr(), l.Addr(), nl.Addr()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	cancel()
	return errors.Join(err, <-lending, <-lending)
}

// addresses are where a server listens.
type addresses struct{ rawTCP, rawUnix, tcp, shm string }

// remote says where a lender's memory is.
type remote struct {
	addr uint64
	rkey verbs.RKey
}

// lend makes a queue pair and memory on dev, accepts one connection on l, tells the
// peer where the memory is, and returns when ctx ends.
func lend(ctx context.Context, dev verbs.Device, l verbs.Listener) error {
	qp, _, mr, err := end(dev)
	if err != nil {
		return err
	}
	req, err := l.Accept(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	private := binary.LittleEndian.AppendUint64(nil, mr.Addr())
	private = binary.LittleEndian.AppendUint32(private, uint32(mr.RKey()))
	if err := req.Accept(qp, private); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// readAddrs reads what serve wrote.
func readAddrs(in io.Reader) (a addresses, err error) {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return a, fmt.Errorf("the server does not say where it listens: %w", err)
	}
	if _, err := fmt.Sscan(line, &a.rawTCP, &a.rawUnix, &a.tcp, &a.shm); err != nil {
		return a, fmt.Errorf("the server says %q: %w", line, err)
	}
	return a, nil
}

// rawServer answers on plain connections. A client first sends the sizes of
// its requests and of their answers.
type rawServer struct {
	l    net.Listener
	done chan struct{}
}

func newRawServer(network, addr string) (*rawServer, error) {
	l, err := net.Listen(network, addr)
	if err != nil {
		return nil, err
	}
	r := &rawServer{l: l, done: make(chan struct{})}
	go r.serve()
	return r, nil
}

func (r *rawServer) addr() string { return r.l.Addr().String() }

// close stops accepting. Connections end when their clients close them.
func (r *rawServer) close() {
	r.l.Close()
	<-r.done
}

func (r *rawServer) serve() {
	defer close(r.done)
	for {
		c, err := r.l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var sizes [8]byte
			if _, err := io.ReadFull(c, sizes[:]); err != nil {
				return
			}
			rawAnswer(c, int(binary.LittleEndian.Uint32(sizes[:])), int(binary.LittleEndian.Uint32(sizes[4:])))
		}()
	}
}

// rawAnswer answers every req bytes with resp bytes, until the connection ends.
// It answers all requests that have come together with as few writes as it can.
func rawAnswer(c net.Conn, req, resp int) {
	in, out := make([]byte, rawBuffer), make([]byte, max(resp, rawBuffer/resp*resp))
	have := 0
	for {
		n, err := c.Read(in)
		if err != nil {
			return
		}
		have += n
		for answers := have / req; answers > 0; {
			k := min(answers, len(out)/resp)
			if _, err := c.Write(out[:k*resp]); err != nil {
				return
			}
			have -= k * req
			answers -= k
		}
	}
}

// startServer runs command, or Serve in this process if command is empty. It
// returns where the server listens, and a function that ends the server.
func startServer(ctx context.Context, command []string) (a addresses, stop func() error, err error) {
	var out io.Reader
	if len(command) == 0 {
		out, stop = serveHere()
	} else if out, stop, err = serveThere(ctx, command); err != nil {
		return a, nil, err
	}
	if a, err = readAddrs(out); err != nil {
		return a, nil, errors.Join(err, stop())
	}
	return a, stop, nil
}

func serveHere() (out io.Reader, stop func() error) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Serve(inR, outW)
		outW.Close()
		ended <- err
	}()
	return outR, func() error {
		inW.Close()
		return <-ended
	}
}

func serveThere(ctx context.Context, command []string) (out io.Reader, stop func() error, err error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot start the server: %w", err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, fmt.Errorf("cannot start the server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("cannot start the server: %w", err)
	}
	return out, func() error {
		in.Close()
		return cmd.Wait()
	}, nil
}
