package episode_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the program of the child process that a test starts: see
// TestAProgramThatSetsNoLoggerSeesNothing.
func TestMain(m *testing.M) {
	if servers := os.Getenv(embedderVariable); servers != "" {
		os.Exit(embedder(servers))
	}
	goleak.VerifyTestMain(m)
}
