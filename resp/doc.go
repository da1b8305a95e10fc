// Package resp serves far memory to Redis clients: a [Server] speaks RESP2 and RESP3 and keeps its clients' data in
// maps of a [far.Heap]. Commands, replies and error texts are those of Redis 7.0. A server made by [NewCache] is a
// cache, and keeps the data in soft memory.
//
// # Structure
//
// A session is one client's state machine: bytes in, bytes out, no I/O. It parses commands in place (package proto),
// looks them up in a table, and runs their handlers. A driver moves the bytes: an event loop on epoll for TCP and
// Unix sockets; two goroutines a connection for TLS, or if Config.Loops is negative.
//
// # Waiting
//
// A handler first runs with [far.NoWait]. If it needs something far, the session undoes the handler's changes, drops
// its locks and takes back its reply. The keys of all commands that the client has pipelined are fetched in one
// batch, together with those of other clients, and the handler runs again. If it still has to wait after a few tries,
// it waits where it must, with its locks held, at most Config.OpTimeout in all. An event loop never waits: when a
// command has to, another goroutine becomes the loop.
//
// # Atomicity and lock order
//
// As in Redis, every command and every transaction is atomic. A command holds the locks of its keys, shared if it
// only reads. EXEC holds the locks of the keys of all its commands and of the keys that the client watches (see
// package keyspace). FLUSHALL holds the locks of all keys. KEYS, SCAN, DBSIZE and RANDOMKEY hold none. The lock order
// is
//
//	locks of keys, and the locks that package keyspace has below them
//	server.mu, then a stream's
//
// # Errors of far memory
//
//	-LOST      the value was in far memory that is gone; the text names the
//	           node. SET, DEL and the like replace or remove it.
//	-TRYAGAIN  far memory did not answer within Config.OpTimeout
//	-OOM       far memory is full, or the local budget is full of what locates
//	           data in far memory; the text says which. What is stored stays
//	           readable, and commands that delete still work: DEL, HDEL,
//	           FLUSHALL and the like, and transactions of them
//
// A command that is answered with one of these errors has changed nothing, however many keys, fields and blocks it
// concerns. EXEC fails as a whole if one of its commands gets such an error; any other error is the reply of the one
// command that it concerns, as in Redis.
//
// # Differences from Redis
//
// CLIENT PAUSE lasts an hour at most and never stops CLIENT, so that somebody can end it. MONITOR and SLOWLOG show
// nothing that follows AUTH, not even in a malformed command. A monitor that does not read is disconnected. The slow
// log has 1024 entries at most, counts the time that a command waits for far memory, and has EXEC as one entry.
// LATENCY has the event far-fetch, and no GRAPH. CLIENT NO-EVICT changes nothing. CONFIG SET changes
// latency-monitor-threshold, maxclients, maxmemory, slowlog-log-slower-than, slowlog-max-len and timeout, until the
// server ends. maxmemory is the budget of local memory, and can be raised to four times its value at the start; data
// beyond it goes to far memory, and no key is evicted.
//
// SAVE, BGSAVE and BGREWRITEAOF take a checkpoint of a heap that is kept, and are refused if the heap is not kept.
// WAITAOF is that of Redis 7.2, and knows no copy but that on the server's own disk.
//
// SYNC is for redis-cli --rdb: its RDB file has the keys that there are, but does not show one moment; see dump.go.
// There are no replicas. With Config.Heap a server answers SENTINEL, and until it has the heap it answers ROLE and
// INFO as a replica would. SENTINEL REPLICAS lists none, since a server without the heap answers no reads.
//
// SUBSCRIBE and the like, and CLIENT REPLY OFF and SKIP, are refused in a transaction. PUBLISH in a transaction
// publishes once EXEC has succeeded. What commands in a transaction do to clients and to the server, such as CLIENT
// KILL, is done even if EXEC fails for want of far memory. A subscriber that does not read is disconnected.
//
// There is one database. Expiry times end in the year 10889. The heap's Config.MaxValue bounds the size of a value,
// too. A pattern may have at most 1024 characters between two stars if there are ? or [ among them.
//
// # Partitions
//
// With Config.Cluster a server has some of the partitions of a keyspace, and other servers have the others. Clients
// connect to the server; each partition is a keyspace.Space on a heap of its own (AddPartition, RemovePartition). A
// session runs a command at the partition that has the slot of the command's keys. If another server has that
// partition, the session forwards the command to that server. Clients that understand redirection are told where the
// partition is instead: those that have sent CLUSTER SLOTS, SHARDS or NODES, or READONLY. While no server has the
// partition, the command waits, for Config.OpTimeout at most.
//
// All keys of a command must be in one slot, and so must all keys of a transaction and the keys that it watches. A
// command about all keys is about the partitions that are here. WATCH of keys elsewhere takes a connection to their
// server for this client alone (tie.go); EXEC goes by it, too. A transaction that is forwarded is refused if a command
// in it is about the client's connection, such as HELLO or CLIENT. A partition does not leave the server before
// replies that show its data may be sent, so a session waits for that before it waits for another server.
//
// # As a cache
//
// Over soft memory any key may vanish between two commands, as with a Redis that evicts. Within one command, and
// between WATCH and EXEC, a key does not vanish unnoticed. maxmemory (CONFIG GET, INFO) is what the heap may use now:
// a coordinator changes it at any time; without a coordinator, CONFIG SET maxmemory changes it. A value for which
// there is no memory is dropped at once, without an error. A hash is one entry; a hash that would have to be cut into
// blocks is refused. Expiry times end in the year 2242.
//
// # Files
//
// A driver moves bytes, and so brings a command to a session. The session finds the command in the table, locks its
// keys, and runs its handler. Most handlers are in packages of their own, which know nothing of this one:
//
//	commands   commands about keys and values
//	keyspace   keys and values themselves: locks, transactions, the journal, large hashes (package hashes)
//	reply      where replies are written, and errors
//	table      what commands there are
//	feed       what clients are sent without asking: messages of channels, lines of MONITOR
//	forward    sends commands to other servers, and returns their replies
//	topology   replies about where data is: CLUSTER, SENTINEL, ROLE
//	latency    how long commands take: SLOWLOG, LATENCY
//	glob       patterns of KEYS, SCAN and PSUBSCRIBE
//	rdb        files of SYNC
//
// A server and its clients: server, config, settings (CONFIG SET), stats, info; session (the state machine of a
// client), client (what CLIENT shows of it), login (letting clients in, and passwords); kill and pause.
//
// Drivers: loop, conn and sys_unsafe (event loops), stream (two goroutines a client); fetch brings what event loops
// need from far memory.
//
// Partitions: part (the data that a server has, or one partition of it, and what unsent replies show of it),
// partitions (running or forwarding a command about a partition), tie (keys that are watched elsewhere), cluster
// (READONLY and the like).
//
// Handlers: table (what commands there are, and their handlers), connection, multi, save, dump (SYNC), snapshot (for
// polder heap save), pubsub, monitor, sentinel.
package resp
