// Package order has fences for the order of loads and stores that Go's atomic operations do not give, and a store
// that is cheaper than an atomic one because it orders less.
package order
