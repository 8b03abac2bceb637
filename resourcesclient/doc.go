// Package resourcesclient calls a resources server: the seed, verify and the
// close of one session (calls 1, 6 and 7 of the protocol).
//
// A [Session] is made with its id before anything is sent, so that its close can
// be registered first. It keeps the session's cookies.
package resourcesclient
