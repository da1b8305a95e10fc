// Package order has the fences and stores that keep loads and stores in order where Go's atomic operations do not,
// and cheaper ones where Go's atomic operations do more than is needed.
package order
