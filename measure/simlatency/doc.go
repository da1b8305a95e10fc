// Package simlatency reproduces figure 10 of the OneSidedMW paper in virtual
// time: how long accessing and allocating a page of remote memory takes with
// each way of managing it, with one thread and with 24.
//
// # The experiment
//
// One compute node, one memory node with one core, as in the paper's testbed.
// Each thread "performs remote memory allocation and access" (section 6.3): it
// allocates a chunk of 4 KiB and then reads or writes it, in turn, as fast as it
// can, and both are timed. With Static-MR there is nothing to allocate. Reads
// and writes alternate because they must: 24 threads that only read 4 KiB would
// need 7.9 µs for it on a link of 100 Gbit/s, and the paper has 3.7.
//
//   - Static-MR: one region, registered as a whole.
//   - RPC-MW: a message to the node's core, which binds a window of type 1 or 2 and replies. Nothing else tells the
//     two types apart here, as freeing and merging have no part in the figure.
//   - ODRP: every access is a request to a chain that looks the page up in the client's translation table and moves
//     it; the first access allocates the page. This is the chain that memory nodes run (memnode/chain), one for both.
//     ODRP's authors have one chain for accesses and one for first touches, and the published figures are theirs.
//   - OneSidedMW: the chains of package memnode/chain. Every thread accesses
//     memory through the queue pair that it allocates with.
//   - OneSidedMW(+Sep): one Alloc QP and one Free QP for the compute node, as in section 5, and access queue pairs
//     without chains. The figure's text gives its access latency only; that 24 threads queue for one Alloc QP shows
//     in allocation, and more Alloc QPs help.
//
// # The key-value store
//
// RunKV has figures 6 and 7: package race over the same managers, with values of 1 KiB in chunks of 2 to 8 KiB, on
// one compute node or six (kv.go). All data lie in one registered region, whatever a chunk was opened with:
// kvstore.go says why. RunKV also has the YCSB-A of FineMem's paper, over that paper's manager and its rival.
//
// # Swapping
//
// RunSwap has figures 8 and 9: tasks whose pages are far, over the same managers (swap.go),
// and what grouping and separation bring. Package measure/simcluster has FineMem's cluster.
//
// # Calibration
//
// sim.Costs has all parameters and where they come from. One was fitted to the figure's column of one thread:
// sim.Costs.Bind, so that OneSidedMW allocates in 10.7 µs. Nothing was fitted to the column of 24 threads. It is a
// prediction, except for RPC-MW's allocation, which sim.Costs.RPC nearly gives. Each row says which it is.
package simlatency
