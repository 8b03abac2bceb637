// Package envserver is the HTTP face of package episode: the environment server
// that collectors and trainers call (section 3 of the protocol).
//
// Where [Config] has a token, only those who show it may call, save that anyone may
// ask whether the server is alive and ready.
//
// POST /run answers 200 with a result or a failure for every request that is
// admitted, and 422 for one that is not valid. When the caller goes away, its
// episode is cancelled and its closes still run. [Server.Serve] drains when its
// context ends: readiness goes off, new requests are answered with a shutdown
// failure, and episodes under way get a grace before they are cancelled.
package envserver
