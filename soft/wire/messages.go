// Package wire is what a soft heap and the coordinator of its host say to each
// other.
//
// They talk over a Unix socket that keeps message boundaries (SOCK_SEQPACKET). A message is one byte that says what
// it is and a JSON object. The first message of a client is a Hello, which carries two descriptors: the memfd of its
// segments and that of its control table. After that, both sides send at any time:
//
//	client                         coordinator
//	Hello + 2 descriptors   -->
//	                        <--    Welcome, or Refused and the end
//	Report (about 1/s)      -->
//	                        <--    Budget (grow: generations are even already)
//	                        <--    Budget (shrink: until the deadline)
//	Released                -->
//	                        <--    Revoked (generations are odd already)
//
// What matters is in the control table (Control). Messages only tell when to
// look: a lost one costs time and nothing else.
//
// Nothing here is for concurrent use except Control.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"polder/soft/mrc"
)

// Version is the protocol's. A coordinator refuses others.
const Version = 1

// MaxMessage bounds a message, in bytes.
const MaxMessage = 64 << 10

// Kind says what a message is.
type Kind byte

const (
	KindHello    Kind = 'H'
	KindWelcome  Kind = 'W'
	KindRefused  Kind = 'X'
	KindReport   Kind = 'R'
	KindReleased Kind = 'F'
	KindBudget   Kind = 'B'
	KindRevoked  Kind = 'V'
)

// Hello registers a client. If it was registered with a coordinator before,
// its table says what it has.
type Hello struct {
	Version int     `json:"version"`
	Name    string  `json:"name"`
	Weight  float64 `json:"weight"`
}

// Welcome answers a Hello.
type Welcome struct {
	Version int `json:"version"`
}

// Refused says why the coordinator is about to close the connection.
type Refused struct {
	Reason string `json:"reason"`
}

// Report is what a client says about itself. Counters are since it began.
type Report struct {
	Live           int64     `json:"live"` // bytes of objects
	Free           int64     `json:"free"` // bytes in empty segments
	Hits           uint64    `json:"hits"`
	Misses         uint64    `json:"misses"`
	RebuildSeconds float64   `json:"rebuild_seconds"`
	Workers        int       `json:"workers,omitempty"` // 0 if not known
	Utility        *float64  `json:"utility,omitempty"`
	Curve          mrc.Curve `json:"curve"`

	// Assumed: nobody has told the client what its values cost. In its curve each saved access counts for
	// mrc.AssumedCost.
	Assumed bool `json:"assumed,omitempty"`
}

// Budget tells a client how many segments it should have. If it has more, it
// has DeadlineMillis to release them before they are taken.
type Budget struct {
	Segments       int `json:"segments"`
	DeadlineMillis int `json:"deadline_ms"`
}

// Released names segments that the client has revoked itself and that the coordinator may punch. It names at most
// MaxReleased of them, so that messages stay small.
type Released struct {
	Segments []uint32 `json:"segments"`
}

// Revoked says that segments have been taken.
type Revoked struct {
	Segments int `json:"segments"`
}

// MaxReleased is how many segments one Released may name.
const MaxReleased = 4096

// ErrMalformed is wrapped by every error about what was received.
var ErrMalformed = errors.New("malformed message")

// Encode makes a message. It panics if v cannot be encoded, which is a bug.
func Encode(k Kind, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("BUG: cannot encode a %c message: %v", k, err))
	}
	return append([]byte{byte(k)}, b...)
}

// Split returns a message's kind and body.
func Split(b []byte) (Kind, []byte, error) {
	if len(b) < 2 {
		return 0, nil, fmt.Errorf("%w of %d bytes", ErrMalformed, len(b))
	}
	if len(b) > MaxMessage {
		return 0, nil, fmt.Errorf("%w: it has %d bytes, more than %d", ErrMalformed, len(b), MaxMessage)
	}
	return Kind(b[0]), b[1:], nil
}

func decode(k Kind, body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w of kind %q: %w", ErrMalformed, byte(k), err)
	}
	return nil
}

// DecodeHello reads and checks a Hello.
func DecodeHello(body []byte) (h Hello, err error) {
	if err := decode(KindHello, body, &h); err != nil {
		return h, err
	}
	switch {
	case h.Version != Version:
		return h, fmt.Errorf("%w: version %d, want %d", ErrMalformed, h.Version, Version)
	case len(h.Name) > 64:
		return h, fmt.Errorf("%w: a name of %d bytes", ErrMalformed, len(h.Name))
	case !(h.Weight > 0) || h.Weight > 1e6:
		return h, fmt.Errorf("%w: weight %v", ErrMalformed, h.Weight)
	}
	return h, nil
}

// DecodeReport reads and checks a Report.
func DecodeReport(body []byte) (r Report, err error) {
	if err := decode(KindReport, body, &r); err != nil {
		return r, err
	}
	bad := r.Live < 0 || r.Workers < 0 || r.Free < 0 || !finite(r.RebuildSeconds) || r.RebuildSeconds < 0 ||
		r.Utility != nil && !finite(*r.Utility) || len(r.Curve.Saved) > 512 ||
		len(r.Curve.Saved) > 0 && r.Curve.Unit <= 0
	bad = bad || !finite(r.Curve.Total) || !finite(r.Curve.Accesses)
	last := 0.0
	for _, v := range r.Curve.Saved {
		bad = bad || !finite(v) || v < last
		last = v
	}
	if bad {
		return r, fmt.Errorf("%w: a report that cannot be", ErrMalformed)
	}
	return r, nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// DecodeReleased reads and checks a Released.
func DecodeReleased(body []byte) (r Released, err error) {
	if err := decode(KindReleased, body, &r); err != nil {
		return r, err
	}
	if len(r.Segments) > MaxReleased {
		return r, fmt.Errorf("%w: %d segments released at once", ErrMalformed, len(r.Segments))
	}
	return r, nil
}

// DecodeBudget reads and checks a Budget.
func DecodeBudget(body []byte) (b Budget, err error) {
	if err := decode(KindBudget, body, &b); err != nil {
		return b, err
	}
	if b.Segments < 0 || b.Segments > MaxSegments || b.DeadlineMillis < 0 {
		return b, fmt.Errorf("%w: a budget of %d segments", ErrMalformed, b.Segments)
	}
	return b, nil
}

// DecodeRefused reads a Refused.
func DecodeRefused(body []byte) (r Refused, err error) {
	err = decode(KindRefused, body, &r)
	return r, err
}
