package resp

import (
	"errors"

	"polder/resp/reply"
)

// ErrServerClosed is what Serve returns after Shutdown or Close.
var ErrServerClosed = errors.New("server is closed")

// Errors of a client's state, and the server's. The texts are Redis's.
const (
	errLoading      reply.Error = "LOADING Redis is loading the dataset in memory"
	errAuth         reply.Error = "NOAUTH Authentication required."
	errWrongPass    reply.Error = "WRONGPASS invalid username-password pair or user is disabled."
	errNoPassword   reply.Error = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
	errExecAbort    reply.Error = "EXECABORT Transaction discarded because of previous errors."
	errNested       reply.Error = "ERR MULTI calls can not be nested"
	errExecNoMulti  reply.Error = "ERR EXEC without MULTI"
	errDiscNoMulti  reply.Error = "ERR DISCARD without MULTI"
	errWatchInMulti reply.Error = "ERR WATCH inside MULTI is not allowed"
	errNotInMulti   reply.Error = "ERR Command not allowed inside a transaction"
	errMonitors     reply.Error = "ERR Replica can't interact with the keyspace" // as Redis says it
	errDebug        reply.Error = "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server."
)
