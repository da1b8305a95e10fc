// Package advise says how much local memory a data set needs for which hit ratio. It
// looks at the Redis server that has the data set today.
//
// Redis knows for each key how long ago it was last used, its age. That is enough for
// the whole curve of hit ratios. A cache that keeps the keys that were used last holds
// exactly the keys whose age is below some T; its size is the bytes of these keys. In a
// steady state, as many keys a second grow older than T as are missed and fetched again.
// So if N(T) keys are younger than T, N'(T) keys are missed in a second, of the N'(0) keys
// that are used in a second. (It is the model of Hu et al., "Kinetic modeling of data
// eviction in cache", USENIX ATC 2016.) N'(0) is counted, and N(T) comes from a sample of
// the keys.
//
// The load on the server is small. The package reads counters, and it reads the type, the
// age and the size of the keys of a bounded sample, which SCAN finds. None of that counts
// as a use of a key. Between its requests it waits four times as long as they take. It
// writes nothing, and reads no value.
package advise
