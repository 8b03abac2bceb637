// Package httpcall makes one POST of the protocol: when it is sent again, where it
// is redirected to, how large its reply may be, and what a broken connection means
// (sections 1, 4 and 5).
//
// It stands on hashicorp/go-retryablehttp for the loop of re-sends and decides
// everything else itself, because that library's defaults are not safe here: it
// would replay refused POSTs, obey any Retry-After, throw a refusal's body away
// and close every idle connection of the pool after a failed call.
//
// A call ends in the reply's whole body or in a *[failures.Failure].
package httpcall
