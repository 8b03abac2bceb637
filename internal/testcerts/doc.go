// Package testcerts makes certificates for tests of TLS: an authority of the test's own,
// what it signs, and a door with TLS and a token to put before a server.
package testcerts
