// Package look looks at the elements of structures of far objects where they are, without their types: it adds them up ([Aggregate]), finds
// those that count ([Filter]), and copies some of them ([Gather]). Package far says what that means to programs.
//
// What is local is looked at here, in a scope. What is far is left to the store, some megabytes at a time, if that is a store.Computer,
// with the segments pinned; and what the store cannot look at is read. While the store looks at one part of a structure, the next
// one is looked at here.
//
// # Files
//
// turns: parts of a structure, here and at the store. window: parts that are looked through from one end to the other; gather:
// elements of some indices.
package look
