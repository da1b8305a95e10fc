// Package partition has servers agree on which of them owns which part of one Redis keyspace.
//
// Redis divides its keyspace into 16,384 slots. Here P partitions of adjacent slots cover them, and a Map says which server
// has each partition. The map is the value of a register (package holder), which witnesses or etcd keep.
//
//	m, err := partition.Join(ctx, partition.Config{
//		Register: register, ID: id, Addr: "10.0.0.5:6379", Partitions: 64,
//		Open:  func(ctx context.Context, p int) error { ... }, // own the heap of partition p, and serve it
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
//   - Each partition gets an owner that lives. When a server dies, the others take its partitions over, all at once.
//   - The numbers of partitions of servers differ by at most one, and the least number of partitions moves to get there.
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
// A planned move is an entry of Map.Next. The owner waits until the next owner has beaten, and so knows of the plan. Then it hands over one partition at a time: it calls Config.Prepare and Config.Close, and then
// makes the next owner the owner. The next owner looks at the register every 10 ms meanwhile, and calls Config.Open as soon as it owns the partition.
//
// # Concurrency
//
// Each Member has one goroutine that reads and beats, one for each partition that it serves, and one while it hands a partition over.
// Member.installing is locked before Member.mu; neither is held while the register is asked, or while Config's functions run, but installing while
// Changed does.
//
// # Files
//
// slot (keys, slots and partitions), map (what servers agree on, and its format), step (what must be done to a map), member (reading and changing
// the map, joining and leaving), serve (opening, closing and handing over partitions), remove (removing the map).
package partition
