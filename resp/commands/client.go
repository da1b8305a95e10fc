package commands

import (
	"polder/resp/keyspace"
	"polder/resp/reply"
)

// Client is what a client has whose commands run: where its replies are written, and its access to keys.
type Client struct {
	reply.Writer
	keyspace.Access

	MaxBulk     int // the longest string in bytes, as APPEND and SETRANGE make it
	OutputLimit int // the most fields that HRANDFIELD is asked for

	// Each has f called for the space that the client sees, or for each of the partitions that are here, from a number on, until f
	// reports that it is done, or fails. The access is to that space meanwhile.
	Each func(from int, f func(number int) (done bool, err error)) error
	// Partitions is how many there are, here or elsewhere; 0 if the client sees a single space.
	Partitions int

	hdr int // length of the last bulk header: the guess for the next
}
