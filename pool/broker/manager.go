package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"polder/internal/scheme"
	"polder/memnode/wire"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/verbs"
)

func trim(path string) string { return strings.TrimPrefix(path, scheme.Broker) }

// Dialer keeps a connection to a broker, for one pool's connections to memory nodes. A session at a node belongs to
// the Dialer, not to the connection. It may be used by any number of goroutines.
type Dialer struct {
	path string

	mu       sync.Mutex
	client   *Client                 // nil if there is none; it may have been lost
	sessions map[string]wire.Session // this application's sessions at the nodes, by address
	closed   bool
}

// NewDialer returns a dialer for the broker at the path of a socket, with or without
// scheme.Broker.
func NewDialer(path string) *Dialer {
	return &Dialer{path: trim(path), sessions: make(map[string]wire.Session)}
}

// Nodes asks the broker for the addresses of its memory nodes.
func (d *Dialer) Nodes(ctx context.Context) ([]string, error) {
	c, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clone(c.addrs), nil
}

// connect returns the connection, which it makes if there is none.
func (d *Dialer) connect(ctx context.Context) (*Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, manager.ErrClosed
	}
	if d.client != nil {
		select {
		case <-d.client.done:
			d.client.Close()
			d.client = nil
		default:
			return d.client, nil
		}
	}
	c, err := Dial(ctx, d.path)
	if err != nil {
		return nil, err
	}
	d.client = c
	return c, nil
}

// Dial connects to the broker's memory node at addr, by calling dial. The connection also ends when the connection to
// the broker does, since what the broker has lent may be taken back then.
func (d *Dialer) Dial(ctx context.Context, addr string, dial func(context.Context) (verbs.Conn, error)) (verbs.Conn, error) {
	client, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	node := slices.Index(client.addrs, addr)
	if node < 0 {
		return nil, fmt.Errorf("the broker at %s has no memory node %s, but %s", d.path, addr, strings.Join(client.addrs, ", "))
	}
	vc, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: vc, dialer: d, client: client, node: node}
	c.wg.Go(func() {
		select {
		case <-client.done:
			vc.Close()
		case <-vc.Done():
		}
	})
	return c, nil
}

// Close ends the connection to the broker, which frees everything.
func (d *Dialer) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.client == nil {
		return nil
	}
	return d.client.Close()
}

// conn is a connection to a memory node, together with the broker's client that it depends on.
type conn struct {
	verbs.Conn
	dialer *Dialer
	client *Client
	node   int
	wg     sync.WaitGroup // the goroutine that watches the client
}

// Err implements verbs.Conn.
func (c *conn) Err() error {
	err := c.Conn.Err()
	select {
	case <-c.client.done:
		if err != nil {
			return ErrGone
		}
	default:
	}
	return err
}

// Close implements verbs.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.wg.Wait()
	return err
}

// Manager is FineMem with a broker between the application and the metadata. It works over connections that a Dialer
// has made.
type Manager struct{}

var _ manager.Manager = Manager{}

// Name implements manager.Manager.
func (Manager) Name() string { return finemem.Name }

// Attach implements manager.Manager.
func (Manager) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	c, ok := l.Conn.(*conn)
	if !ok {
		return nil, errors.New("cannot use a broker over a connection that broker.Dialer has not made")
	}
	s := &session{conn: c, stop: make(chan struct{})}
	if err := s.open(ctx, l); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}
