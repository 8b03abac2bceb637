// Package episodetest has faults happen between a caller and a server, for tests of
// either: of a collector or a driver, which must close what it opened and score nothing
// that it did not get, and of a server that keeps the session contract
// (docs/session-contract.md), which is asked again what it has answered already.
//
// # Testing a collector of your own
//
// A [Proxy] stands in front of any HTTP server: a resources, an agent or an environment
// server, a model endpoint. It listens on a loopback socket of its own, and what is
// tested is given its URL in place of the server's:
//
//	func TestMyCollectorClosesWhatItOpened(t *testing.T) {
//		resources := episodetest.Start(t, resourcesURL, episodetest.Script{
//			episodetest.Seed:   {{Kind: episodetest.DropBeforeReply}},                // the first seed's reply is lost
//			episodetest.Verify: {{}, {Kind: episodetest.DropInReply, Offset: 40}},    // the second verdict is cut off
//		})
//		… run the collector against resources.URL() …
//		… ask the server behind, or resources.Calls(), what became of it …
//	}
//
// A [Plan] says of each call, by its [Route] and its number on that route, which
// [Fault] it meets. A [Script] is one written by hand; [Random] draws one from a seed,
// which a failed test of [Start] prints so that it can be drawn again:
//
//	for seed := range uint64(100) {
//		proxy := episodetest.Start(t, resourcesURL, episodetest.Random(seed, 0.2))
//		… run the collector …
//		if err := proxy.Heal(); err != nil { … }  // no more faults
//		… run it until it is done; see that no session is open, no sample lost or scored twice …
//	}
//
// Any function is a plan as a [PlanFunc]. [Proxy.SetPlan] changes it while calls run.
// [Proxy.Refuse] and [Proxy.Cut] have the whole server be away, until [Proxy.Heal].
//
// # What holds of every fault
//
// What forwards a call uses the true reply of the server behind, which has then done
// its work. [Proxy.Calls] says whether a fault that was planned came to happen, and has
// it before the caller can see anything of it, so that a test need not wait. Apart from
// its fault a call passes byte for byte, chunks, trailers, interim replies and the
// order of headers included. A connection from a caller has one to the server behind
// that is its own: they are kept alive together, and when either side goes away the
// other one sees it. A fault that cannot but end the caller's connection does so; after
// any other the connection carries the next call.
//
// A body is never kept, save for two kinds that need all of it, and then 16 MiB of it
// at most. HTTP/1.1 and 1.0 are spoken, without TLS; an upgrade to another protocol is
// not passed on.
//
// # How it is made
//
// The proxy accepts connections itself and reads messages only to find where they end;
// net/http's server and reverse proxy would write them anew, with headers in another
// order and chunks of another size, and an offset would not be one of what the server
// sent. Shopify/toxiproxy, the well-kept library for broken connections, works on
// streams of bytes: it cannot tell one call on a connection from the next, so neither
// "the second verify" nor "once the server has done its work" can be said in it.
package episodetest
