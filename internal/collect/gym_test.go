package collect_test

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/rawjson"
	"example.com/turn/internal/scripted"
)

// gymOutput is a copy of the files of NeMo Gym's own collector, as the output of a
// run whose dataset is what its own run owed.
func gymOutput(t *testing.T, b *bench) {
	t.Helper()
	for _, name := range []string{"rollouts.jsonl", "rollouts_failures.jsonl", "rollouts_materialized_inputs.jsonl", "rollouts_aggregate_metrics.json"} {
		writeFile(t, filepath.Join(filepath.Dir(b.config.Output), name), read(t, filepath.Join("testdata", "gym-0.7.0", name)))
	}
	b.write(t, read(t, filepath.Join("testdata", "gym-0.7.0", "rollouts_materialized_inputs.jsonl")))
}

// An output of NeMo Gym's collector can be resumed: what it has left is run, as the
// next attempt where there was one, and its own lines stay as they are.
func TestAnOutputOfNeMoGymIsResumed(t *testing.T) {
	s := atOnce(nil)
	b := onStage(t, "", s)
	gymOutput(t, b)
	before := b.snapshot(t)
	b.config.Resume = true
	notes := b.noted()
	summary := b.run(t)
	if diff := cmp.Diff([]string{"2-0-a1", "2-1-a1", "3-0-a1", "3-1-a1"}, s.played()); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if summary.Owed != (collect.Owed{Rollouts: 8, Tasks: 4, Repeats: 2, Servers: 1, Tools: true, Done: 4, Tried: 4}) || summary.Done != 8 || summary.Failed != 0 || mean(summary) != 1.0 || len(*notes) != 0 {
		t.Errorf("summary %+v with mean %v, notes %q; want 8 done", summary, mean(summary), *notes)
	}
	after := b.snapshot(t)
	if name := "rollouts_failures.jsonl"; after[name] != before[name] {
		t.Errorf("%s (-before +after):\n%s", name, cmp.Diff(before[name], after[name]))
	}
	if name := "rollouts.jsonl"; !strings.HasPrefix(after[name], before[name]) || strings.Count(after[name], "\n") != 8 {
		t.Errorf("%s does not begin with what was in it", name)
	}
	// The inputs say the same, spelled as ours.
	var rows [2][]any
	for i, text := range []string{before["rollouts_materialized_inputs.jsonl"], after["rollouts_materialized_inputs.jsonl"]} {
		for row := range strings.Lines(text) {
			var v any
			if err := json.Unmarshal([]byte(row), &v); err != nil {
				t.Fatal(err)
			}
			if i == 0 { // the name of the environment server is that of this run
				v.(map[string]any)["_ng_environment_server"] = "env"
			}
			rows[i] = append(rows[i], v)
		}
	}
	if diff := cmp.Diff(rows[0], rows[1]); diff != "" {
		t.Errorf("the inputs (-theirs +ours):\n%s", diff)
	}
}

// Its output is only resumed with its own dataset.
func TestAnOutputOfNeMoGymIsComparedWithTheDataset(t *testing.T) {
	b := onStage(t, "", atOnce(nil))
	gymOutput(t, b)
	b.write(t, strings.Replace(read(t, b.config.Dataset), "how warm is it in Oslo", "how cold is it in Oslo", 1))
	before := b.snapshot(t)
	b.config.Resume = true
	if err := b.refused(t); !strings.Contains(err.Error(), "task example:weather/weather-0 (index 0) is not what it was") {
		t.Errorf("got %v, want a refusal of task 0", err)
	}
	if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}

