// Package topology has what clients are told about where data is: the map of partitions (CLUSTER), and the server
// that has a heap (SENTINEL, ROLE and INFO).
package topology
