// Package measuring has the commands polder bench and polder sim: what they are called, their flags, and which package under
// measure each runs.
package measuring
