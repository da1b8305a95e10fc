// Package twoguests is tested in two virtual machines on a wire: a memory node
// in one, and in the other what borrows from it over RDMA, the real program
// included. Its tests are built with the tag ibverbs and need a host that cuts
// the wire and kills the node when it is asked to (package plan), so only
// robustness/rdma runs them.
package twoguests
