// Package logmodel explores the protocol by which a named heap is owned, kept and opened again: every order in which its steps can
// be taken, in small instances. It has tests only. Packages measure/simfaults and measure/simcrash run the product's code, in orders that
// chance chooses; here it is the other way round.
//
// # What is modelled
//
//   - Checkpoints (checkpoint_test): a journal in segments that the manifest lists, and a root. Changes of the manifest that are late, or whose answer is
//     lost; an owner that dies, or is superseded, between any two steps; giving back what nobody needs.
//   - Deleting and cleaning (clean_test): tombstones, copies that say that they have only moved, checkpoints meanwhile.
//   - Partitions (handover_test): the map, which is intent; epochs, fences, leases; owners that close, die, or go on when another one has
//     taken over; nodes that restart.
//   - Copies (copies_test): places that are away and come back, with their memory or without; fewer places than there should be copies; closing
//     a segment at the length acknowledged, deciding the open one, copying what lacks copies.
//
// Not modelled: more than one log at a time; evidence of nodes in place of the manifest's; how a register is kept by witnesses (package holder/witness has a
// simulator); spare copies, which may vanish; disks; damaged bytes; clocks that drift, but for what is
// assumed of them, which is that a lease is over when it was waited for.
//
// # What is checked
//
// In every state: whoever opened the heap then would find what was acknowledged, or shown to a reader, and no key that was deleted; nothing
// that is needed was given back; no owner answers after the next one has, or with less than was shown before. And from every state, what
// is done sooner or later (offers.will) leads to one that lacks nothing, if nothing else fails: there is an owner, all copies
// are there, and nothing is kept that nobody needs.
//
// A copy is lost, or a place's memory, only while the manifest promises another good copy, or there is one that counted and that nothing
// has taken the place of.
//
// A rule without which nothing goes wrong is none. So each rule is broken, and that has to be found; go test -v prints
// how (model_test). With TEST_SOAK the bounds are wider.
//
// # How
//
// A model is a state, comparable and small, and a function that offers each step that can be taken in it (explore_test). States are visited breadth first
// and remembered by their hashes, so what goes wrong is found with as few steps as possible. A message that is late is a step that is
// taken late, and one that is lost is a step that is never taken; a server that is stopped takes none for a while. So none of that needs
// steps of its own.
package logmodel
