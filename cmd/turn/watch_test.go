package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/scripted"
)

// environmentServer starts an environment server that answers at once, with a reward of
// 1 and metrics that have its name, and returns its URL.
func environmentServer(t *testing.T, name string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			EpisodeID json.RawMessage `json:"episode_id"`
			Task      struct {
				TaskID json.RawMessage `json:"task_id"`
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			return // the caller has gone
		}
		if r.URL.Path == "/aggregate_metrics" {
			_, _ = fmt.Fprintf(w, `{"agent_metrics":{"of":%q},"key_metrics":{},"group_level_metrics":[],"repeat_level_metrics":[]}`, name)
			return
		}
		_, _ = fmt.Fprintf(w, `{"episode_id":%s,"task_id":%s,"result":{"responses_create_params":{},"response":{"of":%q},"reward":1},"failure":null}`, asked.EpisodeID, asked.Task.TaskID, name)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// A metricsOf is an entry of the aggregate metrics.
type metricsOf struct {
	Server string `json:"_ng_environment_server"`
	Agent  struct {
		Name string `json:"name"`
	} `json:"agent_ref"`
	Metrics struct {
		Of   string  `json:"of"`
		Mean float64 `json:"mean/reward"`
	} `json:"agent_metrics"`
}

func metricsIn(t *testing.T, output string) []metricsOf {
	t.Helper()
	text, err := os.ReadFile(collect.FilesOf(output).Aggregate)
	if err != nil {
		t.Fatal(err)
	}
	var metrics []metricsOf
	if err := json.Unmarshal(text, &metrics); err != nil {
		t.Fatal(err)
	}
	return metrics
}

func metricsEntry(server, agent, of string) (m metricsOf) {
	m.Server, m.Agent.Name, m.Metrics.Of = server, agent, of
	return m
}

// Each taskset goes to the environment server that is named for it, whose name is in
// its lines, and which computes their metrics, also for the joined output.
func TestTasksetsGoToTheirEnvironmentServers(t *testing.T) {
	const offersTools = `{"responses_create_params":{"input":"x","tools":[{"type":"function","name":"f"}]},"task_source":%q,"task_id":"%d"}`
	dataset := rowsOf(t, fmt.Sprintf(offersTools, "a", 0), fmt.Sprintf(offersTools, "b", 0), fmt.Sprintf(offersTools, "c", 0), fmt.Sprintf(offersTools, "b", 1))
	out := filepath.Join(t.TempDir(), "r.jsonl")
	a, b, others := environmentServer(t, "1"), environmentServer(t, "2"), environmentServer(t, "3")
	servers := []string{"--environment", "a=" + a, "--environment", others, "--environment", "b=" + b, "--name", "rest", "--agent-name", "theirs"}
	p := start(t, append([]string{"run", dataset, "-o", out, "--grace", "7s", "--max-attempts", "2", "--retry-backoff", "3s", "--max-reply-bytes", "1MiB"}, servers...)...)
	wantFields(t, p.awaitLog(t, "running"), map[string]any{
		"dataset": dataset, "rollouts": 4.0, "tasks": 4.0, "grace": "7s", "budget": "none", "max_attempts": 2.0, "retry_backoff": "3s",
		"max_reply_bytes": "1.0 MiB", "environment_a": a, "environment_b": b, "environment_rest": others,
	})
	p.wantExit(t, 0)
	if p.said("tool-transport") {
		t.Error("it is warned of tools, which are the environment server's to offer")
	}
	var got []string
	for _, line := range linesOf(t, out) {
		got = append(got, fmt.Sprintf("%v %v %v", line["_ng_task_index"], line["_ng_environment_server"], line["response"].(map[string]any)["of"]))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"0 a 1", "1 b 2", "2 rest 3", "3 b 2"}, got); diff != "" {
		t.Errorf("rows by server (-want +got):\n%s", diff)
	}
	joined := filepath.Join(t.TempDir(), "joined.jsonl")
	start(t, append([]string{"aggregate", out, "-o", joined}, servers...)...).wantExit(t, 0)
	want := []metricsOf{metricsEntry("a", "theirs", "1"), metricsEntry("b", "theirs", "2"), metricsEntry("rest", "theirs", "3")}
	for _, output := range []string{out, joined} {
		metrics := metricsIn(t, output)
		slices.SortFunc(metrics, func(a, b metricsOf) int { return strings.Compare(a.Server, b.Server) })
		if diff := cmp.Diff(want, metrics); diff != "" {
			t.Errorf("metrics of %s (-want +got):\n%s", filepath.Base(output), diff)
		}
	}
}

