// Package partition has servers agree on which of them owns which part of one Redis keyspace.
//
// Redis divides its keyspace into 16,384 slots. Here P partitions of adjacent slots cover them, and a Map says which server
// has each partition. The map is the value of a register (package holder), which witnesses or etcd keep.
//
//	m, err := partition.Join(ctx, partition.Config{
//		Register: register, ID: id, Addr: "10.0.0.5:6379", Partitions: 64,
//		Open:  func(ctx context.Context, p int, mine <-chan struct{}) error { ... }, // own the heap of partition p when mine is closed, and serve it
//		Close: func(ctx context.Context, p int) error { ... }, // stop serving it, and give up the heap
//	})
//	owner := m.Map().Owner[partition.Of(partition.Slot(key), 64)]
//
// # What is promised
//
// The map is intent. That one server at a time serves a partition is not promised here: each partition is a named heap of
// its own, and if two servers believe that they own it, package far/named fences one of them off. What is promised, if the register can
// be reached:
//
//   - Each partition gets an owner that lives. When a server dies, the others take its partitions over, all at once: while its beat is overdue, each of them looks at
//     the register every 50 ms.
//   - The numbers of partitions of servers differ by at most one, and the least number of partitions moves to get there. Partitions that have moved because
//     of load change that: then a server has at least one, if there are enough, and at most twice its share.
//   - A balanced map is left as it is.
//
// While the register cannot be reached, a server goes on serving what it has.
//
// # Servers
//
// Each server changes its beat in the map once every Config.Beat. In the same change it does whatever it sees must be done, by one pure
// function (step): it takes out servers whose beat it has not seen change for Config.Patience, gives partitions without an owner to
// servers, and plans moves. So there is no leader, and it does not matter who does what must be done.
//
// A server that was taken out although it lives finds itself missing from the map. It joins again, and closes the partitions that the
// map has given to others.
//
// # Moves
//
// A planned move is an entry of Map.Next. The next owner says in the map which partition it expects (Server.Expects), one at a time, and calls Config.Open for it, which
// prepares what it can. The owner then calls Config.Prepare, makes the next owner the owner, and calls Config.Close, one partition at a time, too. While the register cannot be
// changed it goes on serving the partition. Config.Open, of the next owner, waits until the partition was given up. Who expects a partition, or hands one over, looks at the register every 10 ms.
//
// A server of an earlier version does not say what it expects. It gets its partitions, several at a time, when it has beaten since the moves were planned.
//
// # Load
//
// Each server says in the map how much of a second each of its partitions takes (Config.Spent), smoothed over 30 beats, and in levels that change only
// when the time is clearly another one. What it says stays in the map until the next owner has had the partition for 30 beats. When the numbers are as they should be, and a server
// has had too much for 30 beats, one partition moves from it to the server that has least to do (ease). Too much is when by such a move, or by a row of them, the
// greater one of what the two servers have to do gets less by an eighth. The next move waits for 30 beats again, and a partition that has
// moved stays for 60, so that nothing moves to and fro. A partition that alone has most of the load stays where it is. Server.Extra notes what has moved in this way,
// so that the numbers are not balanced again, also when there is nothing to do any more.
//
// While a server does not say how much there is to do, as one of an older version, nothing moves because of load.
//
// # Concurrency
//
// Each Member has one goroutine that reads and beats, one for each partition that it serves, and one while it hands a partition over.
// Member.installing is locked before Member.mu; neither is held while the register is asked, or while Config's functions run, but installing while
// Changed does.
//
// # Files
//
// slot (keys, slots and partitions), map (what servers agree on, and its format), step (what must be done to a map), load (how much partitions give to do), ease (moves because of load), member (reading and changing
// the map, joining and leaving), serve (opening, closing and handing over partitions), remove (removing the map), fill (a map whose partitions are filled before anybody joins).
package partition
