package httpcall_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the program of the child processes that some tests start: see
// runChild.
func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		os.Exit(childMain(name))
	}
	goleak.VerifyTestMain(m)
}
