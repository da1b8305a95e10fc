// Package directory is where memory nodes announce themselves, and where borrowers find them: in etcd, below
// /polder/CLUSTER/nodes/, one key for each node, named after its address. Nodes of other clusters are not seen.
//
// A key is under a lease. The node keeps the lease by a heartbeat every quarter of the lease's time to live, from a
// goroutine that waits for nothing else. So a node that has ended, or does not get to run, is not listed any more
// after DefaultTTL. The directory only says who is there: a lease never decides who owns what.
//
// Whoever may write to etcd may have written an entry. So entries are checked and bounded, and one wrong entry does
// not hide the others.
package directory
