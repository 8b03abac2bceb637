//go:build race

package conformance

// buildFlags build the program under test with the race detector when the test
// itself has it.
var buildFlags = []string{"-race"}
