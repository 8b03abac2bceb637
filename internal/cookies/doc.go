// Package cookies keeps the cookies of one server in one episode, as the protocol
// has them (section 1): by name alone, their values untouched, and in a plain form
// where they stand in JSON.
//
// The driver keeps a jar for each of its two sessions; the agent server's kit keeps
// one for the tools that it calls. net/http's jar and cookies do not do: they drop
// quotes, skip a cookie in silence, and keep paths and domains that the protocol
// ignores.
package cookies
