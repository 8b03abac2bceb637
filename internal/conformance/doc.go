// Package conformance holds a running `turn serve` against recorded cases of the
// protocol: what a caller sends, what the two servers behind answer, and what
// must come of it.
//
// A case is a JSON file in testdata/conformance ([Load]):
//
//   - flags of `turn serve`, beside the addresses and names of the servers;
//   - requests: what the caller sends, at once or after start_ms; body, or
//     body_text to the letter. repeat and repeat_text fill {{repeat}},
//     latin1_insert puts two bytes that are not UTF-8 in place of a string,
//     disconnect_after_ms ends the connection. The default is a POST of JSON to
//     /run;
//   - script: the replies of the servers behind, as package scripted has them;
//   - want: calls (path, cookies and body of each, in order) or steps (their
//     order only), and replies. Session ids read <RSID> and <ASID>, addresses
//     ENV_ADDR, RES_ADDR and AGENT_ADDR. See [Want] for the rest.
//
// [Record] plays a case against the process that [Start] has started and
// [Check] says what in the [Trace] is not as it must be. Beyond what a case
// wants, Check looks in each episode that what is only passed on is the same
// bytes, that no name stands twice in a body that was put together, that ids come
// back, and that no secret shows.
//
// Bodies are compared by their canonical form: names sorted, no white space,
// whole numbers without a fraction. One of more than 100 kB stands in a case as
// the SHA-256 of it ($sha). Numbers that a float cannot hold, NaN and text that
// is not JSON are marked ($num, $const, $text).
//
// The package reads JSON by itself: the reader of the project is among the things
// that are checked. Its test is run with
//
//	go test ./internal/conformance -run TestCases/seed_
package conformance
