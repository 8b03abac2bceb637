package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"example.com/turn/internal/testcerts"
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
	authority := testcerts.NewAuthority(t)
	ours, other := authority.Certificate(t, "localhost", time.Now().Add(time.Hour)), authority.Certificate(t, "localhost", time.Now().Add(time.Hour))
	files := map[string]string{
		"weather.jsonl": "../../testdata/weather.jsonl",
		"ca.pem":        authority.File(t), "cert.pem": ours.CertFile, "key.pem": ours.KeyFile, "other.pem": other.KeyFile,
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE"))
			for name, from := range files {
				text, err := os.ReadFile(from)
				if err == nil {
					err = os.WriteFile(filepath.Join(env.WorkDir, name), text, 0o644)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status},
	})
}
