//go:build unix

// Package examples_test runs what the examples for job schedulers would run, with the
// scheduler's part played by hand.
package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// programs is the folder that has turn in it.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "turn-examples")
	if err == nil {
		programs = dir
		build := exec.Command("go", "build", "-o", filepath.Join(dir, "turn"), "../cmd/turn")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build turn:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(dir)
		os.Exit(status)
	}))
}
