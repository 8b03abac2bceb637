package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

// leavesNothing checks, when the test ends, that every goroutine that it started
// has ended, those of listeners and connections included.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// wantClosed checks that nobody listens where a URL points.
func wantClosed(t *testing.T, urls ...string) {
	t.Helper()
	for _, url := range urls {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialling %s: %v, want it refused", url, err)
		}
	}
}

// A stderr is a standard error that may be read while it is written.
type stderr struct {
	mu    sync.Mutex
	text  bytes.Buffer
	awake sync.Cond
}

func newStderr() *stderr {
	s := &stderr{}
	s.awake.L = &s.mu
	return s
}

func (s *stderr) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.awake.Broadcast()
	return s.text.Write(p)
}

// await waits for the line of the log with that message, and returns its fields.
func (s *stderr) await(t *testing.T, message string) map[string]any {
	t.Helper()
	ctx := soon(t)
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.awake.Broadcast()
	})()
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil {
		for line := range strings.Lines(s.text.String()) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == message {
				return fields
			}
		}
		s.awake.Wait()
	}
	t.Fatalf("turn did not log %q:\n%s", message, s.text.String())
	return nil
}

// The servers that a run brings along end with it, however it ends: their ports are
// free, and nothing of them runs on.
func TestEmbeddedServersEndWithTheRun(t *testing.T) {
	for _, test := range []struct {
		name   string
		flags  []string
		status int
		served bool // the log says where
	}{
		{"all done", nil, 0, true},
		{"a flag that the driver refuses", []string{"--cleanup-timeout", "-1s"}, exitUsage, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			out := newStderr()
			args := append([]string{"run", "../../testdata/weather.jsonl", "--embedded", "weather", "-o", t.TempDir() + "/out.jsonl"}, test.flags...)
			if got := (program{Args: args, Stdin: strings.NewReader(""), Stdout: out, Stderr: out}).main(); got != test.status {
				t.Fatalf("exit status %d, want %d:\n%s", got, test.status, out.text.String())
			}
			if test.served {
				line := out.await(t, "running")
				wantClosed(t, line["resources"].(string), line["agent"].(string))
			}
		})
	}
}

func TestEmbeddedServersEndWithTheDemo(t *testing.T) {
	leavesNothing(t)
	out := newStderr()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		demo := &demoCommand{Environment: "weather", ResourcesListen: "127.0.0.1:0", AgentListen: "127.0.0.1:0"}
		ended <- demo.run(ctx, program{Stdout: out, Stderr: out})
	}()
	line := out.await(t, "serving")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	wantClosed(t, line["resources"].(string), line["agent"].(string))
}

// Sessions that were left open are closed, and connections that callers keep: the
// servers would otherwise hold both for as long as the process lives.
func TestClosingEmbeddedServersLeavesNothing(t *testing.T) {
	leavesNothing(t)
	e, err := serveEmbedded("weather", "127.0.0.1:0", "127.0.0.1:0", nil, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	callers := &http.Transport{}
	client := &http.Client{Transport: callers}
	for url, body := range map[string]string{
		e.resourcesURL() + "/seed_session":    `{"resources_session_id":"resources-session-1","episode_id":{"rollout_id":"r","attempt":0},"task_id":{"taskset":"weather","task_id":"t"},"task_data":{"city":"Oslo"}}`,
		e.agentURL() + "/v1/agent_sessions":   `{"agent_session_id":"agent-session-1","episode_id":{"rollout_id":"r","attempt":0},"task_id":{"taskset":"weather","task_id":"t"},"tool_accesses":[],"sandbox_access":null}`,
		e.resourcesURL() + "/another/request": `{}`,
	} {
		response, err := client.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	if got := e.environment.Resources.Open() + e.environment.Agent.Open(); got != 2 {
		t.Fatalf("%d sessions are open, want 2", got)
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
	if got := e.environment.Resources.Open() + e.environment.Agent.Open(); got != 0 {
		t.Errorf("%d sessions are open still", got)
	}
	wantClosed(t, e.resourcesURL(), e.agentURL())
	select {
	case err := <-e.broken:
		t.Errorf("a server that was closed says %v", err)
	default:
	}
	callers.CloseIdleConnections()
}

// Servers that are closed before they have begun to serve are closed as well. Which
// of the two comes first is up to the scheduler, so it is asked often.
func TestEmbeddedServersEndBeforeTheyBegin(t *testing.T) {
	leavesNothing(t)
	for range 100 {
		e, err := serveEmbedded("weather", "127.0.0.1:0", "127.0.0.1:0", nil, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		if err := e.close(); err != nil {
			t.Error(err)
		}
		wantClosed(t, e.resourcesURL(), e.agentURL())
	}
}

// When one address is taken, the other is given back.
func TestEmbeddedServersListenBothOrNeither(t *testing.T) {
	leavesNothing(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	defer func() { _ = taken.Close() }()
	if _, err := serveEmbedded("weather", free.Addr().String(), taken.Addr().String(), nil, zerolog.Nop()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v, want that the address is in use", err)
	}
	wantClosed(t, "http://"+free.Addr().String())
}
