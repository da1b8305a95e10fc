// Package directory is where memory nodes announce themselves and their borrowers find them: in etcd, below
// /polder/CLUSTER/nodes/, with one key for each node, named after its address. Nodes of other clusters are not seen.
//
// A key is under a lease, which its node keeps by a heartbeat every quarter of the lease's time, from a goroutine
// that waits for nothing else. So a node that has ended, or does not get to run, disappears from the directory after
// DefaultTTL. That says which nodes there are, and nothing more: a lease never decides who owns something.
//
// Anybody who may write to etcd can write entries. They are checked and bounded; a wrong entry does not hide the
// others.
package directory
