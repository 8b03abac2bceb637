package collect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/scripted"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
)

// bench is a run against scripted servers.
type bench struct {
	*scripted.Servers
	dir    string
	config collect.Config
}

func newBench(t *testing.T, dataset string) *bench {
	t.Helper()
	servers := scripted.New(t)
	driver, err := episode.NewDriver(episode.Config{
		Resources: resourcesclient.Config{URL: servers.ResourcesURL, Resend: retry.Resend{Pause: time.Millisecond}},
		Agent:     agentclient.Config{URL: servers.AgentURL, Resend: retry.Resend{Pause: time.Millisecond}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(driver.Close)
	dir := t.TempDir()
	b := &bench{servers, dir, collect.Config{
		Dataset:     filepath.Join(dir, "tasks.jsonl"),
		Output:      filepath.Join(dir, "out", "rollouts.jsonl"),
		Target:      collect.Servers{Driver: driver, Name: "env"},
		Concurrency: 8,
		Policy:      retry.Policy{Backoff: time.Millisecond},
	}}
	b.write(t, dataset)
	return b
}

func (b *bench) write(t *testing.T, dataset string) {
	t.Helper()
	if err := os.WriteFile(b.config.Dataset, []byte(dataset), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) run(t *testing.T) *collect.Summary {
	t.Helper()
	summary, err := collect.Run(t.Context(), b.config)
	if err != nil {
		t.Fatal(err)
	}
	return summary
}

// line is what tests look at of a line of an output file.
type line struct {
	Reward       float64           `json:"reward"`
	TaskIndex    int64             `json:"_ng_task_index"`
	RolloutIndex int64             `json:"_ng_rollout_index"`
	AttemptIndex int64             `json:"_ng_attempt_index"`
	TaskID       map[string]string `json:"_ng_task_id"`
	Server       string            `json:"_ng_environment_server"`
	Terminal     bool              `json:"_ng_failure_terminal"`
	Reason       string            `json:"failure_reason"`
	Message      string            `json:"_ng_failure_message"`
	Kind         string            `json:"failure_kind"`
	Stage        *string           `json:"_ng_failure_stage"`
	Delivery     string            `json:"_ng_failure_delivery"`
	Partial      json.RawMessage   `json:"_ng_failure_partial_response"`
	Input        struct {
		Params json.RawMessage `json:"responses_create_params"`
		Data   json.RawMessage `json:"task_data"`
	} `json:"task_input"`
	Task map[string]string `json:"task_id"`
	ID   string            `json:"_ng_rollout_id"`
}

// readLines reads an output file, in the order of its rollouts.
func readLines(t *testing.T, path string) []line {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []line
	for raw := range strings.Lines(string(text)) {
		var l line
		if err := json.Unmarshal([]byte(raw), &l); err != nil || !strings.HasSuffix(raw, "\n") {
			t.Fatalf("%s: line %q: %v", path, raw, err)
		}
		lines = append(lines, l)
	}
	sort.SliceStable(lines, func(i, j int) bool {
		a, b := lines[i], lines[j]
		return a.TaskIndex < b.TaskIndex || a.TaskIndex == b.TaskIndex && a.RolloutIndex < b.RolloutIndex
	})
	return lines
}

// allClosed checks that every session that was seeded was closed. A close may be there
// for a seed that was given up before it was sent.
func (b *bench) allClosed(t *testing.T) {
	t.Helper()
	for seed, closing := range map[scripted.Route]scripted.Route{scripted.Seed: scripted.CloseSession, scripted.AgentSeed: scripted.AgentClose} {
		closed := map[string]bool{}
		for _, call := range b.Calls() {
			if call.Route == closing {
				closed[sessionOf(call)] = true
			}
		}
		for _, call := range b.Calls() {
			// One without an id was given up before it was whole, and opened nothing.
			if id := sessionOf(call); call.Route == seed && id != "" && !closed[id] {
				t.Errorf("session %s is left open", sessionOf(call))
			}
		}
	}
}

func sessionOf(call scripted.Call) string {
	var ids struct {
		Resources string `json:"resources_session_id"`
		Agent     string `json:"agent_session_id"`
	}
	_ = json.Unmarshal(call.Body, &ids) // "" is in no log of a session
	return ids.Resources + ids.Agent
}

func (b *bench) results(t *testing.T) []line { return readLines(t, b.config.Output) }
func (b *bench) failures(t *testing.T) []line {
	return readLines(t, collect.FilesOf(b.config.Output).Failures)
}
func (b *bench) inputs(t *testing.T) []line {
	return readLines(t, collect.FilesOf(b.config.Output).Inputs)
}

// pairs are the rollouts of lines, as "task-rollout".
func pairs(lines []line) []string {
	var out []string
	for _, l := range lines {
		out = append(out, fmt.Sprintf("%d-%d", l.TaskIndex, l.RolloutIndex))
	}
	return out
}

// flat is n flat rows.
func flat(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"responses_create_params":{"input":"%d"},"n":%d}`+"\n", i, i)
	}
	return b.String()
}

func TestARunWritesWhatCameOut(t *testing.T) {
	b := newBench(t, `{"responses_create_params":{"input":"hi <b>"},"answer":1.0}`+"\n")
	b.Play(scripted.Script{scripted.Verify: {{Raw: text(`{"responses_create_params":"{{params}}","response":{"output":[]},"reward":0.50,"_ng_mine":1}`)}}})
	summary := b.run(t)
	if mean, ok := summary.Mean(); summary.Owed.Rollouts != 1 || summary.Done != 1 || !ok || mean.Value != 0.5 {
		t.Errorf("summary %+v", summary)
	}
	for path, want := range map[string]string{
		b.config.Output: `{"responses_create_params":{"input":"hi <b>"},"response":{"output":[]},"reward":0.50,"ng_agent_observations":null,` +
			`"_ng_task_id":{"taskset":"tasks","task_id":"0"},"_ng_task_index":0,"_ng_rollout_index":0,"_ng_environment_server":"env","_ng_result_type":"single_agent_turn"}` + "\n",
		collect.FilesOf(b.config.Output).Inputs: `{"task_id":{"taskset":"tasks","task_id":"0"},"task_input":{"responses_create_params":{"input":"hi <b>"},"task_data":{"answer":1.0}},` +
			`"_ng_task_index":0,"_ng_environment_server":"env","_ng_rollout_index":0}` + "\n",
		collect.FilesOf(b.config.Output).Failures: "",
	} {
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("%s holds\n%s%v\nwant\n%s", filepath.Base(path), got, err, want)
		}
	}
}

func text(s string) *string { return &s }

// One task that fails for good costs the others nothing, and each of its attempts
// leaves a line.
func TestOneBrokenTaskLeavesTheOthersAlone(t *testing.T) {
	b := newBench(t, flat(20))
	poison := func(c scripted.Call) bool { return strings.Contains(string(c.Body), `"n":7`) }
	b.Front(poisoned{poison}, nil)
	summary := b.run(t)
	if summary.Done != 19 || summary.Failed != 1 || summary.Missing() != 0 || summary.Attempts != 22 {
		t.Errorf("summary %+v, want 19 done and 1 failed in 22 attempts", summary)
	}
	want := []collect.FailureCount{{FailureGroup: collect.FailureGroup{Stage: failures.StageSeed}, Count: 1, Example: "resources server refused POST /seed_session with 500 Internal Server Error: poison"}}
	if diff := cmp.Diff(want, summary.Failures()); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	failed := b.failures(t)
	if diff := cmp.Diff([]string{"7-0", "7-0", "7-0"}, pairs(failed)); diff != "" {
		t.Errorf("failed attempts (-want +got):\n%s", diff)
	}
	for i, l := range failed {
		if l.AttemptIndex != int64(i) || l.Terminal || !strings.Contains(l.Reason, "poison") {
			t.Errorf("line %d is %+v", i, l)
		}
	}
	if got := len(b.results(t)); got != 19 {
		t.Errorf("%d results, want 19", got)
	}
}

func TestIdentityOfRows(t *testing.T) {
	for _, test := range []struct {
		name    string
		dataset string
		change  func(*collect.Config)
		pairs   []string
		tasks   []string
	}{
		{"rows in order", flat(3), nil, []string{"0-0", "1-0", "2-0"}, []string{"tasks/0", "tasks/1", "tasks/2"}},
		{"identical rows are one task", flat(1) + flat(2), nil, []string{"0-0", "0-1", "1-0"}, []string{"tasks/0", "tasks/0", "tasks/1"}},
		{"repeats", flat(2), func(c *collect.Config) { c.Repeats = 2 }, []string{"0-0", "0-1", "1-0", "1-1"}, []string{"tasks/0", "tasks/0", "tasks/1", "tasks/1"}},
		{"limit", flat(9), func(c *collect.Config) { c.Limit = 2 }, []string{"0-0", "1-0"}, []string{"tasks/0", "tasks/1"}},
		{"taskset of the command", flat(1), func(c *collect.Config) { c.Taskset = "mine" }, []string{"0-0"}, []string{"mine/0"}},
		{
			"an index of its own is honoured, and no other row gets it",
			`{"responses_create_params":{},"a":1}` + "\n" + `{"responses_create_params":{},"a":2,"_ng_task_index":5,"_ng_rollout_index":3}` + "\n" +
				`{"responses_create_params":{},"a":3,"_ng_task_index":1}` + "\n" + `{"responses_create_params":{},"a":4}` + "\n",
			nil, []string{"0-0", "1-0", "2-0", "5-3"}, []string{"tasks/0", "tasks/1", "tasks/2", "tasks/5"},
		},
		{"ids that are numbers, and no indexes", `{"responses_create_params":{},"task_id":-1}` + "\n" + `{"responses_create_params":{},"task_id":"99","_ng_rollout_id":"5--1"}` + "\n",
			nil, []string{"0-0", "1-0"}, []string{"tasks/-1", "tasks/99"}},
		{
			"task ids and sources of rows",
			`{"responses_create_params":{},"task_id":"a"}` + "\n" + `{"responses_create_params":{},"problem_id":12,"task_source":"other"}` + "\n" +
				`{"task_id":{"taskset":"own","task_id":"m"},"task_input":{"responses_create_params":{}}}` + "\n",
			nil, []string{"0-0", "1-0", "2-0"}, []string{"tasks/a", "other/12", "own/m"},
		},
		{
			"taskset of the command, which rows that were materialised do not take",
			`{"responses_create_params":{},"task_source":"other"}` + "\n" + `{"task_id":{"taskset":"own","task_id":"m"},"task_input":{"responses_create_params":{}}}` + "\n",
			func(c *collect.Config) { c.Taskset = "mine" }, []string{"0-0", "1-0"}, []string{"mine/0", "own/m"},
		},
		{"ids that are each other's index, and no row without one", `{"responses_create_params":{},"task_id":"1"}` + "\n" + `{"responses_create_params":{},"task_id":"0"}` + "\n",
			nil, []string{"0-0", "1-0"}, []string{"tasks/1", "tasks/0"}},
		{"an id that a row without one has in another taskset", `{"responses_create_params":{},"task_source":"a"}` + "\n" + `{"responses_create_params":{},"task_source":"b","task_id":"0"}` + "\n",
			nil, []string{"0-0", "1-0"}, []string{"a/0", "b/0"}},
		{"an id that is an index in another spelling", `{"responses_create_params":{}}` + "\n" + `{"responses_create_params":{},"task_id":"00"}` + "\n",
			nil, []string{"0-0", "1-0"}, []string{"tasks/0", "tasks/00"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, test.dataset)
			if test.change != nil {
				test.change(&b.config)
			}
			b.run(t)
			inputs := b.inputs(t)
			var tasks []string
			for _, l := range inputs {
				tasks = append(tasks, l.Task["taskset"]+"/"+l.Task["task_id"])
			}
			if diff := cmp.Diff(test.pairs, pairs(inputs)); diff != "" {
				t.Errorf("rollouts owed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.tasks, tasks); diff != "" {
				t.Errorf("tasks (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.pairs, pairs(b.results(t))); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		})
	}
}

// A fault of the dataset stops the run before any episode, with file and line, and
// leaves nothing behind.
func TestADatasetWithAFault(t *testing.T) {
	good := `{"responses_create_params":{}}` + "\n"
	for _, test := range []struct {
		name, dataset, has string
		line               int
	}{
		{"malformed", good + "\n" + `{"responses_create_params":`, "JSON decode error", 3},
		{"NaN", good + `{"responses_create_params":{},"x":NaN}`, "JSON decode error", 2},
		{"not UTF-8", "{\"responses_create_params\":{},\"x\":\"\xff\"}", "not UTF-8", 1},
		{"a list", `[1]`, "should be an object", 1},
		{"no input", good + `{"n":1}`, "responses_create_params: Field required", 2},
		{"streaming", `{"responses_create_params":{"stream":true}}`, "Streaming", 1},
		{"a materialised row without an id", `{"task_input":{"responses_create_params":{}}}`, "task_id: Field required", 1},
		{"a field beside task_input", `{"task_id":{"taskset":"a","task_id":"b"},"task_input":{"responses_create_params":{}},"x":1}`, "x: Extra inputs", 1},
		{"one id for two rows", `{"responses_create_params":{},"task_id":"a"}` + "\n" + `{"responses_create_params":{},"task_id":"a","x":1}`, "belongs to another row already, at line 1", 2},
		{"no rollout index left", `{"responses_create_params":{},"n":1,"_ng_rollout_index":4611686018427387904}` + "\n" + `{"responses_create_params":{},"n":1}`, "has no rollout index left", 2},
		{"an id that a row without one has", `{"responses_create_params":{}}` + "\n" + `{"responses_create_params":{},"task_id":"0","x":1}`, "task id tasks/0 belongs to another row already, at line 1", 2},
		{"a row without an id that would get another's", `{"responses_create_params":{},"task_id":1,"x":1}` + "\n" + `{"responses_create_params":{}}`, "task id tasks/1 belongs to another row already, at line 1", 2},
		{"one index for two rows", `{"responses_create_params":{},"_ng_task_index":1}` + "\n" + `{"responses_create_params":{},"_ng_task_index":1,"x":1}`, "_ng_task_index 1 belongs to another row", 2},
		{"one rollout index for two copies", flat(1) + `{"responses_create_params":{"input":"0"},"n":0,"_ng_rollout_index":0}`, "_ng_rollout_index 0 of _ng_task_index 0 is there twice", 2},
		{"a rollout id that another row gets", `{"responses_create_params":{},"_ng_rollout_id":"1-0"}` + "\n" + flat(1), "rollout id 1-0 is there twice", 2},
		{"a bad rollout id", `{"responses_create_params":{},"_ng_rollout_id":"a/b"}`, "rollout id", 1},
		{"nothing", "\n\n", "no row", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, test.dataset)
			_, err := collect.Run(t.Context(), b.config)
			var input *collect.InputError
			if !errors.As(err, &input) || input.Line != test.line || input.File != b.config.Dataset || !strings.Contains(err.Error(), test.has) {
				t.Errorf("got %v, want line %d of the dataset and %q", err, test.line, test.has)
			}
			if calls := b.Calls(); len(calls) != 0 {
				t.Errorf("%d calls, want none", len(calls))
			}
			if files, _ := os.ReadDir(filepath.Dir(b.config.Output)); len(files) != 0 {
				t.Errorf("the run left %v behind", files)
			}
		})
	}
}

func TestADatasetIsNotWrittenOver(t *testing.T) {
	for _, resume := range []bool{false, true} {
		for name, output := range map[string]string{
			"tasks.jsonl":                          "tasks.jsonl",
			"out_failures.jsonl":                   "out.jsonl",
			"out_materialized_inputs.jsonl":        "out.jsonl",
			"out_aggregate_metrics.json":           "out.jsonl",
			"a link to out_materialized_inputs.gz": "out.jsonl",
		} {
			b := onStage(t, "", atOnce(nil))
			b.config.Dataset = filepath.Join(b.dir, name)
			if strings.HasPrefix(name, "a link") {
				inputs := filepath.Join(b.dir, "out_materialized_inputs.jsonl")
				b.config.Dataset = filepath.Join(b.dir, "linked.jsonl")
				if err := errors.Join(os.WriteFile(inputs, nil, 0o644), os.Symlink(inputs, b.config.Dataset)); err != nil {
					t.Fatal(err)
				}
			}
			b.write(t, flat(2))
			b.config.Output = filepath.Join(b.dir, output)
			b.config.Overwrite, b.config.Resume = !resume, resume
			err := b.refused(t)
			var input *collect.InputError
			if !errors.As(err, &input) || !strings.Contains(err.Error(), "its own dataset") {
				t.Errorf("%s for %s: got %v, want a refusal", name, output, err)
			}
			if text := read(t, b.config.Dataset); text != flat(2) {
				t.Errorf("%s holds %q", name, text)
			}
		}
	}
}

// Whether the agent is offered tools is said of the first row.
func TestWhetherTheAgentIsOfferedTools(t *testing.T) {
	for tools, want := range map[string]bool{
		`"tools":[{"type":"function","name":"f"}]`: true,
		`"tools":[ ]`:        false,
		`"tools":null`:       false,
		`"tool_choice":"no"`: false,
	} {
		b := onStage(t, `{"responses_create_params":{`+tools+`}}`+"\n"+`{"responses_create_params":{"tools":[{}]}}`, atOnce(nil))
		if summary := b.run(t); summary.Owed.Tools != want {
			t.Errorf("with %s: %t, want %t", tools, summary.Owed.Tools, want)
		}
	}
}

// A parameter is checked with the rows, before anything is written.
func TestAParamThatNoAgentCouldTake(t *testing.T) {
	b := newBench(t, flat(2))
	b.config.Params = []collect.Param{{Name: "stream", Value: []byte("true")}}
	_, err := collect.Run(t.Context(), b.config)
	var input *collect.InputError
	if !errors.As(err, &input) || input.File != b.config.Dataset || input.Line != 1 || !strings.Contains(err.Error(), "Streaming") {
		t.Errorf("got %v, want a refusal at line 1 of the dataset", err)
	}
	if got := b.snapshot(t); len(got) != 0 {
		t.Errorf("the run has left %v", got)
	}
}

// A run that is stopped while a rollout waits for its next attempt leaves that to
// its resumption: the rollout has not failed.
func TestARolloutThatIsStoppedBetweenItsAttemptsHasNotFailed(t *testing.T) {
	b := newBench(t, flat(1))
	ctx, stop := context.WithCancel(t.Context())
	b.config.Policy = retry.Policy{Backoff: time.Minute, Random: func() float64 { return 0.9 }}
	b.config.Observer = &stopper{stop: stop}
	b.Play(scripted.Script{scripted.Seed: {{Status: 503}, {}}})
	summary, err := collect.Run(ctx, b.config)
	if err != nil || summary.Failed != 0 || summary.Missing() != 1 || len(b.failures(t)) != 1 {
		t.Errorf("summary %+v, %v, with %d failures; want one missing, one failed attempt", summary, err, len(b.failures(t)))
	}
	b.config.Resume, b.config.Observer = true, nil
	if summary := b.run(t); summary.Done != 1 || b.results(t)[0].AttemptIndex != 1 {
		t.Errorf("the resumption's summary is %+v, want one done at attempt 1", summary)
	}
}

// A stopper stops a run when an attempt has failed.
type stopper struct {
	collect.Unobserved
	stop func()
}

func (s *stopper) Ended(collect.Rollout, episode.Attempt) { s.stop() }

// What one run owed may be another's dataset, repeats and all.
func TestMaterialisedInputsAreADataset(t *testing.T) {
	b := newBench(t, `{"responses_create_params":{},"_ng_rollout_id":"mine"}`+"\n"+flat(2))
	b.run(t)
	first := b.inputs(t)
	b.config.Dataset, b.config.Output = collect.FilesOf(b.config.Output).Inputs, filepath.Join(b.dir, "again.jsonl")
	b.run(t)
	if diff := cmp.Diff(first, b.inputs(t)); diff != "" {
		t.Errorf("what is owed (-first +again):\n%s", diff)
	}
	b.config.Dataset, b.config.Output = filepath.Join(b.dir, "tasks.jsonl"), filepath.Join(b.dir, "plain.jsonl")
	b.write(t, flat(2))
	b.run(t)
	b.config.Dataset, b.config.Output, b.config.Repeats = collect.FilesOf(b.config.Output).Inputs, filepath.Join(b.dir, "repeated.jsonl"), 2
	b.run(t)
	if diff := cmp.Diff([]string{"0-0", "0-1", "1-0", "1-1"}, pairs(b.results(t))); diff != "" {
		t.Errorf("repeated (-want +got):\n%s", diff)
	}
}

// What servers and people send in several lines is one line of a file, and is
// otherwise as it came.
func TestALineIsOneLine(t *testing.T) {
	b := newBench(t, flat(2))
	b.config.Concurrency = 1
	b.config.Params = []collect.Param{{Name: "text", Value: []byte("{\n \"a\": 1.0\r\n}")}, {Name: "t", Value: []byte("1")}, {Name: "t", Value: []byte("2")}}
	b.Play(scripted.Script{
		scripted.Responses: {{Raw: text("{\n \"output\": [\n]}")}},
		scripted.Verify: {
			{Raw: text("{\r\n  \"reward\": 1,\n  \"big\": 18446744073709551616, \"u\": \"<\u2028>\\n\",\n  \"response\": {\n},\n  \"responses_create_params\": {}\n}\n")},
			{Status: 422},
		},
	})
	b.run(t)
	if got := b.results(t); len(got) != 1 || got[0].Reward != 1 {
		t.Errorf("results %+v, want one", got)
	}
	row, _ := os.ReadFile(b.config.Output)
	if want := "\"big\":18446744073709551616,\"u\":\"<\u2028>\\n\",\"response\":{},"; !strings.Contains(string(row), want) {
		t.Errorf("the row %s lacks %s", row, want)
	}
	if got := b.failures(t); len(got) != 1 {
		t.Errorf("failures %+v, want one", got)
	}
	if got, want := string(b.inputs(t)[0].Input.Params), `{"input":"0","text":{ "a": 1.0},"t":2}`; got != want {
		t.Errorf("params %s, want %s", got, want)
	}
	b.config.Resume = true
	if summary := b.run(t); summary.Done != 1 || summary.Failed != 1 {
		t.Errorf("the resumption's summary is %+v", summary)
	}
}

// An earlier output goes only when both files can be written.
func TestAnOverwriteThatCannotBeginTakesNothingAway(t *testing.T) {
	b := newBench(t, flat(2))
	b.run(t)
	files := collect.FilesOf(b.config.Output)
	before, err := os.ReadFile(files.Rollouts)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(files.Failures), os.Mkdir(files.Failures, 0o755)); err != nil {
		t.Fatal(err)
	}
	b.config.Overwrite = true
	_, err = collect.Run(t.Context(), b.config)
	var output *collect.OutputError
	if !errors.As(err, &output) || output.File != files.Failures {
		t.Errorf("got %v, want an error that names %s", err, files.Failures)
	}
	if after, _ := os.ReadFile(files.Rollouts); !bytes.Equal(before, after) {
		t.Error("the results are gone")
	}
}

// A last line that is JSON and no result is no half line: it is told of and kept.
func TestALastLineThatIsNoResult(t *testing.T) {
	b := newBench(t, flat(1))
	b.run(t)
	b.config.Resume = true
	odd := `{"reward":null,"_ng_task_index":0,"_ng_rollout_index":0}`
	if err := os.WriteFile(b.config.Output, []byte(odd), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := collect.Run(t.Context(), b.config)
	var input *collect.InputError
	if !errors.As(err, &input) || !strings.Contains(err.Error(), "reward") {
		t.Errorf("got %v, want an error about its reward", err)
	}
	if after, _ := os.ReadFile(b.config.Output); string(after) != odd {
		t.Errorf("the output holds %q", after)
	}
}

func TestDuplicateIDsMayBeAllowed(t *testing.T) {
	b := newBench(t, `{"responses_create_params":{},"task_id":"a"}`+"\n"+`{"responses_create_params":{},"task_id":"a","x":1}`)
	b.config.AllowDuplicateIDs = true
	if summary := b.run(t); summary.Done != 2 {
		t.Errorf("summary %+v, want 2 done", summary)
	}
}

func TestParamsAreSetInEveryRow(t *testing.T) {
	b := newBench(t, `{"responses_create_params":{"input":"a","temperature":1.0}}`+"\n"+`{"responses_create_params":{}}`+"\n")
	b.config.Params = []collect.Param{{Name: "temperature", Value: []byte(`0.50`)}, {Name: "model", Value: []byte(`"m"`)}}
	b.run(t)
	var got []string
	for _, call := range b.Calls() {
		if call.Route == scripted.Responses {
			got = append(got, string(call.Body))
		}
	}
	sort.Strings(got)
	want := []string{`{"input":"a","temperature":0.50,"model":"m"}`, `{"temperature":0.50,"model":"m"}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("inputs of the agent (-want +got):\n%s", diff)
	}
}

func TestAnEarlierOutputIsNotOverwritten(t *testing.T) {
	b := newBench(t, flat(2))
	b.run(t)
	before, err := os.ReadFile(b.config.Output)
	if err != nil {
		t.Fatal(err)
	}
	_, err = collect.Run(t.Context(), b.config)
	var exists *collect.ExistsError
	if !errors.As(err, &exists) || exists.File != b.config.Output {
		t.Errorf("got %v, want an error that names %s", err, b.config.Output)
	}
	if after, _ := os.ReadFile(b.config.Output); !bytes.Equal(before, after) {
		t.Error("the output has changed")
	}
	b.config.Overwrite = true
	if summary := b.run(t); summary.Done != 2 || len(b.results(t)) != 2 {
		t.Errorf("summary %+v with %d lines, want 2 and 2", summary, len(b.results(t)))
	}
}

// What is left of an earlier output is not overwritten unasked either, whichever of its
// files that is.
func TestWhatIsLeftOfAnEarlierOutputIsNotOverwritten(t *testing.T) {
	files := collect.FilesOf("rollouts.jsonl")
	for _, name := range []string{files.Rollouts, files.Failures, files.Inputs, files.Aggregate} {
		t.Run(name, func(t *testing.T) {
			b := onStage(t, flat(2), atOnce(nil))
			left := filepath.Join(filepath.Dir(b.config.Output), name)
			writeFile(t, left, "{}\n")
			before := b.snapshot(t)
			err := b.refused(t)
			var exists *collect.ExistsError
			if !errors.As(err, &exists) || exists.File != left {
				t.Errorf("got %v, want an error that names %s", err, left)
			}
			if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
		})
	}
}

// A run that is stopped leaves no line of what it cut short, closes what it opened,
// and its resumption runs exactly the rest.
func TestAStoppedRunIsResumed(t *testing.T) {
	b := newBench(t, flat(10))
	b.config.Concurrency = 4
	ctx, stop := context.WithCancelCause(t.Context())
	b.Play(scripted.Script{scripted.Responses: {{}, {}, {}, {Hang: true, Do: func(scripted.Call) {
		stop(&failures.Stop{Kind: failures.Shutdown, Reason: "the run was stopped"})
	}}}})
	summary, err := collect.Run(ctx, b.config)
	if err != nil {
		t.Fatal(err)
	}
	done := b.results(t)
	if summary.Failed != 0 || summary.Done != len(done) || summary.Missing() != 10-len(done) || len(b.failures(t)) != 0 {
		t.Errorf("summary %+v with %d results and %d failures", summary, len(done), len(b.failures(t)))
	}
	b.allClosed(t)

	b.Play(nil)
	b.config.Resume = true
	summary = b.run(t)
	if summary.Done != 10 || summary.Attempts != 10-len(done) {
		t.Errorf("the resumption's summary is %+v, want 10 done in %d attempts", summary, 10-len(done))
	}
	want := []string{"0-0", "1-0", "2-0", "3-0", "4-0", "5-0", "6-0", "7-0", "8-0", "9-0"}
	if diff := cmp.Diff(want, pairs(b.results(t))); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

// A resumption that asks for less would forget what the rest was of.
func TestAResumptionThatAsksForLess(t *testing.T) {
	b := newBench(t, flat(3))
	b.config.Repeats = 2
	b.run(t)
	inputs := b.inputs(t)
	for name, change := range map[string]func(*collect.Config){
		"rows":    func(c *collect.Config) { c.Limit = 2 },
		"repeats": func(c *collect.Config) { c.Repeats = 1 },
	} {
		config := b.config
		config.Resume = true
		change(&config)
		_, err := collect.Run(t.Context(), config)
		var changed *collect.ChangedError
		if !errors.As(err, &changed) || !strings.Contains(err.Error(), "does not ask for") {
			t.Errorf("fewer %s: got %v, want a refusal", name, err)
		}
	}
	if diff := cmp.Diff(pairs(inputs), pairs(b.inputs(t))); diff != "" {
		t.Errorf("what is owed has changed (-before +after):\n%s", diff)
	}
}

// Failures count: what failed too often, or for good, is not run again; the rest goes
// on with the next attempt.
func TestAResumptionCountsFailures(t *testing.T) {
	b := newBench(t, flat(5))
	b.config.Resume = true
	b.run(t) // 0 to 4 are done; now as if:
	files := collect.FilesOf(b.config.Output)
	results, err := os.ReadFile(files.Rollouts)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for row := range strings.Lines(string(results)) {
		if strings.Contains(row, `"_ng_task_index":0`) {
			kept = append(kept, row)
		}
	}
	failure := func(task int, terminal bool) string {
		return fmt.Sprintf(`{"_ng_task_index":%d,"_ng_rollout_index":0,"_ng_failure_terminal":%t,"_ng_failure_stage":"seed"}`+"\n", task, terminal)
	}
	for path, lines := range map[string]string{
		files.Rollouts: strings.Join(kept, ""),
		files.Failures: failure(1, false) + failure(1, false) + failure(1, false) + failure(2, true) + failure(3, false) + failure(3, false),
	} {
		if err := os.WriteFile(path, []byte(lines), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.Play(nil)
	summary := b.run(t)
	if summary.Done != 3 || summary.Failed != 2 || summary.Attempts != 2 {
		t.Errorf("summary %+v, want 3 done and 2 failed in 2 attempts", summary)
	}
	attempts := map[int64]int64{}
	for _, l := range b.results(t) {
		attempts[l.TaskIndex] = l.AttemptIndex
	}
	if diff := cmp.Diff(map[int64]int64{0: 0, 3: 2, 4: 0}, attempts); diff != "" {
		t.Errorf("attempts of the results (-want +got):\n%s", diff)
	}
}

// A resumption has the attempts that are left, and no more.
func TestAResumptionHasTheAttemptsThatAreLeft(t *testing.T) {
	b := newBench(t, flat(1))
	b.config.Policy.MaxAttempts = 2
	b.Play(scripted.Script{scripted.Seed: {{Status: 503}}})
	b.run(t)
	b.config.Resume = true
	if summary := b.run(t); summary.Attempts != 0 || summary.Failed != 1 {
		t.Errorf("summary %+v, want no attempt", summary)
	}
	b.config.Policy.MaxAttempts = 3
	summary := b.run(t)
	if got := b.failures(t); summary.Attempts != 1 || len(got) != 3 || got[2].AttemptIndex != 2 {
		t.Errorf("summary %+v with failures %+v, want one attempt, the third", summary, got)
	}
}
