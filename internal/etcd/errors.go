package etcd

import (
	"errors"
	"strconv"
	"strings"
)

// Errors that callers test for.
var (
	// ErrUnknown is the error of a change of which nobody can tell whether it happened.
	ErrUnknown = errors.New("nobody can tell whether it happened")
	// ErrNoLease is the error for a lease that has ended, or never existed.
	ErrNoLease = errors.New("the lease has ended")
	// ErrOtherCluster is the error of an endpoint that belongs to another cluster than the first that answered.
	ErrOtherCluster = errors.New("the endpoint is of another etcd cluster than the one that answered before")
)

// The gRPC codes with which a server refuses a request.
const (
	codeInvalid         = 3
	codeNotFound        = 5
	codeDenied          = 7
	codeExhausted       = 8
	codePrecondition    = 9
	codeOutOfRange      = 11
	codeUnauthenticated = 16
)

// refusal is an error that etcd itself has returned.
type refusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return "etcd says: " + quote(r.Message) }

// quote shows a text of somebody else, or its beginning.
func quote(text string) string {
	const most = 200
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strconv.Quote(text)
}

// final reports whether etcd has decided: the request has had no effect and will have none, and other endpoints would
// answer the same.
func (r *refusal) final() bool {
	switch r.Code {
	case codeInvalid, codeNotFound, codeDenied, codePrecondition, codeOutOfRange, codeUnauthenticated:
		return true
	case codeExhausted: // also the code for a response that is too long, after the change has happened
		return strings.Contains(r.Message, "space exceeded") || strings.Contains(r.Message, "too many requests")
	}
	return false
}

// Refused reports whether err is etcd's own verdict on a request. Such a request has had no effect, and asking again
// does not help.
func Refused(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.final() || errors.Is(err, ErrNoLease)
}
