// Package failures says what went wrong with an episode, in one record that is
// the same in a reply, a log line and a Go error (section 4 of the protocol).
//
// A [Failure] names the stage it happened in, whether trying again can help,
// a kind from the registered list where one is known, and a reason that a
// person can act on: the refusing server's own words come first. These make
// one:
//
//   - [Refused]: a server answered with a status that is not a success.
//     [ReadRefusal] finds the words in whatever it sent.
//   - [Broken]: no whole reply came: the connection failed, or a limit or a
//     cancellation ended the call.
//   - [NotContract]: a reply came and is not what the contract says.
//   - [Interrupted]: the episode was ended from outside while it made no call.
//   - [New]: everything else, such as a wait for admission that was too long.
//
// Callers take a failure out of an error with errors.As and compare kinds with
// errors.Is:
//
//	var f *failures.Failure
//	if errors.As(err, &f) && !f.Terminal { … }
//	if errors.Is(err, failures.TransportUnreachable) { … }
//
// A kind never decides whether a failure is terminal.
package failures
