package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// beProgram has the test binary be turn itself, for tests that send signals to a
// real process.
const beProgram = "TURN_TEST_BE_PROGRAM"

func TestMain(m *testing.M) {
	if size, set := os.LookupEnv(beStub); set {
		fmt.Fprintln(os.Stderr, serveStub(size))
		os.Exit(1)
	}
	if os.Getenv(beProgram) != "" {
		main()
	}
	// A program with the race detector sleeps for a second before it ends.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")); err != nil {
		panic(err)
	}
	testscript.Main(m, map[string]func(){"turn": main})
}

// The command line from end to end, one script a subject.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			dataset, err := os.ReadFile("../../testdata/weather.jsonl")
			if err != nil {
				return err
			}
			env.Setenv("GORACE", os.Getenv("GORACE"))
			return os.WriteFile(env.WorkDir+"/weather.jsonl", dataset, 0o644)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status},
	})
}
