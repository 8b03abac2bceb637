// Package testcerts makes certificates for tests of TLS: an authority of the test's own,
// and what it signs.
package testcerts
