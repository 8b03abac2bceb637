package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/httpserve"
	"example.com/turn/internal/scripted"
)

// eventually bounds waits for what must happen; nothing takes that long.
const eventually = 30 * time.Second

// A process is turn in a process of its own.
type process struct {
	*exec.Cmd
	mu     sync.Mutex
	log    bytes.Buffer   // the standard error so far
	lines  chan string    // and its lines, as they come
	read   sync.WaitGroup // of the standard error: Wait would close it
	ended  chan struct{}  // closed when the process has ended, as waited says
	waited error
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startWith(t, nil, args...)
}

func startWith(t *testing.T, stdin *os.File, args ...string) *process {
	t.Helper()
	command := exec.Command(os.Args[0], args...)
	if stdin != nil {
		command.Stdin = stdin
	}
	return startProgram(t, command)
}

// startProgram starts a command that is, or becomes, turn.
func startProgram(t *testing.T, command *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: command, lines: make(chan string, 1000)}
	p.Env = append(append(os.Environ(), command.Env...), beProgram+"=1")
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.read.Go(func() { p.readLog(stderr) })
	p.wait()
	t.Cleanup(func() {
		_ = p.Process.Kill() // where the test has not waited for its end
		<-p.ended
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("%s wrote:\n%s", strings.Join(command.Args, " "), p.log.String())
		}
	})
	return p
}

// wait has ended be closed when the process has ended.
func (p *process) wait() {
	p.ended = make(chan struct{})
	go func() {
		defer close(p.ended)
		p.read.Wait()
		p.waited = p.Wait()
	}()
}

func (p *process) readLog(stderr io.Reader) {
	defer close(p.lines)
	in := bufio.NewScanner(stderr)
	for in.Scan() {
		p.mu.Lock()
		p.log.WriteString(in.Text() + "\n")
		p.mu.Unlock()
		select {
		case p.lines <- in.Text():
		default: // nobody looks for lines any more
		}
	}
}

// awaitLog returns the next line of the log with that message.
func (p *process) awaitLog(t *testing.T, message string) map[string]any {
	t.Helper()
	var fields map[string]any
	p.await(t, message, func(line string) bool {
		fields = nil
		return json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == message
	})
	return fields
}

// awaitLine returns the next line of the standard error with that text.
func (p *process) awaitLine(t *testing.T, text string) string {
	t.Helper()
	return p.await(t, text, func(line string) bool { return strings.Contains(line, text) })
}

// await returns the next line of the standard error that is the one that is wanted.
func (p *process) await(t *testing.T, what string, wanted func(string) bool) string {
	t.Helper()
	timeout := time.After(eventually)
	for {
		select {
		case line, open := <-p.lines:
			if !open {
				t.Fatalf("turn ended before it said %q", what)
			}
			if wanted(line) {
				return line
			}
		case <-timeout:
			t.Fatalf("turn did not say %q", what)
		}
	}
}

// awaitExit returns how the process ended: its exit status, or the signal that
// ended it.
func (p *process) awaitExit(t *testing.T) syscall.WaitStatus {
	t.Helper()
	select {
	case <-p.ended:
		var exit *exec.ExitError
		if p.waited != nil && !errors.As(p.waited, &exit) {
			t.Fatal(p.waited)
		}
		return p.ProcessState.Sys().(syscall.WaitStatus)
	case <-time.After(eventually):
		t.Fatal("turn did not end")
		return 0
	}
}

