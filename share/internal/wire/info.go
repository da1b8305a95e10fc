package wire

import "encoding/json"

// Info is what the daemon tells about itself.
type Info struct {
	Pools    []PoolInfo       `json:"pools"`
	Keys     int              `json:"keys"`
	Bytes    int64            `json:"bytes"` // in keys
	Regions  int              `json:"regions"`
	Deferred int              `json:"deferred"` // regions whose owner has left
	Sessions int              `json:"sessions"`
	Conns    int              `json:"connections"`
	Views    int              `json:"views"`            // open ones
	Waiting  int              `json:"waiting"`          // pages whose key is gone and that are looked at
	Tenants  map[string]int64 `json:"tenants"`          // bytes of regions
	Settling int              `json:"settling"`         // clients from before the restart that are not back yet
	Fenced   int              `json:"fenced,omitempty"` // clients that were fenced and may be alive
	Uptime   float64          `json:"uptime_seconds"`

	// Counters since the start of the daemon.
	Puts      uint64            `json:"puts"`
	Existed   uint64            `json:"existed"`
	Lookups   uint64            `json:"lookups"`
	Hits      uint64            `json:"hits"`
	Deletes   uint64            `json:"deletes"`
	Evictions uint64            `json:"evictions"`
	Expired   uint64            `json:"expired"`
	Allocs    uint64            `json:"allocations"`
	Frees     uint64            `json:"frees"`
	Reaped    uint64            `json:"reaped"`
	Denied    uint64            `json:"denied"`
	Records   uint64            `json:"log_records"`
	Posted    uint64            `json:"posted"` // requests that came by mailbox
	Requests  map[string]uint64 `json:"requests"`

	Checkpoints       uint64 `json:"checkpoints"`
	FailedCheckpoints uint64 `json:"failed_checkpoints"`
	LogBytes          int64  `json:"log_bytes"`          // that a restart would read
	LogFull           bool   `json:"log_full,omitempty"` // there is no room for the next segment of the log

	MaruLate        uint64 `json:"maru_late"`        // requests of Maru's clients refused as too late
	MaruOverwritten uint64 `json:"maru_overwritten"` // keys that went because their owner had filled their place anew
}

// PoolInfo describes a pool.
type PoolInfo struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Free    int64  `json:"free"`
	Largest int64  `json:"largest_free"`
	Regions int    `json:"regions"`
	Durable bool   `json:"durable"`
	Missing bool   `json:"missing,omitempty"`
	Maru    bool   `json:"maru"` // Maru's clients can have regions of it
}

// What List lists.
const (
	ListKeys     = 0
	ListRegions  = 1
	ListSessions = 2
)

// KeyInfo describes a key.
type KeyInfo struct {
	Key     string `json:"key"`
	Region  uint64 `json:"region"`
	Offset  int64  `json:"offset"`
	Length  int64  `json:"length"`
	Pins    int    `json:"pins"`
	Expires int64  `json:"expires,omitempty"` // Unix milliseconds
	Raw     []byte `json:"raw,omitempty"`     // Key if it is not UTF-8, which JSON would change
}

// UnmarshalJSON reads what the daemon has written.
func (k *KeyInfo) UnmarshalJSON(b []byte) error {
	type plain KeyInfo
	err := json.Unmarshal(b, (*plain)(k))
	if err == nil && k.Raw != nil {
		k.Key = string(k.Raw)
	}
	return err
}

// RegionInfo describes a region.
type RegionInfo struct {
	ID       uint64 `json:"id"`
	Pool     string `json:"pool"`
	Offset   int64  `json:"offset"`
	Length   int64  `json:"length"`
	PageSize int64  `json:"page_size"`
	Kind     string `json:"kind"` // native or maru
	State    string `json:"state"`
	Owner    uint64 `json:"owner"`
	Tenant   string `json:"tenant"`
	Readers  int    `json:"readers"`
	Refs     int    `json:"references"`
	Retired  bool   `json:"retired,omitempty"` // its pages are not used again, as a fenced client may look at them
}

// SessionInfo describes a session.
type SessionInfo struct {
	ID     uint64 `json:"id"`
	PID    int    `json:"pid"`
	UID    int    `json:"uid"`
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	Remote bool   `json:"remote,omitempty"`
	Maru   bool   `json:"maru,omitempty"` // speaks Maru's protocol; Name is its instance id
	Conns  int    `json:"connections"`
	Maps   int    `json:"mapped"`
	State  string `json:"state"` // attached, away, or awaited (from before the restart, and not back yet)
	// Away is for how many seconds it has not been attached.
	Away float64 `json:"away_seconds,omitempty"`
}
