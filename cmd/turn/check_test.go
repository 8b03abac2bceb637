package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"example.com/turn/servers/contract"
	"example.com/turn/servers/environments"
)

const (
	checkSeed   = "../../testdata/check/weather-seed.json"
	checkVerify = "../../testdata/check/weather-verify.json"
	checkTool   = "get_weather:../../testdata/check/weather-tool.json"
	checkAgent  = "../../testdata/check/weather-agent.json"
)

// runHere runs the program in this process.
func runHere(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	status = program{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err}.main()
	return status, out.String(), err.String()
}

func serveWeather(t *testing.T) *embedded { t.Helper(); return serveHere(t, "weather") }

// serveHere serves an embedded environment in this process, and checks in the end that
// no session of it is open.
func serveHere(t *testing.T, name string) *embedded {
	t.Helper()
	e, err := serveEmbedded(name, "127.0.0.1:0", "127.0.0.1:0", nil, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if got := e.environment.Resources.Open() + e.environment.Agent.Open(); got != 0 {
			t.Errorf("%d sessions are open", got)
		}
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// The files in testdata/check, which the help names, are right for turn demo weather.
func TestTheDemoPassesTheCheck(t *testing.T) {
	leavesNothing(t)
	e := serveWeather(t)
	for name, args := range map[string][]string{
		"resources": {"check", "resources", e.resourcesURL(), "--seed", checkSeed, "--verify", checkVerify, "--tool", checkTool},
		"agent":     {"check", "agent", e.agentURL(), "--seed", checkAgent},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := runHere(t, args...)
			if status != 0 || stderr != "" {
				t.Fatalf("exit status %d:\n%s%s", status, stdout, stderr)
			}
			for line := range strings.Lines(stdout) {
				if strings.HasPrefix(line, "skip  tool ") || strings.HasPrefix(line, "skip  verify ") || strings.HasPrefix(line, "skip  responses ") {
					t.Errorf("a rule was skipped for which there is a file: %s", line)
				}
			}
			if !strings.Contains(stdout, " passed, 0 failed, ") {
				t.Errorf("it printed:\n%s", stdout)
			}
			status, stdout, stderr = runHere(t, append(args, "--json")...)
			var report contract.Report
			if err := json.Unmarshal([]byte(stdout), &report); err != nil || status != 0 || stderr != "" {
				t.Fatalf("exit status %d: %v:\n%s%s", status, err, stdout, stderr)
			}
			if report.Count(contract.Passed) < 15 || len(report.Failed()) != 0 {
				t.Errorf("the report is %+v", report)
			}
		})
	}
}

// So are those of the other environments.
func TestEveryEnvironmentPassesTheCheckWithItsFiles(t *testing.T) {
	const files = "../../testdata/check/"
	for name, tool := range map[string]string{"workplace": "calendar_create_event", "filings": "parse_filing"} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			status, stdout, stderr := runHere(t, "check", "resources", serveHere(t, name).resourcesURL(), "--seed", files+name+"-seed.json",
				"--verify", files+name+"-verify.json", "--tool", tool+":"+files+name+"-tool.json")
			if status != 0 || stderr != "" || !strings.Contains(stdout, " passed, 0 failed, ") || !strings.Contains(stdout, "\nok    tool-after-close ") {
				t.Errorf("exit status %d:\n%s%s", status, stdout, stderr)
			}
		})
	}
}

func TestABrokenRuleIsExitStatus1(t *testing.T) {
	leavesNothing(t)
	e := serveWeather(t)
	breaking := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/verify" {
			e.environment.Resources.ServeHTTP(httptest.NewRecorder(), r) // it ends agent-run sessions
			_, _ = io.WriteString(w, `{"reward":0}`)
			return
		}
		e.environment.Resources.ServeHTTP(w, r)
	}))
	defer breaking.Close()
	status, stdout, stderr := runHere(t, "check", "resources", breaking.URL, "--seed", checkSeed, "--verify", checkVerify)
	if status != exitFailed || stderr != "" {
		t.Errorf("exit status %d, standard error %q", status, stderr)
	}
	for _, want := range []string{"\nFAIL  verify-after-close ", "mask_sample is not true", "> POST /verify (with the cookie)", `< 200 {"reward":0}`} {
		if !strings.Contains(stdout, want) {
			t.Errorf("it does not print %q:\n%s", want, stdout)
		}
	}
}

// A signal in the middle of a seed: the session that the server makes of it all the
// same is closed.
func TestASignalledCheckLeavesNoSessionOpen(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			environment, err := environments.Open("weather", environments.Config{})
			if err != nil {
				t.Fatal(err)
			}
			var seeds atomic.Int32
			reached := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/seed_session" && seeds.Add(1) == 5 {
					body, _ := io.ReadAll(r.Body) // or nobody would see the caller leave
					r.Body = io.NopCloser(bytes.NewReader(body))
					close(reached)
					<-r.Context().Done()
					r = r.WithContext(context.WithoutCancel(r.Context()))
				}
				environment.Resources.ServeHTTP(w, r)
			}))
			p := start(t, "check", "resources", server.URL, "--seed", checkSeed, "--verify", checkVerify)
			<-reached
			p.signal(t, signal)
			if got, want := p.awaitExit(t).ExitStatus(), 128+int(signal); got != want {
				t.Errorf("exit status %d, want %d", got, want)
			}
			server.Close() // waits for its requests
			if got := environment.Resources.Open(); got != 0 {
				t.Errorf("%d sessions are open", got)
			}
		})
	}
}

func TestAReportThatCannotBePrintedIsExitStatus1(t *testing.T) {
	leavesNothing(t)
	e := serveWeather(t)
	closed, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	var stderr bytes.Buffer
	args := []string{"check", "agent", e.agentURL(), "--seed", checkAgent}
	if status := (program{Args: args, Stdout: closed, Stderr: &stderr}).main(); status != exitFailed || !strings.Contains(stderr.String(), "could not be printed") {
		t.Errorf("exit status %d:\n%s", status, stderr.String())
	}
}
