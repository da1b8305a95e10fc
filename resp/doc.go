// Package resp serves far memory to Redis clients: a [Server] speaks RESP2 and
// RESP3 and keeps what it is told in maps of a [far.Heap]. Commands, replies
// and error texts are those of Redis 7.0. Made by [NewCache] it is a cache, and
// keeps what it is told in soft memory.
//
// # Structure
//
// A session is one client's state machine: bytes in, bytes out, no I/O. It
// parses commands in place (package proto), looks them up in a table, and runs
// their handlers. A driver moves the bytes: on Linux an event loop on epoll
// for TCP and Unix sockets, elsewhere and for TLS two goroutines a connection.
//
// # Waiting
//
// A handler first runs with [far.NoWait]. If it needs something far, its changes
// are undone, if it has made any; its locks are dropped, its reply is taken back, the keys of
// all commands that the client has pipelined are fetched in one batch, together
// with those of other clients, and it runs again. When that has not helped a few
// times it waits where it must, with its locks held, at most Config.OpTimeout in
// all. An event loop never waits: when a command has to, the loop goes on in
// another goroutine.
//
// # Atomicity and lock order
//
// As in Redis, every command and every transaction is atomic: it has the locks of its keys, shared if it only reads, and EXEC those of
// all its commands and of the keys it watches (see package keyspace). FLUSHALL has the locks of all keys.
// KEYS, SCAN, DBSIZE and RANDOMKEY have none. The lock order is
//
//	locks of keys, and what package keyspace has below them
//	server.mu, then a stream's
//
// # Errors of far memory
//
//	-LOST      the value was in far memory that is gone; the text names the
//	           node. SET, DEL and the like replace or remove it.
//	-TRYAGAIN  far memory did not answer within Config.OpTimeout
//	-OOM       far memory is full, or the local budget with what leads to
//	           it; the text says which. What is stored stays readable, and what
//	           deletes still works: DEL, HDEL, FLUSHALL and the like, and
//	           transactions of them
//
// A command that is answered with one of them has changed nothing, however many
// keys, fields and blocks it is about. EXEC fails as a whole if one of
// its commands does; what else is wrong with a command of a transaction is the
// reply of that command alone, as in Redis.
//
// # Differences from Redis
//
// CLIENT PAUSE lasts an hour at most and never stops CLIENT, so that somebody can
// end it. MONITOR and SLOWLOG show nothing that follows AUTH, not even where the
// command is wrong; a monitor that does not read is disconnected; the slow log has
// 1024 entries at most, counts waiting for far memory, and has EXEC as one entry.
// LATENCY has the event far-fetch, and no GRAPH. CLIENT NO-EVICT changes nothing.
// CONFIG SET changes latency-monitor-threshold, maxclients, maxmemory,
// slowlog-log-slower-than, slowlog-max-len and timeout, until the server ends;
// maxmemory is the budget of local memory, up to four times what it was at the
// start: with what is more, keys go to far memory and none is evicted.
//
// SAVE, BGSAVE and BGREWRITEAOF take a checkpoint of a heap that is kept, and are refused without. WAITAOF is
// that of Redis 7.2, and has the disk of the server as its only copy.
//
// SYNC is for redis-cli --rdb: an RDB file of what there is, not of one moment; see dump.go. There are no replicas.
// With Config.Heap a server answers SENTINEL, and until it has the heap ROLE and INFO as a replica would. SENTINEL REPLICAS are none, since it answers no reads.
//
// SUBSCRIBE and the like are refused in a transaction. A subscriber that does not read is disconnected.
//
// There is one database. Expiry times end in the year 10889. What a value may
// measure is bounded by the heap's Config.MaxValue too. A pattern may have at
// most 1024 characters between two stars if there are ? or [ among them.
//
// # Partitions
//
// With Config.Cluster a server has some of the partitions of a keyspace, and other servers have the others. It has the
// clients; each partition is a keyspace.Space, of a heap of its own (AddPartition, RemovePartition). A session runs a command
// at the partition that has the slot of its keys. If that is not here, the command is forwarded to the server that has it, or the client is
// told where it is, if it has shown that it understands: by CLUSTER SLOTS, SHARDS or NODES, or by READONLY. While nobody has it, the
// command waits, for Config.OpTimeout at most.
//
// All keys of a command are in one slot, and so are those of a transaction with what it watches. What is about all keys is about
// the partitions that are here. WATCH of keys elsewhere takes a connection there that is the client's alone (tie.go), by which EXEC goes, too.
// A partition does not go before the replies have been sent that show what it has, so a session sends them before it waits for another server.
//
// # As a cache
//
// Over soft memory any key may vanish between two commands, as with a Redis
// that evicts; within one command, and between WATCH and EXEC, it does not go
// unnoticed. maxmemory (CONFIG GET, INFO) is what the heap may use now, which a
// coordinator changes at any time; without one, CONFIG SET maxmemory does. A
// value for which there is no memory is dropped at once, without an error. A
// hash is one entry; one that would have to be cut into blocks is refused.
// Times of expiry end in the year 2242.
//
// # Files
//
// A command comes to a session by a driver, which moves bytes. The session finds it in the table, locks its keys, and runs its
// handler; most handlers are in packages of their own, which know nothing of this one:
//
//	commands   those about keys and values
//	keyspace   keys and values themselves: locks, transactions, large hashes, the journal; it has the formats of package hashes
//	reply      where replies are written, and errors
//	table      what commands there are
//	feed       what clients are told without asking: messages of channels, lines of MONITOR
//	forward    commands for other servers, and the replies
//	topology   what clients are told of where data is: CLUSTER, SENTINEL, ROLE
//	latency    how long commands take: SLOWLOG, LATENCY
//	glob       patterns of KEYS, SCAN and PSUBSCRIBE
//	rdb        files of SYNC
//
// A server and its clients: server, config, settings (CONFIG SET), stats, info;
// session is what every client is, client what CLIENT shows of it, login the door and the
// password; kill and pause.
//
// Drivers: loop, conn and sys_unsafe (event loops), stream (two goroutines a client);
// fetch brings what event loops need from far memory.
//
// Partitions: part (the data that a server has, or one partition of it, and what replies show of it), partitions (what becomes of a command
// about another one), tie (keys that are watched elsewhere), cluster (READONLY and the like).
//
// Handlers: table (what there is, and who runs it), connection, multi, save, dump (SYNC), snapshot (for polder heap save), pubsub, monitor,
// sentinel.
package resp
