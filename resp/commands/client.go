package commands

import (
	"polder/resp/keyspace"
	"polder/resp/reply"
)

// Client is a client as commands see it: where its replies are written, and its access to keys.
type Client struct {
	reply.Writer
	keyspace.Access

	MaxBulk     int // the longest string in bytes that APPEND and SETRANGE may make
	OutputLimit int // the most fields that HRANDFIELD may be asked for

	// Each calls f for the space that the client sees; or for each partition that is here, beginning with number
	// from. It ends when f reports that it is done, or fails. During each call, Access is to the space or partition
	// in question.
	Each func(from int, f func(number int) (done bool, err error)) error
	// Partitions is how many partitions there are, here or elsewhere; 0 if the client sees a single space.
	Partitions int

	hdr int // length of the last bulk header: the guess for the next one
}
