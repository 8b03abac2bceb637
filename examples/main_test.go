//go:build unix

// Package examples_test runs what the examples for job schedulers would run, with the
// scheduler's part played by hand.
package examples_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"example.com/turn/internal/testprogram"
)

// programs is the folder that has turn in it.
var programs string

func TestMain(m *testing.M) {
	programs = testprogram.Build()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(programs)
		os.Exit(status)
	}))
}
