// Package order has fences for the order of loads and stores that Go's atomic operations do not give, and a store
// that orders less than an atomic one where that is dear.
package order