// A reply of an environment server is limited, too.
func TestALimitOnAnEnvironmentServersReplies(t *testing.T) {
	args := []string{"run", flatRows(t, 1), "-o", filepath.Join(t.TempDir(), "r.jsonl"), "--environment", environmentServer(t, "x"), "--max-attempts", "1", "--max-reply-bytes", "100"}
	start(t, args...).wantExit(t, 3, "larger than the limit of 100 bytes")
}

// What a run begins with is logged: what holds for it, and what earlier ones have left.
func TestARunLogsWhatItBeginsWith(t *testing.T) {
	servers := scripted.New(t)
	refused := scripted.Action{Status: http.StatusConflict}
	servers.Play(scripted.Script{scripted.Seed: {{Default: true}, refused, {Default: true}}})
	dir := t.TempDir()
	args := append([]string{"run", flatRows(t, 8), "-o", filepath.Join(dir, "r.jsonl"), "--shard", "1/2", "--concurrency", "1"}, against(servers)...)
	p := start(t, args...)
	line := p.awaitLog(t, "running")
	wantFields(t, line, map[string]any{
		"rollouts": 4.0, "tasks": 4.0, "shard": 1.0, "shards": 2.0, "concurrency": 1.0, "grace": "1m0s", "budget": "none",
		"max_attempts": 3.0, "retry_backoff": "1s", "episode_timeout": "6h0m0s", "resources": servers.ResourcesURL, "agent": servers.AgentURL,
	})
	if before, there := line["done_before"]; there {
		t.Errorf("a first run has %v done before", before)
	}
	p.wantExit(t, 3)

	p = start(t, append(args, "--resume", "--grace", "5s", "--budget", "1h", "--max-attempts", "2", "--retry-backoff", "2s")...)
	wantFields(t, p.awaitLog(t, "running"), map[string]any{
		"done_before": 3.0, "failed_before": 1.0, "shard": 1.0, "shards": 2.0, "grace": "5s", "budget": "1h0m0s", "max_attempts": 2.0, "retry_backoff": "2s",
	})
	p.wantExit(t, 3)
	if p.said(waitingForDataset) {
		t.Error("it is said to wait for a dataset that is a file")
	}
}

// SIGUSR1 has a run say how it stands. A SIGHUP that whoever started it has ignored, as
// nohup does, is none to it.
func TestSignalsThatDoNotStopARun(t *testing.T) {
	servers := scripted.New(t)
	gate := make(chan struct{})
	servers.Play(scripted.Script{scripted.Responses: {{Gate: gate}}})
	args := append([]string{"run", flatRows(t, 2), "-o", filepath.Join(t.TempDir(), "r.jsonl")}, against(servers)...)
	p := startProgram(t, exec.Command("sh", append([]string{"-c", `trap "" HUP; exec "$0" "$@"`, os.Args[0]}, args...)...))
	awaitCall(t, servers, scripted.Responses, 2)
	p.signal(t, syscall.SIGHUP)
	p.signal(t, syscall.SIGUSR1) // is delivered behind it
	if got, want := p.awaitLine(t, "in flight"), "0/2 · 2 in flight"; got != want {
		t.Errorf("when asked it says %q, want %q", got, want)
	}
	p.signal(t, syscall.SIGTERM) // would be the second one of two
	p.awaitLog(t, "stopping: no new episode starts; a second signal ends at once")
	close(gate)
	p.wantExit(t, 143, "done      2 of 2")
}

