package episode_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the program of the child processes that tests start: see
// TestAProgramThatSetsNoLoggerSeesNothing and TestTheMemoryOfHostileRepliesIsBounded.
func TestMain(m *testing.M) {
	if servers := os.Getenv(embedderVariable); servers != "" {
		os.Exit(embedder(servers))
	}
	if arguments := os.Getenv(attackedVariable); arguments != "" {
		os.Exit(beAttacked(arguments))
	}
	goleak.VerifyTestMain(m)
}
