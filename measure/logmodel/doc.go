// Package logmodel explores the protocol by which a named heap is owned, kept and opened again: every order in which its steps can
// be taken, in small instances. It has tests only.
//
// There are several models, each of a part of the protocol and of what that meets: the journal and its checkpoints (checkpoint_test),
// deleting and cleaning (clean_test), partitions that move from server to server (handover_test), and copies at places that go and come back, of which there may be too few
// (copies_test).
//
// A model is a state and the steps that can be taken in it (explore_test). Every state that can be reached is visited, breadth first, so what
// goes wrong is found with as few steps as possible. In each state is looked whether what was acknowledged would be found by whoever opened
// the heap then, and whether anything was given back that is still needed. From each state, what is done sooner or later must
// lead to one in which the heap has an owner, and nothing is kept that nobody needs.
//
// What nothing goes wrong without is no rule. So each rule is broken, and has to be missed: go test -v prints how (model_test).
package logmodel