// The events of what the end of the grace has cut short say why.
func TestWhatAStopCutsShortIsGivenUp(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	var stdout bytes.Buffer
	run := exec.Command(os.Args[0], append([]string{"run", flatRows(t, 2), "-o", filepath.Join(t.TempDir(), "r.jsonl"), "--json", "--grace", "10ms"}, against(servers)...)...)
	run.Stdout = &stdout
	p := startProgram(t, run)
	awaitCall(t, servers, scripted.Responses, 2)
	p.signal(t, syscall.SIGTERM)
	p.wantExit(t, 143)
	if got := strings.Count(stdout.String(), `"event":"given_up"`); got != 2 || strings.Count(stdout.String(), `"reason":"the run was stopped in POST /v1/responses`) != 2 {
		t.Errorf("the events are\n%swant two that are given up as the run was stopped", stdout.String())
	}
}

// busy are the arguments of a run whose attempts, many at once, fail as fast as they
// begin. Its server is there: one that is away would be waited for.
func busy(t *testing.T, rows int, more ...string) []string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	t.Cleanup(server.Close)
	return append([]string{"run", flatRows(t, rows), "-o", filepath.Join(t.TempDir(), "r.jsonl"), "--environment", server.URL, "--episode-timeout", "1ns", "--max-attempts", "1", "--concurrency", "500"}, more...)
}

// A stream is one of a process's that the test reads when it likes.
func stream(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	return read, write
}

// The summary has room behind what a slow reader has yet to read.
func TestTheSummaryComesLast(t *testing.T) {
	events, stdout := stream(t)
	log, stderr := stream(t)
	run := exec.Command(os.Args[0], busy(t, 6_000, "--json")...)
	run.Env = append(os.Environ(), beProgram+"=1")
	run.Stdout, run.Stderr = stdout, stderr
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: run}
	p.wait()
	t.Cleanup(func() { _ = p.Process.Kill(); <-p.ended })
	_, _ = stdout.Close(), stderr.Close()

	failed, summed := make(chan struct{}), make(chan struct{})
	go func() {
		in, n := bufio.NewScanner(events), 0
		for in.Scan() {
			switch {
			case strings.Contains(in.Text(), `"event":"failure"`):
				if n++; n == 6_000 {
					close(failed)
				}
			case strings.Contains(in.Text(), `"event":"summary"`):
				close(summed)
			}
		}
	}()
	select {
	case <-failed:
	case <-p.ended:
		t.Fatal("the run ended before all its attempts had")
	case <-time.After(10 * eventually): // with the race detector, on a busy machine
		t.Fatal("the attempts did not come to their end")
	}
	select { // the last event comes behind the summary
	case <-summed:
		t.Error("the summary was written where there was no room for it")
	case <-time.After(time.Second / 2):
	}
	text, err := io.ReadAll(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "next ") {
		t.Errorf("of %d lines the last one is %q, want that of the summary", len(lines), last)
	}
	if status := p.awaitExit(t); status.ExitStatus() != 3 {
		t.Errorf("ended with %v, want status 3", status)
	}
}

// Whoever does not read the events does not hold a run past its budget.
func TestEventsThatNobodyReadsWithinTheBudget(t *testing.T) {
	events, stdout := stream(t)
	run := exec.Command(os.Args[0], busy(t, 20_000, "--json", "--budget", "2s", "--quiet")...)
	run.Stdout = stdout
	p := startProgram(t, run)
	_ = stdout.Close()
	p.awaitLine(t, "the budget") // is used up, or as good as that
	_ = events.Close()           // or what is left of them would be waited for
	p.wantExit(t, 3)
}
