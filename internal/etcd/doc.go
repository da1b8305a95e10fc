// Package etcd is a small client of etcd. It uses the JSON gateway that every etcd server since version 3.4 has at
// its client address (paths below /v3). It needs nothing but net/http: etcd's own client brings gRPC, which is more
// memory and more dependencies than a daemon should have.
//
// A request goes to the endpoint that answered last. If that does not answer within Config.Timeout, or says that it
// cannot serve, the next endpoint is asked. A change is tried at another endpoint only if the endpoint before cannot
// have seen it. Otherwise the error is ErrUnknown: nobody can tell from here whether the change has happened, or will
// happen.
//
// All reads are linearizable: an answer includes every change that was complete when the request was sent. All
// endpoints must belong to one cluster, that of the first answer. Another cluster is refused, since its revisions
// mean something else.
//
// The other side is not trusted. Responses are bounded in bytes and in time, are not decompressed, and must have the
// form of etcd's, so that another server at the address causes an error and does not look like an empty store.
//
// A Client may be used by any number of goroutines. It has no goroutines but those of its connections, which end with
// Close.
package etcd
