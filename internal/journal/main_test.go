package journal_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the driver that a test kills: see
// TestADriverThatIsKilledLeavesWhatItHadBegun.
func TestMain(m *testing.M) {
	if dir := os.Getenv(killedVariable); dir != "" {
		fmt.Fprintln(os.Stderr, beKilled(dir))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
