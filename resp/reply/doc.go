// Package reply writes what a client is told: replies, in either version of the protocol, into the memory of whoever
// sends them ([Writer]), and errors with the texts of Redis ([Error]).
//
// A Writer writes short replies one behind the other into memory that its driver uses for the replies of many
// clients. A value that is too large for that memory is written to mapped memory, which the driver then takes as it
// is.
package reply
