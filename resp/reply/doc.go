// Package reply writes what a client is told: replies of either version of the protocol into the memory of whoever sends them
// ([Writer]), and errors with the texts of Redis ([Error]).
//
// A Writer has room for replies that are short, one behind the other, in memory that its driver uses for the replies of many clients. A
// value that is too large for it is written to mapped memory, which the driver then takes as it is.
package reply
