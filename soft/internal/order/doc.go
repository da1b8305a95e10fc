// Package order is what the processor must be told of the order of loads and stores beside
// what Go's atomic operations say, and what it need not be told where they are dear.
package order
