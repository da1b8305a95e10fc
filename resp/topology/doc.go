// Package topology has what clients are told of where data is: of the map of partitions by CLUSTER, and of the server that has a heap by
// SENTINEL, ROLE and INFO.
package topology
