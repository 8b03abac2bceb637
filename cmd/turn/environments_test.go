package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"example.com/turn/protocol"
	"example.com/turn/servers/environments"
)

// An outcome is what became of a task of a run.
type outcome struct {
	Reward float64
	Masked bool
	Kind   string // of what went wrong, "" when nothing did
}

// outcomesOf reads a rollouts file: the outcomes, by task id.
func outcomesOf(t *testing.T, file string) map[string]outcome {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]outcome{}
	for line := range strings.Lines(string(text)) {
		var row struct {
			ID     protocol.TaskID `json:"_ng_task_id"`
			Reward float64         `json:"reward"`
			Masked bool            `json:"mask_sample"`
			Kind   string          `json:"failure_kind"`
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		outcomes[row.ID.TaskID] = outcome{Reward: row.Reward, Masked: row.Masked, Kind: row.Kind}
	}
	return outcomes
}

// meanReward is the mean that the metrics of a run give.
func meanReward(t *testing.T, file string) float64 {
	t.Helper()
	var metrics []struct {
		Key map[string]float64 `json:"key_metrics"`
	}
	text, err := os.ReadFile(strings.TrimSuffix(file, ".jsonl") + "_aggregate_metrics.json")
	if err == nil {
		err = json.Unmarshal(text, &metrics)
	}
	if err != nil || len(metrics) != 1 {
		t.Fatalf("metrics %s: %v", text, err)
	}
	return metrics[0].Key["mean/reward"]
}

// runs runs the program in this process and returns its rollouts file.
func runs(t *testing.T, dataset string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "r.jsonl")
	stderr := newStderr()
	args := append([]string{"run", filepath.Join("../../testdata", dataset), "-o", out}, flags...)
	if status := (program{Args: args, Stdin: strings.NewReader(""), Stdout: stderr, Stderr: stderr}).main(); status != 0 {
		t.Fatalf("exit status %d:\n%s", status, stderr.text.String())
	}
	return out
}

// datasets have tasks of every outcome, one for each environment.
var datasets = map[string]string{"filings": "filings.jsonl", "weather": "weather-outage.jsonl", "workplace": "workplace.jsonl"}

// A counted resources server knows how often it was called over MCP.
type counted struct {
	http.Handler
	overMCP, others atomic.Int64
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/mcp") {
		c.overMCP.Add(1)
	} else {
		c.others.Add(1)
	}
	c.Handler.ServeHTTP(w, r)
}

// Whole episodes of every environment, with tasks that are solved, that are not, and
// that are masked: the same over either transport.
func TestEveryEnvironmentRunsOverEveryTransport(t *testing.T) {
	for _, name := range environments.Names() {
		t.Run(name, func(t *testing.T) {
			environment, err := environments.Open(name, environments.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = environment.Close(context.Background()) })
			resources := &counted{Handler: environment.Resources}
			resourcesURL, agentURL := serving(t, resources), serving(t, environment.Agent)
			run := func(transports string) map[string]outcome {
				out := runs(t, datasets[name], "--resources", resourcesURL, "--agent", agentURL, "--tool-transport", transports)
				return outcomesOf(t, out)
			}
			direct := run("direct_http")
			if n := resources.overMCP.Load(); n != 0 {
				t.Errorf("%d calls came over MCP in the run without it", n)
			}
			before := resources.others.Load()
			overMCP := run("mcp")
			if diff := gocmp.Diff(direct, overMCP); diff != "" {
				t.Errorf("outcomes (-direct +mcp):\n%s", diff)
			}
			seedsVerifiesAndCloses := int64(3*len(direct) + 1) // and the metrics
			if n := resources.others.Load() - before; resources.overMCP.Load() == 0 || n != seedsVerifiesAndCloses {
				t.Errorf("over MCP came %d calls, and %d others, want %d", resources.overMCP.Load(), n, seedsVerifiesAndCloses)
			}
			var solved, unsolved, masked int
			for _, o := range direct {
				switch {
				case o.Masked:
					masked++
				case o.Reward >= 1:
					solved++
				default:
					unsolved++
				}
			}
			if solved == 0 || unsolved == 0 || masked == 0 {
				t.Errorf("%d tasks are solved, %d unsolved, %d masked, want some of each", solved, unsolved, masked)
			}
			if open := environment.Resources.Open() + environment.Agent.Open(); open != 0 {
				t.Errorf("%d sessions are left open", open)
			}
		})
	}
}

// A restartable resources server loses its sessions at any moment, as one does whose
// process dies and is started anew at the same address.
type restartable struct {
	t       *testing.T
	name    string
	current atomic.Pointer[environments.Environment]
}

func newRestartable(t *testing.T, name string) *restartable {
	r := &restartable{t: t, name: name}
	r.restart()
	return r
}

func (r *restartable) restart() {
	environment, err := environments.Open(r.name, environments.Config{})
	if err != nil {
		r.t.Error(err)
		return
	}
	r.t.Cleanup(func() { _ = environment.Close(context.Background()) })
	r.current.Store(environment)
}

func (r *restartable) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.current.Load().Resources.ServeHTTP(w, request)
}

// A resources server that is restarted in mid-run has lost the sessions of the
// episodes under way. Their samples say so and are masked: a 0 would blame the model.
// The rest of the run does not notice.
func TestARestartedResourcesServerMasksWhatItHeld(t *testing.T) {
	for _, name := range []string{"weather", "workplace"} { // without state, and with
		t.Run(name, func(t *testing.T) { restartInMidRun(t, name) })
	}
}

func restartInMidRun(t *testing.T, name string) {
	const underWay = 5
	resources := newRestartable(t, name)
	agent := resources.current.Load().Agent
	var turns atomic.Int64
	restarted := make(chan struct{})
	gate := http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if strings.HasSuffix(request.URL.Path, "/v1/responses") {
			if turns.Add(1) == underWay {
				resources.restart()
				close(restarted)
			}
			<-restarted
		}
		agent.ServeHTTP(w, request)
	})
	resourcesURL, agentURL := serving(t, resources), serving(t, gate)
	out := runs(t, name+".jsonl", "--resources", resourcesURL, "--agent", agentURL,
		"--tool-transport", "direct_http", "--concurrency", fmt.Sprint(underWay))

	var lost, scored, sum float64
	outcomes := outcomesOf(t, out)
	for _, o := range outcomes {
		switch {
		case o.Kind == "session_lost":
			lost++
			if !o.Masked {
				t.Errorf("a lost session is scored: %+v", o)
			}
		case !o.Masked:
			scored++
			sum += o.Reward
		}
	}
	if lost != underWay || scored < float64(len(outcomes)/2) {
		t.Errorf("of %d samples %v were lost and %v scored, want %d lost", len(outcomes), lost, scored, underWay)
	}
	if got := meanReward(t, out); math.Abs(got-sum/scored) > 1e-12 {
		t.Errorf("the mean is %v, want %v, of those that were scored", got, sum/scored)
	}
	if open := resources.current.Load().Resources.Open() + agent.Open(); open != 0 {
		t.Errorf("%d sessions are left open", open)
	}
}

// serving serves a handler on loopback and returns its address.
func serving(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}
