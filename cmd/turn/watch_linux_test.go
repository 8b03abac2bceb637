package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Events that cannot be written are an error, in the end: the run itself goes on.
func TestEventsThatCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	run := exec.Command(os.Args[0], "run", "../../testdata/weather.jsonl", "--embedded", "weather", "-o", filepath.Join(t.TempDir(), "r.jsonl"), "--json")
	run.Stdout = full
	startProgram(t, run).wantExit(t, 1, "done      20 of 20", "turn: --json: write /dev/stdout: no space left on device")
}
