// Package pool makes the connections of those who call Gym servers, as section 6 of the
// protocol has them.
//
// A [Transport] is the driver's: an http.RoundTripper for calls that are many and short,
// or few and silent for hours. net/http's transport gives each connection two goroutines
// and eight kibibytes of buffers, which hand a call on to each other; here whoever calls
// writes the request and reads the reply, and waits for it without a buffer. Replies are
// read by net/http's parser, and what both make of one is held against each other in the
// tests. It speaks HTTP/1.1 and no more: docs/performance.md has what that brings.
//
// What has to hold of it: no byte is sent after the context of a call has ended; a call
// goes to another connection by itself only if not a byte of it was written; a connection
// is used again only if all of the reply was read and nothing came behind it, and it is
// looked at before that; every connection ends up in the pool or closed.
//
//   - transport.go: which connection a call gets, and those that are idle.
//   - conn.go: one call on one connection.
//   - look_unix.go: looking at a connection without taking anything from it.
//   - dial.go: making one.
//
// [General] is for calls to models and tools, whose replies may be streams: net/http's
// transport with the same settings.
package pool