func (p *process) signal(t *testing.T, signal os.Signal) {
	t.Helper()
	if err := p.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func serve(t *testing.T, servers *scripted.Servers, flags ...string) (p *process, url string) {
	t.Helper()
	p = start(t, append([]string{"serve", "--listen", "localhost:0", "--resources", servers.ResourcesURL, "--agent", servers.AgentURL}, flags...)...)
	return p, "http://" + p.awaitLog(t, "listening")["address"].(string)
}

const episodeRequest = `{"episode_id":{"rollout_id":"7-0"},"task":{"task_id":{"taskset":"weather","task_id":"t-7"},"task_input":{"responses_create_params":{"input":"hi"}}}}`

// A posted is a reply to POST /run.
type posted struct {
	status  int
	result  bool
	failure struct {
		Kind   string `json:"failure_kind"`
		Stage  string `json:"stage"`
		Reason string `json:"failure_reason"`
	}
	err error
}

func post(client *http.Client, url string) posted {
	response, err := client.Post(url+"/run", "application/json", strings.NewReader(episodeRequest))
	if err != nil {
		return posted{err: err}
	}
	defer func() { _ = response.Body.Close() }()
	var body struct{ Result, Failure json.RawMessage }
	p := posted{status: response.StatusCode}
	if p.err = json.NewDecoder(response.Body).Decode(&body); p.err != nil {
		return p
	}
	p.result = string(body.Result) != "null"
	p.err = json.Unmarshal(body.Failure, &p.failure)
	return p
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	t.Cleanup(cancel)
	return ctx
}

func awaitCall(t *testing.T, servers *scripted.Servers, route scripted.Route, n int) {
	t.Helper()
	if _, err := servers.Wait(soon(t), route, n); err != nil {
		t.Fatalf("call %d on %s did not come: %v", n, route, err)
	}
}

func countRoutes(servers *scripted.Servers) map[scripted.Route]int {
	count := map[scripted.Route]int{}
	for _, route := range servers.Routes() {
		count[route]++
	}
	return count
}

// draining is what serve logs when it has been told to stop.
const draining = "draining: no new episode begins; a second signal ends at once"

// The address that serve prints can be dialled as it is printed, and every setting
// in force is printed with it.
func TestServePrintsWhereItIsAndWhatHolds(t *testing.T) {
	for listen, host := range map[string]string{"localhost:0": "127.0.0.1", "0.0.0.0:0": "127.0.0.1", "127.0.0.1:0": "127.0.0.1", ":0": "127.0.0.1"} {
		servers := scripted.New(t)
		p := start(t, "serve", "--listen", listen, "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "--seed-timeout", "5s")
		line := p.awaitLog(t, "listening")
		address := line["address"].(string)
		if got, _, err := net.SplitHostPort(address); err != nil || got != host && got != "::1" {
			t.Errorf("listening on %s prints the address %s", listen, address)
		}
		if got := post(http.DefaultClient, "http://"+address); got.err != nil || !got.result {
			t.Errorf("POST to the printed address %s: %+v", address, got)
		}
		want := map[string]any{
			"seed_timeout": "5s", "agent_timeout": "none", "verify_timeout": "none", "episode_timeout": "6h0m0s",
			"cleanup_timeout": "3m0s", "grace": "1m0s", "concurrency": "no limit",
			"max_attempts": 3.0, "retry_backoff": "1s", "resends": 3.0, "resend_pause": "500ms", "max_reply_bytes": "1.0 GiB",
			"max_request_bytes": "1.0 GiB", "read_header_timeout": httpserve.ReadHeaderTimeout.String(),
			"resources": servers.ResourcesURL, "resources_name": "resources", "agent": servers.AgentURL, "agent_name": "agent",
			"name": "single_agent_turn", "legacy": false, "compat": "0.7", "token_capture": false, "observability": false,
		}
		wantFields(t, line, want)
		p.signal(t, syscall.SIGINT)
		if status := p.awaitExit(t); status.ExitStatus() != 0 {
			t.Errorf("exit status %d, want 0", status.ExitStatus())
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func wantFields(t *testing.T, line, want map[string]any) {
	t.Helper()
	for name, value := range want {
		if diff := cmp.Diff(value, line[name]); diff != "" {
			t.Errorf("%s is printed otherwise (-want +got):\n%s", name, diff)
		}
	}
}

// What flags and the environment change is printed as it is then.
func TestServePrintsWhatIsSet(t *testing.T) {
	for _, test := range []struct {
		name, attempts string // NEMO_GYM_MAX_ROLLOUT_ATTEMPTS
		flags          []string
		want           map[string]any
	}{
		{"nothing", "", nil, map[string]any{"max_attempts": 3.0}},
		{"a limit on what runs at once, and so on the wait", "", []string{"--concurrency", "1"}, map[string]any{"concurrency": 1.0, "queue_timeout": "30s"}},
		{"one attempt", "1", nil, map[string]any{"max_attempts": 1.0}},
		{"attempts, which a flag goes before", "5", []string{"--max-attempts", "2", "--retry-backoff", "1ns"}, map[string]any{"max_attempts": 2.0, "retry_backoff": "1ns"}},
		{"observability, which leaves one attempt", "5", []string{"--observability"}, map[string]any{"max_attempts": 1.0, "observability": true, "token_capture": false}},
		{"token capture, which leaves one attempt", "5", []string{"--token-capture", "--max-attempts", "1"}, map[string]any{"max_attempts": 1.0, "observability": false, "token_capture": true}},
		{
			"the rest", "", []string{
				"--name", "env", "--resources-name", "tools", "--agent-name", "harness", "--tool-transport", "mcp,direct_http",
				"--concurrency", "2", "--queue-timeout", "7s", "--grace", "0s", "--legacy", "--compat", "main", "--max-reply-bytes", "2MiB",
			}, map[string]any{
				"name": "env", "resources_name": "tools", "agent_name": "harness", "tool_transports": "mcp,direct_http",
				"concurrency": 2.0, "queue_timeout": "7s", "grace": "0s", "legacy": true, "compat": "main", "max_reply_bytes": "2.0 MiB",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", test.attempts)
			p := start(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--resources", "http://127.0.0.1:1", "--agent", "http://127.0.0.1:2"}, test.flags...)...)
			wantFields(t, p.awaitLog(t, "listening"), test.want)
			p.signal(t, syscall.SIGTERM)
			p.awaitLog(t, "stopped")
			if status := p.awaitExit(t); status.ExitStatus() != 0 {
				t.Errorf("exit status %d, want 0", status.ExitStatus())
			}
		})
	}
}

// SIGTERM: readiness goes off, no episode begins, the one under way gets its reply.
func TestServeDrains(t *testing.T) {
	servers := scripted.New(t)
	gate := make(chan struct{})
	servers.Play(scripted.Script{scripted.Responses: {{Gate: gate}}})
	p, url := serve(t, servers)
	client := &http.Client{}
	defer client.CloseIdleConnections()
	first := make(chan posted, 1)
	go func() { first <- post(client, url) }()
	awaitCall(t, servers, scripted.Responses, 1)

	p.signal(t, syscall.SIGTERM)
	p.awaitLog(t, draining)
	if response, err := client.Get(url + "/readyz"); err != nil || response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("readiness while draining: %v, %v; want 503", response, err)
	}
	if got := post(client, url); got.status != 200 || got.failure.Kind != "shutdown" || got.failure.Stage != "admission" {
		t.Errorf("a request while draining: %+v; want 200 with a shutdown failure", got)
	}
	close(gate)
	if got := <-first; !got.result {
		t.Errorf("the episode under way: %+v; want a result", got)
	}
	if status := p.awaitExit(t); status.ExitStatus() != 0 {
		t.Errorf("exit status %d, want 0", status.ExitStatus())
	}
}

// When the grace is over, what still runs is cancelled, answered and closed.
func TestServeCancelsAfterTheGrace(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	p, url := serve(t, servers, "--grace", "50ms")
	replies := make(chan posted, 16)
	for range 16 {
		go func() { replies <- post(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, url) }()
	}
	awaitCall(t, servers, scripted.Responses, 16)
	p.signal(t, syscall.SIGTERM)
	for range 16 {
		if got := <-replies; got.status != 200 || got.failure.Kind != "shutdown" || got.failure.Stage != "agent" {
			t.Errorf("got %+v, want a shutdown failure of stage agent", got)
		}
	}
	if status := p.awaitExit(t); status.ExitStatus() != 0 {
		t.Errorf("exit status %d, want 0", status.ExitStatus())
	}
	if got := countRoutes(servers); got[scripted.AgentClose] != 16 || got[scripted.CloseSession] != 16 {
		t.Errorf("calls %v, want 32 closes", got)
	}
}

// The second signal waits for nothing.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	p, url := serve(t, servers)
	go post(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, url)
	awaitCall(t, servers, scripted.Responses, 1)
	p.signal(t, syscall.SIGTERM)
	p.awaitLog(t, draining)
	p.signal(t, syscall.SIGTERM)
	if status := p.awaitExit(t); status.ExitStatus() != 143 {
		t.Errorf("ended with %v, want status 143", status)
	}
}

// A second signal ends a run at once also where the shell had it ignored, as of a
// command that a script has put into the background.
func TestASecondSignalThatWasIgnored(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	p := startProgram(t, exec.Command("sh", "-c", `trap '' INT; exec "$0" "$@"`, os.Args[0],
		"run", "../../testdata/weather.jsonl", "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "-o", t.TempDir()+"/r.jsonl", "--limit", "1"))
	awaitCall(t, servers, scripted.Responses, 1)
	p.signal(t, syscall.SIGINT)
	p.awaitLog(t, "stopping: no new episode starts; a second signal ends at once")
	p.signal(t, syscall.SIGINT)
	if status := p.awaitExit(t); status.ExitStatus() != 130 {
		t.Errorf("ended with %v, want status 130", status)
	}
}

// A run whose messages nobody reads any more, as when Ctrl-C has ended the tee that
// it was piped to, closes its sessions all the same.
func TestNobodyReadsTheLog(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	run := exec.Command(os.Args[0], "run", "../../testdata/weather.jsonl", "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "-o", t.TempDir()+"/r.jsonl", "--limit", "1", "--grace", "10ms")
	run.Env = append(os.Environ(), beProgram+"=1")
	run.Stdout, run.Stderr = write, write
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: run}
	p.wait()
	_ = write.Close()
	awaitCall(t, servers, scripted.Responses, 1)
	_ = read.Close()
	p.signal(t, syscall.SIGINT)
	if status := p.awaitExit(t); status.ExitStatus() != 130 {
		t.Errorf("ended with %v, want status 130", status)
	}
	if got := countRoutes(servers); got[scripted.AgentClose] != 1 || got[scripted.CloseSession] != 1 {
		t.Errorf("calls %v, want both closes", got)
	}
}

// A run whose events or messages nobody takes any more, though the pipe is open, ends
// with a signal as any other.
func TestAReaderThatHasStopped(t *testing.T) {
	for _, stream := range []string{"stdout", "stderr"} {
		t.Run(stream, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{scripted.Seed: {{Status: 422, JSON: []byte(`{"detail":"` + strings.Repeat("x", 1500) + `"}`)}}})
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = errors.Join(read.Close(), write.Close()) }()
			dataset := filepath.Join(t.TempDir(), "tasks.jsonl")
			var rows strings.Builder
			for i := range 20_000 { // what fails of them fills the pipe, and more
				fmt.Fprintf(&rows, `{"responses_create_params":{"input":"%d"}}`+"\n", i)
			}
			if err := os.WriteFile(dataset, []byte(rows.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			run := exec.Command(os.Args[0], "run", dataset, "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "-o", t.TempDir()+"/r.jsonl", "--grace", "10ms", "--json")
			run.Env = append(os.Environ(), beProgram+"=1")
			if stream == "stdout" {
				run.Stdout = write
			} else {
				run.Stderr = write
			}
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			p := &process{Cmd: run}
			p.wait()
			awaitCall(t, servers, scripted.CloseSession, 300)
			p.signal(t, syscall.SIGTERM)
			if status := p.awaitExit(t); status.ExitStatus() != 143 {
				t.Errorf("ended with %v, want status 143", status)
			}
		})
	}
}

// A dataset that comes by a pipe which nobody writes to can be waited for, and the
// wait can be ended.
func TestADatasetThatIsAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "tasks.jsonl")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	servers := scripted.New(t)
	p := start(t, "run", pipe, "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "-o", t.TempDir()+"/r.jsonl")
	p.awaitLog(t, waitingForDataset)
	p.signal(t, syscall.SIGTERM)
	if status := p.awaitExit(t); status.ExitStatus() != 143 {
		t.Errorf("ended with %v, want status 143", status)
	}
}

// A terminal that is closed stops a run in good order, as SIGTERM does.
func TestAHangUpStopsARun(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	p := start(t, "run", "../../testdata/weather.jsonl", "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "-o", t.TempDir()+"/r.jsonl", "--limit", "1", "--grace", "10ms")
	awaitCall(t, servers, scripted.Responses, 1)
	p.signal(t, syscall.SIGHUP)
	if status := p.awaitExit(t); status.ExitStatus() != 129 {
		t.Errorf("exit status %d, want 129", status.ExitStatus())
	}
	if got := countRoutes(servers); got[scripted.AgentClose] != 1 || got[scripted.CloseSession] != 1 {
		t.Errorf("calls %v, want both closes", got)
	}
}

// A run that is stopped closes what it opened, leaves no half line and no line of
// what it cut short, says so with its exit status, and its resumption runs exactly
// the rest.
func TestAStoppedRun(t *testing.T) {
	for signal, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		t.Run(signal.String(), func(t *testing.T) {
			servers := scripted.New(t)
			hang := scripted.Action{Hang: true}
			servers.Play(scripted.Script{scripted.Responses: {{}, {}, {}, {}, hang}})
			dir := t.TempDir()
			dataset, out := filepath.Join(dir, "tasks.jsonl"), filepath.Join(dir, "out.jsonl")
			var rows strings.Builder
			for i := range 40 {
				fmt.Fprintf(&rows, `{"responses_create_params":{"input":"%d"}}`+"\n", i)
			}
			if err := os.WriteFile(dataset, []byte(rows.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			args := []string{"run", dataset, "-o", out, "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "--concurrency", "16", "--grace", "50ms"}
			p := start(t, args...)
			awaitCall(t, servers, scripted.Responses, 20)
			p.signal(t, signal)
			if status := p.awaitExit(t); status.ExitStatus() != want {
				t.Errorf("exit status %d, want %d", status.ExitStatus(), want)
			}
			count := countRoutes(servers)
			if count[scripted.AgentClose] != 20 || count[scripted.CloseSession] != 20 {
				t.Errorf("calls %v, want 20 of each close", count)
			}
			if got := linesOf(t, out); len(got) != 4 {
				t.Errorf("%d results, want 4", len(got))
			}
			if got := linesOf(t, filepath.Join(dir, "out_failures.jsonl")); len(got) != 0 {
				t.Errorf("%d failures, want none: what is cut short has not failed", len(got))
			}

			servers.Play(nil)
			if status := start(t, append(args, "--resume")...).awaitExit(t); status.ExitStatus() != 0 {
				t.Errorf("the resumption's exit status is %d, want 0", status.ExitStatus())
			}
			if got := countRoutes(servers)[scripted.Seed]; got != 36 {
				t.Errorf("the resumption seeded %d sessions, want 36", got)
			}
			seen := map[string]int{}
			for _, line := range linesOf(t, out) {
				seen[fmt.Sprint(line["_ng_task_index"])]++
			}
			all := map[string]int{}
			for i := range 40 {
				all[fmt.Sprint(i)] = 1
			}
			if diff := cmp.Diff(all, seen); diff != "" {
				t.Errorf("results by task (-want +got):\n%s", diff)
			}
		})
	}
}

// linesOf reads a file of JSON lines, each of which must be whole.
func linesOf(t *testing.T, path string) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []map[string]any
	for raw := range strings.Lines(string(text)) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(raw), &fields); err != nil || !strings.HasSuffix(raw, "\n") {
			t.Fatalf("%s: line %q: %v", path, raw, err)
		}
		lines = append(lines, fields)
	}
	return lines
}

// The demo's servers serve the environment server that its help shows.
func TestDemoAndServeTogether(t *testing.T) {
	demo := start(t, "demo", "weather", "--resources-listen", "127.0.0.1:0", "--agent-listen", "127.0.0.1:0")
	line := demo.awaitLog(t, "serving")
	p := start(t, "serve", "--listen", "127.0.0.1:0", "--tool-transport", "direct_http",
		"--resources", line["resources"].(string), "--agent", line["agent"].(string))
	url := "http://" + p.awaitLog(t, "listening")["address"].(string)
	dataset, err := os.ReadFile("../../testdata/weather.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	row, _, _ := strings.Cut(string(dataset), "\n")
	response, err := http.Post(url+"/run", "application/json", strings.NewReader(`{"episode_id":{"rollout_id":"0-0"},"task":`+row+`}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var reply struct{ Result struct{ Reward float64 } }
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil || reply.Result.Reward != 1 {
		t.Errorf("reply %+v, %v; want a reward of 1", reply, err)
	}
	for _, running := range []*process{p, demo} {
		running.signal(t, syscall.SIGTERM)
		if status := running.awaitExit(t); status.ExitStatus() != 0 {
			t.Errorf("exit status %d, want 0", status.ExitStatus())
		}
	}
}

// Each of serve's flags reaches what it is about.
func TestServesFlags(t *testing.T) {
	const row = `{"responses_create_params":{"input":"hi"},"_ng_task_index":3,"_ng_rollout_index":0}`
	hang, refused := scripted.Action{Hang: true}, scripted.Action{Status: http.StatusConflict}
	for _, test := range []struct {
		flags  []string
		script scripted.Script
		body   string
		has    string // in the reply
	}{
		{[]string{"--legacy", "--agent-name", "the_agent"}, nil, row, `"agent_ref":{"name":"the_agent"}`},
		{nil, nil, row, `"detail":[`},
		{[]string{"--compat", "main"}, scripted.Script{scripted.Verify: {refused}}, episodeRequest, `"ng_agent_observations":null`},
		{[]string{"--seed-timeout", "100ms"}, scripted.Script{scripted.Seed: {hang}}, episodeRequest, "the seed timeout of 100ms ran out"},
		{[]string{"--verify-timeout", "100ms"}, scripted.Script{scripted.Verify: {hang}}, episodeRequest, "the verify timeout of 100ms ran out"},
		{[]string{"--agent-timeout", "100ms"}, scripted.Script{scripted.Responses: {hang}}, episodeRequest, `"agent_timeout_seconds":0.1`},
		{[]string{"--cleanup-timeout", "100ms"}, scripted.Script{scripted.AgentClose: {hang}}, episodeRequest, "the cleanup timeout of 100ms ran out"},
		{[]string{"--episode-timeout", "100ms"}, scripted.Script{scripted.Seed: {hang}}, episodeRequest, "Episode timed out after 100ms in POST /seed_session"},
		{[]string{"--max-reply-bytes", "300"}, nil, episodeRequest, "agent server to POST /v1/responses: it is larger than the limit of 300 bytes"},
		{[]string{"--resources-name", "theirs", "--max-attempts", "1"}, scripted.Script{scripted.Seed: {{Status: 503}}}, episodeRequest, "resources server theirs refused"},
	} {
		t.Run(strings.Join(test.flags, " "), func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(test.script)
			flags := test.flags
			if !strings.Contains(strings.Join(flags, " "), "--max-attempts") {
				flags = append([]string{"--max-attempts", "1"}, flags...)
			}
			p, url := serve(t, servers, flags...)
			response, err := http.Post(url+"/run", "application/json", strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			reply, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil || !strings.Contains(string(reply), test.has) {
				t.Errorf("the reply %s (%v) lacks %s", reply, err, test.has)
			}
			p.signal(t, syscall.SIGTERM)
			p.awaitExit(t)
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

// A close that failed is counted where a scrape finds it.
func TestServeCountsFailedCloses(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.CloseSession: {{Status: http.StatusConflict}}})
	_, url := serve(t, servers)
	if got := post(http.DefaultClient, url); !got.result {
		t.Errorf("got %+v, want a result", got)
	}
	response, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if want := `turn_closes_failed_total{server="resources"} 1`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the scrape (%v) lacks %s", err, want)
	}
}

// A run that waits for a standard input on which nothing comes ends with a signal.
func TestARunThatWaitsForItsInputCanBeStopped(t *testing.T) {
	waiting, never, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(waiting.Close(), never.Close()) }()
	servers := scripted.New(t)
	p := startWith(t, waiting, "run", "-", "-o", filepath.Join(t.TempDir(), "out.jsonl"), "--resources", servers.ResourcesURL, "--agent", servers.AgentURL)
	p.awaitLog(t, waitingForDataset)
	p.signal(t, syscall.SIGTERM)
	if status := p.awaitExit(t); status.ExitStatus() != 143 {
		t.Errorf("ended with %v, want 143", status)
	}
}
