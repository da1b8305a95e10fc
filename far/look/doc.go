// Package look looks at the elements of structures of far objects where they are, without their types: it adds them
// up ([Aggregate]), finds those that count ([Filter]), and copies some of them ([Gather]). Package far says what that
// means to programs.
//
// Local objects are looked at here, in a scope. Far objects are left to the store if that is a store.Computer, some
// megabytes at a time, with their segments pinned; objects that the store cannot look at are read. While the store
// looks at one part of a structure, the next part is looked at here.
//
// # Files
//
// turns: parts of a structure, here and at the store. window: parts that are looked through from one end to the
// other. gather: elements of some indices.
package look
