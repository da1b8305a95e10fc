// Package simcrash crashes a durable server over a named heap at every point, and opens what is left. It has tests only.
//
// # What is real
//
// All of the server: commands and journal (package resp), the heap with its evacuator, cleaner and checkpoints (far), the log and the
// manifest (far/named), the copies (far/copies), and the recovery of all that. What surrounds it is a few lines each, of the same interfaces: nodes
// that lend chunks, and the register of the manifest.
//
// # Crash points
//
// A script of random commands runs once. All that changes what outlives the server is recorded: chunks that are lent and given back, bytes that are
// written to them, changes of the register; of each, when the server asked for it, and when it was told that it is done. So is what clients sent, and what they
// were answered. Each of those moments is a crash point. What outlives a crash there is all that was done, and any subset
// of what was asked for and not done yet, of writes also a part; for each crash point there are several such subsets.
// The server is opened on that, as another process would, and what it has is compared with a plain map: it is what the map was after some number of operations, at
// least all those that were acknowledged, and no more than were sent. Then it is given more to do, and all this is
// recorded as well: so what was recovered is crashed and opened again, also in the middle of a recovery.
//
// # What is not tried
//
// One owner is gone before the next one begins, so nobody fences anybody, and no lease is waited for: package measure/simfaults does
// that. There is one partition. A node may have lost its memory when a crash is over, not before.
//
// # Files
//
// world_test (what outlives processes, and recording what becomes of it), node_test (nodes and the register as a process sees them),
// process_test (a server, and a client of it), script_test (what clients do, and the plain map), crash_test (crash points, and what is checked).
package simcrash
