// Package measuring has the commands polder bench and polder sim: their names, their flags, and which package under
// measure each of them runs.
package measuring
