// Package httpcall makes one POST of the protocol: when it is sent again, where it
// is redirected to, how large its reply may be, and what a broken connection means
// (sections 1, 4 and 5).
//
// The loop of re-sends is a page of send.go, and no library's: those would replay
// refused POSTs, obey any Retry-After, throw a refusal's body away or close every idle
// connection of the pool after a failed call, and what it takes to keep one of them
// from that is longer than the loop, and took a fifth of the CPU of a call.
//
// A call ends in the reply's whole body or in a *[failures.Failure].
package httpcall
