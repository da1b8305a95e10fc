// Package maru is a door to shared memory for clients that speak Maru's
// protocol: the connectors of LMCache, vLLM and SGLang, unchanged.
//
// [Start] serves both of Maru's servers over one daemon of package
// share/server. The directory server says where keys lie and who owns which
// region: MessagePack in the frames of ZeroMQ, over TCP or a Unix socket. The
// resource manager says where a region's bytes are: a path, over a binary
// protocol of its own. The bytes themselves cross no socket: the clients open
// the path, and map it.
//
//	d, err := maru.Start(s, maru.Options{Directory: []string{"tcp://127.0.0.1:5555"}, Resources: "127.0.0.1:9850"})
//	defer d.Close()
//
// # What holds
//
// A key is visible when its bytes are complete, the first registration of a key wins, and what was acknowledged
// survives the daemon. That much is as for other clients. The rest is Maru's: every client maps every region
// writable, so any of them can damage any value; a client that frees a page while others look at it shows them other
// bytes; a pin holds a key, and nothing else does.
//
// What Maru leaves open is closed as far as a server can close it:
//
//   - A client is known by the identity that its asynchronous form shows, by its process over a Unix socket, and by
//     its connection to the resource manager. When all of these have been gone for the grace period, or the process
//     is dead, the client's pins are gone, too, and its regions count as returned.
//   - A region that was returned shrinks to its last key: the memory behind it is
//     free for others at once, and all of it when the last key is gone.
//   - Only the owner of a region registers keys in it, within its bounds, and in no place twice: when a place is
//     registered anew, the key that was there is deleted.
//   - A token is good for the client that it was told to, and for no other.
//   - A request that has waited for longer than Options.Late in the daemon is refused if its sender may have acted on
//     getting no answer; so are such requests that an asynchronous client sends right after it has reconnected.
//   - Numbers of regions are not used again, whatever is lost.
//   - Every byte of a region has memory behind it before a client hears of it.
//   - Answers to batches are always of full length.
//
// # Frames
//
// The frames are our own ZMTP 3.1, with mechanism NULL. github.com/go-zeromq/zmq4
// v0.17.0 was tried: it shakes hands in its accept loop, so that one silent
// connection keeps everybody else out; it makes a buffer of whatever length a
// frame announces; and it does not tell who is connected, which all of the above
// rests on. Ours are fuzzed (FuzzLink), and serve 1,000 clients at once
// (TestAThousandClientsAtOnce).
//
// MessagePack, too, is read and written by our own code: with
// github.com/vmihailenco/msgpack/v5 v5.4.1, which makes a string of each key and goes
// through a reader and a writer, the directory's part of a lookup of 64 keys took 48 µs
// instead of 20. FuzzDirectory compares what the two take for a value.
//
// # Concurrency
//
// A connection has one goroutine, which answers its requests one after the other;
// connections are served in parallel. A goroutine of the Door's looks after
// connections that are silent. Lock order: Door.mu, then link.mu; neither is held
// while a client is waited for, but for link.mu, within its deadline.
package maru
