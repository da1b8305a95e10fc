// Package origin is a cache in soft memory in front of a Redis that runs elsewhere, the origin. Clients speak to a
// [Server] as they would to the origin, and nothing has to be programmed. GET and MGET are answered from memory that
// is idle on this machine; so are GETRANGE, STRLEN and EXISTS for values that GET and MGET have brought. Every other
// command is passed on unchanged, over a connection of the client's own, with its transactions, scripts,
// subscriptions, databases and users. Reads of hashes and other collections are passed on, too: an invalidation names
// the key and not what has changed in it, and PTTL does not say how long a field lives.
//
// # What is promised
//
// Whatever goes through one Server is linearizable, as it is at one Redis: when a client has the reply to a write, by
// any command, nobody reads the old value from this cache any more. For what others write at the origin itself:
//
//   - A read never returns a value after the server has received its invalidation.
//   - Reads are sequentially consistent: all clients of the cache see the
//     origin's states in their order, none of them twice. MGET sees one state.
//   - A read is at most Config.Lag old, 1 s by default, whatever the network
//     does: what has not been confirmed for so long is asked for again.
//   - A key with a time to live ends here no later than there.
//
// One thing is not seen: a SWAPDB that is not sent through the cache, since Redis sends no invalidation of it.
//
// # How
//
// One connection, the link, is the cache's own: RESP3 with CLIENT TRACKING ON. Only GET, PTTL and PING are sent
// there, so that in the default mode Redis remembers for us exactly the keys that are cached. OPTIN would have the
// same effect with one more command for each read; BCAST would send an invalidation of every write. Replies and
// invalidations come in one stream, in the order in which the origin has executed what they are about, and one
// goroutine applies them in that order. So the cache has the origin's state at one point of the stream, and the point
// only moves forward.
//
// A miss is a flight: GET and PTTL in one write. The time to live counts from before they were sent. If an
// invalidation of the key comes between the flight's start and its last reply, the flight's value is given to the
// clients that wait for it and is not cached, and clients that come later begin another flight. Therefore GET and
// PTTL need no MULTI, and an origin may put a reply behind an invalidation that overtook it. There is one flight of a
// key at a time. The number of flights is bounded; beyond the bound, reads are passed on.
//
// The reply to a command that was passed on has to wait if the command concerned something that is cached: otherwise
// the client that sent it could know a new value before the cache knows that its own is out of date. For common
// commands the cache knows which keys they concern; if none of these is cached or in flight, the reply goes on at
// once. Otherwise, and for EXEC, scripts and everything unknown, the cache sends a PING on the link and waits for its
// reply, which comes behind the invalidations. That costs a second round trip. Replies that come together wait
// together.
//
// When the link breaks, or is silent for Config.Timeout, everything is forgotten before anybody is answered from
// another link, and reads are passed on meanwhile. An invalidation of all keys (FLUSHALL) forgets everything, too.
//
// # Who may read
//
// Clients give the origin's passwords, to the origin. A client is answered from the cache only while it is the link's
// user, in the link's database, and neither within a transaction nor between WATCH and EXEC. It also must have no
// reply outstanding, so that its commands take effect in its order. A client that subscribes, monitors or tracks by
// itself has its connection passed on from then on; so has a client that changes its user, database or protocol
// within a transaction. Replication is refused.
//
// # Why this is not a client library
//
// What counts here is where an invalidation stands among the replies of one connection, and that the replies to
// clients go on byte for byte. go-redis, which the tests use, handles pushes beside the replies; libraries that cache
// by themselves do it for one program, after the commands are taken apart. Little is needed of the protocol: see
// lines and proto.Skimmer.
//
// # Concurrency
//
// A client has a goroutine that reads its commands; once it has a connection to the origin, another one that reads
// the replies there; and a third one while it reads more slowly than it is answered. The link has a goroutine that
// reads, which alone changes what is cached, and one that writes. client.mu is taken within output.mu; Server.mu and
// tracker.mu are leaves, except that client.mu is taken within Server.mu when the server is closed.
package origin
