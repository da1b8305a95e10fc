// Package simcluster reproduces what FineMem's paper says of scheduling in a cluster: how
// much sooner 200 jobs are through when their servers borrow far memory from one pool
// than when each has a partition for itself, as with Fastswap.
//
// A file gives the machines, the jobs (memory, processors, and how long one takes with a
// share of its memory local), the policy's constants, and the published runs: [Spec] is
// its format. Nothing is fitted. Random numbers differ from the authors', so
// distributions are compared: [Run] plays each published mix several times and prints
// mean and quartiles of the ratio of makespans beside those of the published runs.
//
// # What is real
//
// One play of the first mix has every chunk of the pool borrowed and given back by package pool/finemem, over the
// worker of package memnode/rebind, in virtual time (package measure/simfinemem). If a chunk were lost, or if none
// were found although the accounts say that one is free, the play would fail. It must also take as long as the same
// play with accounts alone, which is how all other plays run.
//
// # What is a model
//
// Jobs: when a server's memory is too small, its jobs share it, and each goes on at the pace that its curve gives for
// its share. Where the paper's policy can be read in two ways (which of the waiting jobs starts first, how jobs
// shrink), the other way is played, too.
//
// Sharing [Idle] is ours: besides the pool, servers lend each other what they have free.
package simcluster
