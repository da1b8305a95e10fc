package console

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"polder/internal/listen"
	"polder/internal/scheme"
)

const (
	queryTimeout  = 5 * time.Second
	maxStatusSize = 16 << 20
)

// Query asks a daemon's administrative address for its state, with this many points of its history. It uses TLS if
// cfg is not nil, and shows the token if there is one. A daemon at a loopback address may serve without TLS although
// other daemons use it: then Query asks again without. If ctx has no deadline, it waits for five seconds at most.
func Query(ctx context.Context, cfg *tls.Config, token, addr string, points int) (*State, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, queryTimeout)
		defer cancel()
	}
	resp, err := ask(ctx, cfg, token, http.MethodGet, addr, "/status?points="+strconv.Itoa(points))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("cannot ask %s: it answers %s; expected a polder daemon's administrative address", addr, resp.Status)
	}
	s := new(State)
	err = json.NewDecoder(io.LimitReader(resp.Body, maxStatusSize)).Decode(s)
	if err == nil && s.Service == "" {
		err = errors.New("it does not say which service it is")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot understand %s: %w; expected a polder daemon's administrative address", addr, err)
	}
	return s, nil
}

// Drain makes the memory node with this administrative address end when nothing is lent any more, or, with force,
// when the time is over. Otherwise the node stays, also if ctx ends. Drain returns the node's answer.
func Drain(ctx context.Context, cfg *tls.Config, token, addr string, within time.Duration, force bool) (string, error) {
	return demand(ctx, cfg, token, addr, fmt.Sprintf("/drain?within=%v&force=%t", within, force), "drain", "a polder node")
}

// Lend makes the memory node with this administrative address, which lends idle memory, lend no more than most bytes
// from now on, and returns the node's answer. It fails if clients do not move enough in time; the limit holds
// nevertheless.
func Lend(ctx context.Context, cfg *tls.Config, token, addr string, most int64, within time.Duration) (string, error) {
	return demand(ctx, cfg, token, addr, fmt.Sprintf("/lend?most=%d&within=%v", most, within), "change what is lent by", "a polder node that was started with --lend idle:SIZE")
}

// Forget makes the memory node with this administrative address take back what it keeps for a heap that nobody will
// open again, and returns the node's answer.
func Forget(ctx context.Context, cfg *tls.Config, token, addr, heap string) (string, error) {
	return demand(ctx, cfg, token, addr, "/forget?heap="+url.QueryEscape(heap), "have a heap forgotten by", "a polder node")
}

// demand asks the daemon with this administrative address, which is of a kind, to do something.
func demand(ctx context.Context, cfg *tls.Config, token, addr, path, what, kind string) (string, error) {
	resp, err := ask(ctx, cfg, token, http.MethodPost, addr, path)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxStatusSize))
	said := strings.TrimSpace(string(b))
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot %s %s: %w", what, addr, err)
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return "", fmt.Errorf("cannot %s %s: expected the administrative address of %s", what, addr, kind)
	case resp.StatusCode != http.StatusOK:
		return "", fmt.Errorf("cannot %s %s: %s", what, addr, said)
	}
	return said, nil
}

// ask sends a request to an administrative address, as Query says.
func ask(ctx context.Context, cfg *tls.Config, token, method, addr, path string) (*http.Response, error) {
	transport, host := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}, addr
	if path, socket := strings.CutPrefix(addr, scheme.Unix); socket {
		host, cfg = "localhost", nil // TLS is not for sockets of this machine
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	client := &http.Client{Transport: transport}
	try := func(prefix string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, method, prefix+host+path, nil)
		if err != nil {
			return nil, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		return client.Do(req)
	}
	prefix := "http://"
	if cfg != nil {
		prefix = "https://"
	}
	resp, err := try(prefix)
	if local, _ := listen.Loopback(addr); local && errors.Is(err, http.ErrSchemeMismatch) {
		resp, err = try("http://")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s: %w", addr, err)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("cannot ask %s: it asks for a token or a certificate: give --admin-token-file, or --tls-cert and --tls-key", addr)
	}
	return resp, nil
}
