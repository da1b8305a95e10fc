package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"polder/far"
	"polder/internal/hostmem"
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

// Query asks a daemon's administrative address, with TLS if cfg is not nil.
func Query(ctx context.Context, cfg *tls.Config, addr string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	scheme := "http"
	if cfg != nil {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+"/status", nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s: %w", addr, err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s: %w", addr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("cannot ask %s: it answers %s; expected a polder daemon's administrative address", addr, resp.Status)
	}
	s := new(Status)
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatusSize)).Decode(s); err != nil {
		return nil, fmt.Errorf("cannot understand %s: %w; expected a polder daemon's administrative address", addr, err)
	}
	return s, nil
}
