// Package invariants says whether expensive internal checks are on.
//
// They are on in every test that runs with -race and in builds with the tag
// "invariants", and cost nothing elsewhere: Enabled is a constant, so that
// code behind "if invariants.Enabled" is compiled away.
package invariants
