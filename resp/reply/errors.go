package reply

import (
	"context"
	"errors"

	"polder/far"
	"polder/resp/glob"
)

// Error is an error reply, code and text, as the client sees it.
type Error string

func (e Error) Error() string { return string(e) }

// Errors of commands about data, and of their arguments. The texts are Redis's, except for limits that Redis does not
// have.
const (
	ErrSyntax       Error = "ERR syntax error"
	ErrWrongType    Error = "WRONGTYPE Operation against a key holding the wrong kind of value"
	ErrNotInt       Error = "ERR value is not an integer or out of range"
	ErrNotInt32     Error = "ERR value is out of range, value must between -2147483648 and 2147483647"
	ErrNotFloat     Error = "ERR value is not a valid float"
	ErrHashNotInt   Error = "ERR hash value is not an integer"
	ErrHashNotFloat Error = "ERR hash value is not a float"
	ErrOverflow     Error = "ERR increment or decrement would overflow"
	ErrDecrOverflow Error = "ERR decrement would overflow"
	ErrNaN          Error = "ERR increment would produce NaN or Infinity"
	ErrNoKey        Error = "ERR no such key"
	ErrOffset       Error = "ERR offset is out of range"
	ErrTooLong      Error = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
	ErrKeyTooLong   Error = "ERR key exceeds the maximum size of 65535 bytes"
	ErrDBIndex      Error = "ERR DB index is out of range"
	ErrSameObject   Error = "ERR source and destination objects are the same"
	ErrCursor       Error = "ERR invalid cursor"
	ErrHashTooLarge Error = "ERR a cache keeps a hash as one value: this one would have more than 512 fields or 16384 bytes"
	ErrOutput       Error = "ERR the reply would be longer than the output limit: ask for less at once"
)

// Text returns the reply for an error that a handler returned.
func Text(err error) string {
	var re Error
	var lost *far.LostError
	switch {
	case errors.As(err, &re):
		return string(re)
	case errors.As(err, &lost):
		return "LOST the " + lost.Error()
	case errors.Is(err, far.ErrFull):
		return "OOM " + err.Error() + "; what is stored stays readable"
	case err == glob.ErrTooLong:
		return "ERR " + err.Error()
	case errors.Is(err, far.ErrTooLarge):
		return string(ErrTooLong)
	case errors.Is(err, context.DeadlineExceeded):
		return "TRYAGAIN far memory did not answer in time"
	case errors.Is(err, context.Canceled), errors.Is(err, far.ErrClosed):
		return "ERR server is shutting down"
	}
	return "TRYAGAIN far memory: " + err.Error()
}
