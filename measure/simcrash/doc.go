// Package simcrash crashes a durable server over a named heap at every point, and opens what is left. It has tests
// only.
//
// # What is real
//
// All of the server: commands and journal (package resp), the heap with its evacuator, cleaner and checkpoints (far),
// the log and the manifest (far/named), the copies (far/copies), and the recovery of all that. The rest is a few
// lines for each part, behind the same interfaces: nodes that lend chunks, and the register of the manifest.
//
// # Crash points
//
// A script of random commands runs once. The run records every change of what outlives the server: chunks that are
// lent and given back, bytes that are written to them, changes of the register. Of each change it records when the
// server asked for it, and when the server was told that it is done. It also records what clients sent, and what they
// were answered. Each of those moments is a crash point. A crash there is outlived by all changes that were done, and
// by any subset of those that were asked for and not done yet; of a write, also by a part. For each crash point
// several such subsets are tried. The server is opened on what has outlived the crash, as another process would open
// it, and its contents are compared with a plain map: they are what the map was after some number of operations, at
// least all those that were acknowledged, and no more than were sent. Then the server is given more to do, and all
// this is recorded as well: so what was recovered is crashed and opened again, also in the middle of a recovery.
//
// # What is not tried
//
// One owner is gone before the next one begins, so nobody fences anybody, and no lease is waited for: package
// measure/simfaults does that. There is one partition. A node may have lost its memory when a crash is over, not
// before.
//
// # Files
//
// world_test (what outlives processes, and recording what becomes of it), node_test (nodes and the register as a
// process sees them), process_test (a server, and a client of it), script_test (what clients do, and the plain map),
// crash_test (crash points, and what is checked).
package simcrash
