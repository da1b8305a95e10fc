// Package partition lets servers agree on which of them owns which part of one Redis keyspace.
//
// Redis divides its keyspace into 16,384 slots. Here P partitions of adjacent slots cover them, and a Map says which
// server has each partition. The map is the value of a register (package holder), which witnesses or etcd keep.
//
//	m, err := partition.Join(ctx, partition.Config{
//		Register: register, ID: id, Addr: "10.0.0.5:6379", Partitions: 64,
//		// when mine is closed, own the heap of partition p, and serve it
//		Open: func(ctx context.Context, p int, mine <-chan struct{}) error { ... },
//		// stop serving partition p, and give up the heap
//		Close: func(ctx context.Context, p int) error { ... },
//	})
//	owner := m.Map().Owner[partition.Of(partition.Slot(key), 64)]
//
// # What is promised
//
// The map is an intention. This package does not promise that only one server at a time serves a partition: each
// partition is a named heap of its own, and if two servers believe that they own it, package far/named fences one of
// them off. As long as the register can be reached, this package promises:
//
//   - Each partition gets an owner that is alive. When a server dies, the others take over all its partitions at
//     once: while its beat is overdue, each of them looks at the register every 50 ms.
//   - The servers' numbers of partitions differ by at most one, and as few partitions as possible move to get
//     there. Moves because of load make an exception: with them a server has at least one partition (if there are
//     enough) and at most twice its share.
//   - A balanced map is left as it is.
//
// While the register cannot be reached, a server goes on serving what it has.
//
// # Servers
//
// Each server changes its beat in the map once every Config.Beat. In the same change it does whatever the map needs,
// by one pure function (step): it takes out servers whose beat it has not seen change for Config.Patience, gives
// partitions without an owner to servers, and plans moves. So there is no leader, and it does not matter which server
// does it.
//
// A server that was taken out although it lives finds itself missing from the map. It joins again, and closes the
// partitions that the map has given to others.
//
// # Moves
//
// A planned move is an entry of Map.Next. The next owner says in the map which partition it expects (Server.Expects),
// one at a time, and calls Config.Open for it, which prepares what it can. The current owner, also one partition at a
// time, calls Config.Prepare, makes the next owner the owner in the map, and calls Config.Close. While it cannot
// change the register it goes on serving the partition. Config.Open at the next owner waits until the current owner
// has given the partition up. A server that expects a partition, or is handing one over, looks at the register every
// 10 ms.
//
// A server of an earlier version does not set Server.Expects. Its partitions are handed over, several at a time, once
// it has beaten after the moves were planned.
//
// # Load
//
// Each server writes into the map how much of each second each of its partitions takes (Config.Spent). The time is
// smoothed over 30 beats and kept as a level, which changes only when the time is clearly different. It stays in the
// map until the next owner has had the partition for 30 beats.
//
// When the numbers of partitions are balanced, and a server has had too much to do for 30 beats, one partition moves
// from it to the server that has least to do (ease). A server has too much to do if one such move, or several in a
// row, would make the greater load of the two servers smaller by at least an eighth. The next move waits for another
// 30 beats, and a partition that has moved stays for 60, so that nothing moves to and fro. A partition that has most
// of the load on its own stays where it is. Server.Extra records these moves, so that step does not undo them, even
// when the load has gone.
//
// While some server does not report loads, as servers of an older version do not, nothing moves because of load.
//
// # Concurrency
//
// Each Member has one goroutine that reads the register and beats, one for each partition that it serves, and one
// while it hands a partition over. Member.installing is locked before Member.mu. Neither is held while the register
// is asked or while Config's functions run, except that installing is held while Config.Changed runs.
//
// # Files
//
// slot (keys, slots and partitions), map (what servers agree on, and its format), step (planning the next changes of
// a map), load (measuring the load of partitions), ease (moves because of load), member (reading and changing the
// map, joining and leaving), serve (opening, closing and handing over partitions), remove (removing the map), fill (a
// map whose partitions are filled before any server joins).
package partition
