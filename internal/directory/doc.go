// Package directory is where memory nodes say that they are there, and where who borrows from them finds them: in etcd,
// below /polder/CLUSTER/nodes/, one key a node, named after its address. A node of another cluster is not seen.
//
// A key is there under a lease, which its node keeps by a heartbeat every quarter of the lease's time, from a goroutine
// that waits for nothing else. So a node that has ended, or does not get to run, is not named any more after DefaultTTL.
// That says who is there, and nothing more: who owns what is never decided by a lease.
//
// Entries are what anybody has written who may write to etcd. They are checked and bounded; what is wrong with one does
// not hide the others.
package directory
