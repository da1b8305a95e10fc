// Package etcd is a small client of etcd. It uses the JSON gateway that every etcd server has had at its client
// address since version 3.4 (paths below /v3). It needs only net/http: etcd's own client brings gRPC, which is more
// than the memory and the dependencies of a daemon allow.
//
// A request goes to the endpoint that answered last. If that endpoint does not answer within Config.Timeout, or says
// that it cannot serve, the next one is asked. A change is sent to another endpoint only if the one before cannot
// have seen it. Otherwise the error is ErrUnknown: the client cannot tell whether the change has happened, or will
// happen.
//
// All reads are linearizable: an answer has every change that was complete when the request was sent. All endpoints
// have to be of one cluster, that of the endpoint that answered first. Endpoints of another cluster are refused,
// because its revisions mean something else.
//
// Responses are not trusted. They are bounded in bytes and in time, are not decompressed, and have to be what etcd
// sends, so that another server at the address is an error and not an empty store.
//
// A Client may be used by any number of goroutines. Its only goroutines are those of connections, until Close.
package etcd