// Its output can be joined; each environment server's results are asked for under
// the name that it gave.
func TestAnOutputOfNeMoGymIsAggregated(t *testing.T) {
	e := newEnvironment(t, nil, func(w http.ResponseWriter, _ *http.Request) { say(w, "{}") })
	b := onStage(t, "", atOnce(nil))
	gymOutput(t, b)
	joinedOutput := filepath.Join(b.dir, "joined.jsonl")
	joined, err := collect.Aggregate(t.Context(), collect.AggregateConfig{
		Patterns: []string{b.config.Output}, Output: joinedOutput,
		Metrics: collect.Environments{Default: &collect.Environment{Client: client(t, e.URL), Name: "example_env"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if joined.Owed != (collect.Owed{Rollouts: 8, Tasks: 4, Repeats: 2, Servers: 1}) || joined.Done != 4 || joined.Failed != 4 || mean(&joined.Summary) != 1.0 || len(joined.Missing) != 0 {
		t.Errorf("joined %+v with mean %v, want 4 done and 4 failed", joined, mean(&joined.Summary))
	}
	want := []collect.FailureCount{{
		FailureGroup: collect.FailureGroup{Stage: "agent"}, Count: 4,
		Example: "500, message='Internal Server Error', url='http://127.0.0.1:19402/ng-rollout/3-0/v1/responses'",
	}}
	if diff := cmp.Diff(want, joined.Failures()); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	for one, other := range map[string]string{b.files().Rollouts: joinedOutput, b.files().Failures: collect.FilesOf(joinedOutput).Failures, b.files().Inputs: collect.FilesOf(joinedOutput).Inputs} {
		if diff := cmp.Diff(read(t, one), read(t, other)); diff != "" {
			t.Errorf("%s (-theirs +joined):\n%s", filepath.Base(one), diff)
		}
	}
	var body struct {
		Responses []map[string]json.RawMessage `json:"verify_responses"`
	}
	got := e.got("/aggregate_metrics")
	if len(got) != 1 || json.Unmarshal([]byte(got[0]), &body) != nil || len(body.Responses) != 4 {
		t.Fatalf("asked with %q, want four results", got)
	}
	const usage = `{"incomplete_details":null,"usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":0},"output_tokens":14,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":54}}`
	for _, response := range body.Responses {
		if string(response["response"]) != usage || response["ng_trajectory"] != nil || response["responses_create_params"] != nil {
			t.Errorf("one of them is %s", response)
		}
	}
}

// Each line of ours has every key that the same line of NeMo Gym's has.
func TestLinesHaveTheKeysOfNeMoGyms(t *testing.T) {
	b := newBench(t, flat(2))
	b.config.Concurrency, b.config.Policy.MaxAttempts = 1, 1
	b.Play(scripted.Script{scripted.Verify: {{Default: true}, {Status: 500}}})
	b.run(t)
	keys := func(path string) []string {
		t.Helper()
		line, _, _ := strings.Cut(read(t, path), "\n")
		fields, err := rawjson.ParseObject([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, field := range fields {
			out = append(out, field.Name)
		}
		return out
	}
	for name, want := range map[string][]string{
		"rollouts.jsonl": {
			"responses_create_params", "response", "reward", "mask_sample", "failure_kind", "failure_reason", "ng_agent_observations",
			"_ng_task_id", "_ng_task_index", "_ng_rollout_index", "_ng_environment_server", "_ng_result_type",
			"ng_trajectory", // which its collector makes of captured model calls
		},
		"rollouts_failures.jsonl": {
			"_ng_task_id", "_ng_failure_class", "_ng_failure_terminal", "_ng_failure_message", "_ng_failure_stage",
			"_ng_task_index", "_ng_rollout_index", "_ng_environment_server", "_ng_result_type",
		},
		"rollouts_materialized_inputs.jsonl": {"task_id", "task_input", "_ng_task_index", "_ng_environment_server", "_ng_rollout_index"},
	} {
		theirs := keys(filepath.Join("testdata", "gym-0.7.0", name))
		if diff := cmp.Diff(want, theirs); diff != "" {
			t.Errorf("their %s (-want +got):\n%s", name, diff)
		}
		ours := keys(filepath.Join(filepath.Dir(b.config.Output), name))
		for _, key := range want {
			if !slices.Contains(ours, key) && key != "ng_trajectory" {
				t.Errorf("our %s lacks %s: it has %q", name, key, ours)
			}
		}
	}
	var entries [2][]map[string]json.RawMessage
	for i, path := range []string{filepath.Join("testdata", "gym-0.7.0", "rollouts_aggregate_metrics.json"), b.files().Aggregate} {
		if err := json.Unmarshal([]byte(read(t, path)), &entries[i]); err != nil {
			t.Fatal(err)
		}
		var names []string
		for name := range entries[i][0] {
			names = append(names, name)
		}
		slices.Sort(names)
		want := []string{"_ng_environment_server", "agent_metrics", "agent_ref", "group_level_metrics", "key_metrics", "repeat_level_metrics"}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("an entry of %s (-want +got):\n%s", path, diff)
		}
	}
}
