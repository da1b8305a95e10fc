// Package logmodel explores the protocol by which a named heap is owned, kept and opened again: every order in which
// its steps can be taken, in small instances. It has tests only. Packages measure/simfaults and measure/simcrash run
// the product's code, in orders that chance chooses; this package runs a model of it, in all orders.
//
// # What is modelled
//
//   - Checkpoints (checkpoint_test): a journal in segments that the manifest lists, and a root. Changes of the
//     manifest that are late, or whose answer is lost; an owner that dies, or is superseded, between any two steps;
//     giving back what nobody needs.
//   - Deleting and cleaning (clean_test): tombstones, copies that are marked as only moved, checkpoints meanwhile.
//   - Partitions (handover_test): the map, which says which server is to have a partition; epochs, fences, leases;
//     owners that close, die, or go on when another owner has taken over; nodes that restart.
//   - Copies (copies_test): places that are away and come back, with their memory or without; fewer places than there
//     should be copies; closing a segment at the length acknowledged, deciding the length of the open segment, making
//     the copies that a segment lacks.
//
// Not modelled: more than one log at a time; evidence from nodes in place of the manifest's; how witnesses keep a
// register (package holder/witness has a simulator); spare copies, which may vanish; disks; damaged bytes; clocks
// that drift, except for what is assumed of them: a lease that was waited for is over.
//
// # What is checked
//
// In every state: a server that opened the heap then would find all that was acknowledged, or shown to a reader, and
// no key that was deleted; nothing that is needed was given back; no owner answers after the next one has answered,
// or shows less than was shown before. And if nothing else fails, the steps that are taken sooner or later
// (offers.will) lead from every state to one that lacks nothing: there is an owner, all copies are there, and nothing
// is kept that nobody needs.
//
// A copy, or a place's memory, is lost only while the manifest promises another good copy, or while there is a copy
// that counted and that nothing has replaced.
//
// A rule is needed only if something goes wrong without it. So each rule is broken, and the explorer has to find what
// goes wrong; go test -v prints how (model_test). With TEST_SOAK the bounds are wider.
//
// # How
//
// A model is a state, comparable and small, and a function that offers each step that can be taken in it
// (explore_test). States are visited breadth first and remembered by their hashes, so what goes wrong is found with
// as few steps as possible. A message that is late is a step that is taken late; one that is lost is a step that is
// never taken; a server that is stopped takes no step for a while. So none of these needs steps of its own.
package logmodel
