// Package etcd is a small client of etcd, over the JSON gateway that every server of it has at its client address since
// version 3.4 (paths below /v3). It needs nothing but net/http: etcd's own client brings gRPC, which is more than the
// memory and the dependencies of a daemon allow.
//
// A request goes to the endpoint that answered last. If that one does not answer within Config.Timeout, or says that it
// cannot serve, the next one is asked. A change is asked for again elsewhere only if the endpoint before cannot have seen
// it: otherwise the error is ErrUnknown, and nobody can tell from here whether the change happened, or will happen.
//
// All reads are linearizable: an answer has every change that was complete when the request was sent. All endpoints have
// to be of one cluster, the one that answered first: another one is refused, since its revisions mean something else.
//
// What the other side sends is not trusted: responses are bounded, in bytes and in time, are not decompressed, and have to
// be what etcd sends, so that another server at the address is an error and not an empty store.
//
// A Client may be used by any number of goroutines. It has none of its own but those of connections, until Close.
package etcd
