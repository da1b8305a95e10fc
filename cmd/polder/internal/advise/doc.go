// Package advise says how much local memory a data set needs for which hit ratio. It
// looks at the Redis server that has the data set today.
//
// Redis knows for each key how long ago it was last used. That is enough for the whole
// curve of hit ratios. A cache that keeps what was used last holds exactly the keys
// whose age is below some T, so their bytes are its size. And in a steady state as
// many keys grow older than T in a second as are fetched again because they are not
// there: with N(T) keys younger than T, N'(T) are missed in a second, of N'(0) that
// are used. (It is the model of Hu et al., "Kinetic modeling of data eviction in
// cache", USENIX ATC 2016.) N'(0) is counted, and N(T) comes from a sample of the keys.
//
// What it does to the server: it reads counters, and of a bounded sample of keys,
// found by SCAN, the type, the age and the size. None of that counts as a use of a key.
// It waits four times as long between its requests as they take. It writes nothing,
// and reads no value.
package advise
