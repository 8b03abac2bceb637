package main

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"example.com/turn/failures"
	"example.com/turn/internal/scripted"
)

// An environment server that has few descriptors, and far more callers, answers what it
// can, says of what it cannot that it lacks them, leaves no session open, tells a
// person once, and is itself again when the callers have gone.
func TestAnEnvironmentServerOfFewDescriptors(t *testing.T) {
	const callers = 200
	servers := scripted.New(t)
	// Slow enough that episodes are under way while others come.
	servers.Play(scripted.Script{scripted.Responses: {{DelayMs: 1000}}})
	args := append([]string{"serve", "--listen", "localhost:0", "--max-attempts", "1"}, against(servers)...)
	p := startProgram(t, exec.Command("sh", append([]string{"-c", `ulimit -n 64; exec "$0" "$@"`, os.Args[0]}, args...)...))
	url := "http://" + p.awaitLog(t, "listening")["address"].(string)

	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			got := post(client, url)
			switch {
			case got.err != nil || got.status != http.StatusOK:
				t.Errorf("got status %d, %v; want an answer", got.status, got.err)
			case !got.result && (got.failure.Kind != string(failures.TransportLocalResource) || !strings.Contains(got.failure.Reason, "ulimit -n")):
				t.Errorf("failed with %+v, want one of the machine's resources, with a hint", got.failure)
			}
		})
	}
	all.Wait()
	if got := post(http.DefaultClient, url); got.err != nil || !got.result {
		t.Errorf("afterwards it answers %+v, want a result", got)
	}
	http.DefaultClient.CloseIdleConnections()
	p.signal(t, syscall.SIGTERM)
	p.wantExit(t, 0)
	allClosed(t, servers)
	if n := strings.Count(p.log.String(), "no connection can be accepted"); n < 1 || n > 3 {
		t.Errorf("it has said %d times that it lacks descriptors, want once", n)
	}
}
