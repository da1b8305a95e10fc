// Package files is a door: it serves the files of a directory over HTTP, read through a page
// cache in soft memory (package soft/blocks).
//
// What is served is what the directory holds: a file that has changed on disk is served as it
// is now (blocks.Cache.FS has the promise and its limits), and a response that a change
// overtakes breaks off before it mixes the two. A directory is its index.html or, without
// one, a list of its files. GET and HEAD are answered, with Range, If-Range, If-None-Match
// and If-Modified-Since; the ETag is of the file's identity, size and times, and a file that
// has changed within the last second has none.
//
// No request leaves the directory: paths are resolved by os.Root, which follows symbolic links
// within it and no others. What is no regular file, such as a FIFO, is not found and never
// waited for. Everything in the directory that the process may read is served to whoever can
// connect.
//
// # Bounds
//
// A Server has at most Config.MaxConns connections; the client that has been silent longest makes room for the next
// (internal/httpserver). A client must take 64 KiB of a response in thirty seconds.
//
// # Concurrency
//
// A Server's methods may be called by any number of goroutines. It owns the goroutines of its
// httpserver.Server; Close ends them.
package files
