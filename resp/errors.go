package resp

import (
	"context"
	"errors"

	"polder/far"
	"polder/resp/glob"
)

// ErrServerClosed is what Serve returns after Shutdown or Close.
var ErrServerClosed = errors.New("server is closed")

// replyError is an error reply, code and text, as the client sees it.
type replyError string

func (e replyError) Error() string { return string(e) }

// The texts are Redis's, but for those of limits that it does not have.
const (
	errSyntax       replyError = "ERR syntax error"
	errWrongType    replyError = "WRONGTYPE Operation against a key holding the wrong kind of value"
	errNotInt       replyError = "ERR value is not an integer or out of range"
	errNotInt32     replyError = "ERR value is out of range, value must between -2147483648 and 2147483647"
	errNotFloat     replyError = "ERR value is not a valid float"
	errHashNotInt   replyError = "ERR hash value is not an integer"
	errHashNotFloat replyError = "ERR hash value is not a float"
	errOverflow     replyError = "ERR increment or decrement would overflow"
	errDecrOverflow replyError = "ERR decrement would overflow"
	errNaN          replyError = "ERR increment would produce NaN or Infinity"
	errNoKey        replyError = "ERR no such key"
	errOffset       replyError = "ERR offset is out of range"
	errTooLong      replyError = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
	errKeyTooLong   replyError = "ERR key exceeds the maximum size of 65535 bytes"
	errDBIndex      replyError = "ERR DB index is out of range"
	errSameObject   replyError = "ERR source and destination objects are the same"
	errCursor       replyError = "ERR invalid cursor"
	errLoading      replyError = "LOADING Redis is loading the dataset in memory"
	errAuth         replyError = "NOAUTH Authentication required."
	errWrongPass    replyError = "WRONGPASS invalid username-password pair or user is disabled."
	errNoPassword   replyError = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
	errExecAbort    replyError = "EXECABORT Transaction discarded because of previous errors."
	errNested       replyError = "ERR MULTI calls can not be nested"
	errExecNoMulti  replyError = "ERR EXEC without MULTI"
	errDiscNoMulti  replyError = "ERR DISCARD without MULTI"
	errWatchInMulti replyError = "ERR WATCH inside MULTI is not allowed"
	errNotInMulti   replyError = "ERR Command not allowed inside a transaction"
	errMonitors     replyError = "ERR Replica can't interact with the keyspace" // as Redis says it
	errHashTooLarge replyError = "ERR a cache keeps a hash as one value: this one would have more than 512 fields or 16384 bytes"
	errOutput       replyError = "ERR the reply would be longer than the output limit: ask for less at once"
	errDebug        replyError = "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server."
)

// errText is the reply for an error that a handler returned.
func errText(err error) string {
	var re replyError
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
		return string(errTooLong)
	case errors.Is(err, context.DeadlineExceeded):
		return "TRYAGAIN far memory did not answer in time"
	case errors.Is(err, context.Canceled), errors.Is(err, far.ErrClosed):
		return "ERR server is shutting down"
	}
	return "TRYAGAIN far memory: " + err.Error()
}
