package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultTimeout is the default of Config.Timeout.
const DefaultTimeout = 2 * time.Second

// MaxResponse is the size in bytes of the longest response that is read.
const MaxResponse = 2 << 20

// maxError is the size in bytes of the longest error response that is read.
const maxError = 4 << 10

// Config says where etcd is.
type Config struct {
	Endpoints []string // HOST:PORT of at least one member
	// TLS, if set, is called for the configuration of each connection. If it is nil, or returns nil, connections are
	// plain.
	TLS func() *tls.Config
	// User and Password are for servers with authentication. If User is empty, there is none.
	User, Password string
	Timeout        time.Duration // for each endpoint to answer a request; DefaultTimeout if 0
}

// A Client talks to etcd. See the package comment.
type Client struct {
	cfg  Config
	http *http.Client
	next atomic.Uint32 // index of the endpoint to ask first, modulo their number

	mu      sync.Mutex
	cluster uint64 // 0 until the first answer; guarded by mu
	token   string // authentication token, or ""; guarded by mu
}

// New makes a client. It connects to nothing yet.
func New(cfg Config) (*Client, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("cannot use etcd: no endpoints")
	}
	for _, e := range cfg.Endpoints {
		if _, _, err := net.SplitHostPort(e); err != nil {
			return nil, fmt.Errorf("cannot use etcd at %q: expected HOST:PORT", e)
		}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	c := &Client{cfg: cfg}
	dialer := &net.Dialer{Timeout: cfg.Timeout}
	c.http = &http.Client{
		// A redirect does not come from etcd.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext,
			DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				t := c.tls()
				if t == nil { // the request was made while there was a TLS configuration
					return nil, errors.New("there are no certificates any more")
				}
				return (&tls.Dialer{NetDialer: dialer, Config: t}).DialContext(ctx, network, addr)
			},
			MaxIdleConnsPerHost:    2,
			IdleConnTimeout:        time.Minute,
			MaxResponseHeaderBytes: 16 << 10,
			DisableCompression:     true,
		},
	}
	return c, nil
}

func (c *Client) tls() *tls.Config {
	if c.cfg.TLS == nil {
		return nil
	}
	return c.cfg.TLS()
}

// Close closes idle connections. The others end with their requests, whose contexts the caller cancels.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// header is what each of etcd's answers begins with.
type header struct {
	Cluster  uint64 `json:"cluster_id,string"`
	Revision int64  `json:"revision,string"`
}

// answered is an answer with a header.
type answered interface{ head() *header }

func (h *header) head() *header { return h }

// check refuses an answer that does not come from etcd, or comes from another cluster.
func (c *Client) check(a answered) error {
	h := a.head()
	if h.Cluster == 0 {
		return errors.New("it does not answer as etcd does")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cluster == 0 {
		c.cluster = h.Cluster
	}
	if c.cluster != h.Cluster {
		return ErrOtherCluster
	}
	return nil
}

// ask asks one endpoint after the other until one answers. If the request changes something, ask stops after an
// endpoint that may have seen it, and returns ErrUnknown.
func (c *Client) ask(ctx context.Context, path string, changes bool, request any, answer answered) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	first := c.next.Load()
	var errs []error
	again := c.cfg.User != ""
	for i := 0; i < len(c.cfg.Endpoints); i++ {
		endpoint := c.cfg.Endpoints[(int(first)+i)%len(c.cfg.Endpoints)]
		sent, err := c.once(ctx, endpoint, path, body, answer)
		if err == nil {
			return nil
		}
		var r *refusal
		if errors.As(err, &r) && r.Code == codeUnauthenticated && again {
			again = false
			c.forget()
			i--
			continue
		}
		err = fmt.Errorf("%s: %w", endpoint, err)
		if errors.As(err, &r) && r.final() {
			return err
		}
		errs = append(errs, err)
		c.next.CompareAndSwap(first+uint32(i), first+uint32(i)+1)
		if changes && sent {
			return errors.Join(append(errs, ErrUnknown)...)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// once asks one endpoint. After an error, sent reports whether the endpoint may have seen the request.
func (c *Client) once(ctx context.Context, endpoint, path string, body []byte, answer answered) (sent bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, fmt.Errorf("no answer within %v", c.cfg.Timeout))
	defer cancel()
	token, err := c.login(ctx, endpoint)
	if err != nil {
		return false, err
	}
	var seen atomic.Bool
	resp, err := c.post(ctx, endpoint, path, token, body, &seen)
	if err != nil {
		return seen.Load(), err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxResponse+1))
	switch {
	case err != nil:
		return true, why(ctx, err)
	case len(b) > MaxResponse:
		return true, fmt.Errorf("its answer has more than %d bytes", MaxResponse)
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return true, fmt.Errorf("it does not answer as etcd does: %w", err)
	}
	return true, c.check(answer)
}

// why is the cause of ctx's end, if it has ended, and otherwise err.
func why(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// post sends a request, and returns the response if its status is OK. It sets seen when the server may have seen the
// request.
func (c *Client) post(ctx context.Context, endpoint, path, token string, body []byte, seen *atomic.Bool) (*http.Response, error) {
	protocol := "http://"
	if c.tls() != nil {
		protocol = "https://"
	}
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { seen.Store(true) }})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, protocol+endpoint+"/v3/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, why(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	r := new(refusal)
	// The gateway adds a trailer's text to some errors, so only the first value counts.
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(r); err != nil || r.Code == 0 {
		return nil, fmt.Errorf("it does not answer as etcd does: %s: %s", resp.Status, quote(string(text)))
	}
	return nil, r
}

type authenticated struct {
	header `json:"header"`
	Token  string `json:"token"`
}

// login returns the authentication token. If there is none yet, it fetches one.
func (c *Client) login(ctx context.Context, endpoint string) (string, error) {
	if c.cfg.User == "" {
		return "", nil
	}
	c.mu.Lock()
	token := c.token
	c.mu.Unlock()
	if token != "" {
		return token, nil
	}
	body, err := json.Marshal(map[string]string{"name": c.cfg.User, "password": c.cfg.Password})
	if err != nil {
		return "", err
	}
	resp, err := c.post(ctx, endpoint, "auth/authenticate", "", body, new(atomic.Bool))
	if err != nil {
		return "", fmt.Errorf("cannot log in as %q: %w", c.cfg.User, err)
	}
	defer resp.Body.Close()
	var a authenticated
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxError)).Decode(&a); err != nil {
		return "", fmt.Errorf("cannot log in as %q: it does not answer as etcd does: %w", c.cfg.User, why(ctx, err))
	}
	if err := c.check(&a); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = a.Token
	return a.Token, nil
}

// forget makes the next request log in.
func (c *Client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = ""
}
