package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"polder/far"
	"polder/internal/hostmem"
	"polder/internal/listen"
	"polder/memnode"
	"polder/pool"
	"polder/pool/broker"
	"polder/resp"
	"polder/share"
	"polder/soft"
	"polder/soft/coordinator"
)

// Status is what a daemon says of itself at /status.
type Status struct {
	Service   string // node, broker, serve, up, coordinator or share
	Version   string
	PID       int
	Started   time.Time
	Addresses map[string]string // by service
	Resident  int64             // bytes
	Memory    *hostmem.Memory   `json:",omitempty"` // that there is for it; nil where that cannot be told

	Node    *memnode.Stats       `json:",omitempty"` // node, up
	Clients []memnode.ClientInfo `json:",omitempty"`
	Broker  *broker.Stats        `json:",omitempty"` // broker
	Heap    *far.Stats           `json:",omitempty"` // serve, up
	Pool    *pool.Stats          `json:",omitempty"`
	Soft    *soft.Stats          `json:",omitempty"` // serve --tier soft
	Redis   *resp.Stats          `json:",omitempty"`

	Coordinator *coordinator.Stats `json:",omitempty"` // coordinator
	Share       *share.Info        `json:",omitempty"` // share
}

const (
	queryTimeout  = 5 * time.Second
	maxStatusSize = 16 << 20
)

// Query asks a daemon's administrative address, with TLS if cfg is not nil, and
// shows it the token if there is one. At a loopback address a daemon may serve
// without TLS although others that are asked have it: then it is asked again
// without.
func Query(ctx context.Context, cfg *tls.Config, token, addr string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	ask := func(scheme string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+addr+"/status", nil)
		if err != nil {
			return nil, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		return client.Do(req)
	}
	scheme := "http://"
	if cfg != nil {
		scheme = "https://"
	}
	resp, err := ask(scheme)
	if local, _ := listen.Loopback(addr); local && errors.Is(err, http.ErrSchemeMismatch) {
		resp, err = ask("http://")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s: %w", addr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("cannot ask %s: it asks for a token or a certificate: give --admin-token-file, or --tls-cert and --tls-key", addr)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("cannot ask %s: it answers %s; expected a polder daemon's administrative address", addr, resp.Status)
	}
	s := new(Status)
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatusSize)).Decode(s); err != nil {
		return nil, fmt.Errorf("cannot understand %s: %w; expected a polder daemon's administrative address", addr, err)
	}
	return s, nil
}
