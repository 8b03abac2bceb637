// Package agentclient calls an agent server: the seed, the one answer and the
// close of a session (calls 3, 4 and 5 of the protocol).
//
// A [Session] is made with its id before anything is sent, so that its close can
// be registered first. It keeps the session's cookies.
package agentclient
