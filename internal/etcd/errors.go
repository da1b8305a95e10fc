package etcd

import (
	"errors"
	"strconv"
	"strings"
)

// Errors that callers test for.
var (
	// ErrUnknown is the error of a change that may or may not have happened.
	ErrUnknown = errors.New("nobody can tell whether it happened")
	// ErrNoLease is the error for a lease that has ended, or never was.
	ErrNoLease = errors.New("the lease has ended")
	// ErrOtherCluster is the error for an endpoint of another cluster than that of the first endpoint that answered.
	ErrOtherCluster = errors.New("the endpoint is of another etcd cluster than the one that answered before")
)

// The codes of gRPC that a server refuses a request with.
const (
	codeInvalid         = 3
	codeNotFound        = 5
	codeDenied          = 7
	codeExhausted       = 8
	codePrecondition    = 9
	codeOutOfRange      = 11
	codeUnauthenticated = 16
)

// refusal is an error that etcd itself has sent.
type refusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return "etcd says: " + quote(r.Message) }

// quote shows what somebody else has sent, or its beginning.
func quote(text string) string {
	const most = 200
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strconv.Quote(text)
}

// final reports whether etcd has decided: the request has had no effect and will have none, and another endpoint
// would say the same.
func (r *refusal) final() bool {
	switch r.Code {
	case codeInvalid, codeNotFound, codeDenied, codePrecondition, codeOutOfRange, codeUnauthenticated:
		return true
	case codeExhausted: // etcd also sends it for responses that are too long, when the change has happened
		return strings.Contains(r.Message, "space exceeded") || strings.Contains(r.Message, "too many requests")
	}
	return false
}

// Refused reports whether err is etcd's own refusal of a request, which has had no effect: asking again is of no use.
func Refused(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.final() || errors.Is(err, ErrNoLease)
}
