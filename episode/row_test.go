package episode_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/protocol"
)

// A read row is what of a row a test looks at.
type readRow struct {
	EpisodeID        protocol.EpisodeID
	TaskID           protocol.TaskID
	Params, TaskData string
	Materialised     bool
	Indexes          [2]int64 // of the task and the rollout; -1: none
	RolloutID        string
}

func read(row episode.Row) readRow {
	indexes := [2]int64{-1, -1}
	if row.TaskIndex != nil {
		indexes[0] = *row.TaskIndex
	}
	if row.RolloutIndex != nil {
		indexes[1] = *row.RolloutIndex
	}
	r := row.Request
	return readRow{r.EpisodeID, r.TaskID, string(r.Params), string(r.TaskData), row.Materialised, indexes, row.RolloutID}
}

// id is an episode id of the first attempt, or of a later one.
func id(rollout string, attempt int64) protocol.EpisodeID {
	return protocol.EpisodeID{RolloutID: rollout, Attempt: attempt}
}

func TestParseRow(t *testing.T) {
	rules := episode.RowRules{Taskset: "file"}
	none := [2]int64{-1, -1}
	for _, test := range []struct {
		name, line string
		want       readRow
	}{
		{
			"flat", `{"responses_create_params":{"n":1.0},"city":"Oslo","_ng_x":1,"skills_ref":2,"agent_ref":{"name":"any"},"task_source":"weather"}`,
			readRow{TaskID: protocol.TaskID{Taskset: "weather"}, Params: `{"n":1.0}`, TaskData: `{"city":"Oslo"}`, Indexes: none},
		},
		{
			"flat, with indexes", `{"responses_create_params":{},"_ng_task_index":12,"_ng_rollout_index":10,"_ng_attempt_index":2}`,
			readRow{id("12-10", 2), protocol.TaskID{Taskset: "file", TaskID: "12"}, `{}`, `{}`, false, [2]int64{12, 10}, ""},
		},
		{
			"flat, with names of its own", `{"responses_create_params":{},"_ng_task_index":12,"_ng_rollout_index":10,"_ng_rollout_id":"mine","instance_id":"i","problem_id":7}`,
			readRow{id("mine", 0), protocol.TaskID{Taskset: "file", TaskID: "7"}, `{}`, `{"instance_id":"i","problem_id":7}`, false, [2]int64{12, 10}, "mine"},
		},
		{
			"flat, with an empty task id", `{"responses_create_params":{},"_ng_task_index":12,"task_id":"","instance_id":"i"}`,
			readRow{id("", 0), protocol.TaskID{Taskset: "file", TaskID: "i"}, `{}`, `{"task_id":"","instance_id":"i"}`, false, [2]int64{12, -1}, ""},
		},
		{
			"flat, with a field named task_input", `{"responses_create_params":{},"task_input":{"a":1}}`,
			readRow{TaskID: protocol.TaskID{Taskset: "file"}, Params: `{}`, TaskData: `{"task_input":{"a":1}}`, Indexes: none},
		},
		{
			"materialised", `{"task_id":{"taskset":"own","task_id":"t"},"task_input":{"responses_create_params":{},"task_data":{"a":1.0}},"_ng_task_index":12,"_ng_rollout_index":10,"_ng_attempt_index":1,"agent_ref":{"name":"any"}}`,
			readRow{id("12-10", 1), protocol.TaskID{Taskset: "own", TaskID: "t"}, `{}`, `{"a":1.0}`, true, [2]int64{12, 10}, ""},
		},
		{
			"materialised, with flat task data", `{"task_id":{"taskset":"own","task_id":"t"},"task_input":{"responses_create_params":{},"a":1.0},"_ng_rollout_id":"mine"}`,
			readRow{id("mine", 0), protocol.TaskID{Taskset: "own", TaskID: "t"}, `{}`, `{"a":1.0}`, true, none, "mine"},
		},
		{
			"behind a byte order mark", "\uFEFF{\"responses_create_params\":{}}",
			readRow{TaskID: protocol.TaskID{Taskset: "file"}, Params: `{}`, TaskData: `{}`, Indexes: none},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			row, err := episode.ParseRow([]byte(test.line), rules)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, read(row)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRowListsWhatIsWrong(t *testing.T) {
	rules := episode.RowRules{Taskset: "file"}
	for _, test := range []struct {
		name, line string
		want       []string
	}{
		{"not JSON", `{`, []string{"json_invalid "}},
		{"a list", `[]`, []string{"model_attributes_type "}},
		{"no params", `{"task_id":"t"}`, []string{"missing responses_create_params"}},
		{"a task id that is an object", `{"responses_create_params":{},"task_id":{"taskset":"a","task_id":"b"}}`, []string{"string_type task_id"}},
		{"an empty source", `{"responses_create_params":{},"task_source":""}`, []string{"string_too_short task_source"}},
		{"a source that is no text", `{"responses_create_params":{},"task_source":7}`, []string{"string_type task_source"}},
		{"a source that is a lone surrogate", `{"responses_create_params":{},"task_source":"\ud800"}`, []string{"string_unicode task_source"}},
		{"materialised without a task id", `{"task_input":{"responses_create_params":{}}}`, []string{"missing task_id"}},
		{
			"materialised, wrong in every part", `{"task_id":{"taskset":"","x":1},"task_input":{"task_data":[]},"_ng_task_index":-1,"_ng_rollout_index":true,"_ng_rollout_id":"a/b","city":"Oslo"}`,
			[]string{
				"greater_than_equal _ng_task_index", "int_type _ng_rollout_index", "string_pattern_mismatch _ng_rollout_id",
				"string_too_short task_id.taskset", "missing task_id.task_id", "extra_forbidden task_id.x",
				"missing task_input.responses_create_params", "dict_type task_input.task_data", "extra_forbidden city",
			},
		},
		{"materialised, its input no object", `{"task_id":{"taskset":"a","task_id":"b"},"task_input":7}`, []string{"dict_type task_input"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := episode.ParseRow([]byte(test.line), rules)
			if diff := cmp.Diff(test.want, faultsIn(t, err)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// Which fields a body has decides whether its faults are told as those of an
// episode request or of a row.
func TestALegacyBodyIsARowOrARequest(t *testing.T) {
	for _, test := range []struct {
		name, body string
		row        bool
		want       []string
	}{
		{"a row", `{"responses_create_params":{},"_ng_task_index":1,"_ng_rollout_index":0}`, true, nil},
		{"a row with fields of a request", `{"responses_create_params":{},"_ng_task_index":1,"_ng_rollout_index":0,"episode_id":1,"task":{}}`, true, nil},
		{"a scalar task id beside fields of a request", `{"task_id":"t","_ng_rollout_id":"r","episode_id":{},"task":{}}`, true, []string{"missing body.responses_create_params"}},
		{"a request", string(requestWith(`{"responses_create_params":{}}`)), false, nil},
		{"a request with a task id beside it", `{"task_id":{},"episode_id":{"rollout_id":"r"},"task":7}`, false, []string{"dict_type body.task", "extra_forbidden body.task_id"}},
		{"only an episode id", `{"episode_id":{"rollout_id":"r"}}`, false, []string{"missing body.task"}},
		{"only a task", `{"task":{}}`, false, []string{"missing body.episode_id", "missing body.task.task_id", "missing body.task.task_input"}},
		{"a task that is none", `{"task":"t","_ng_task_index":1,"_ng_rollout_index":0}`, true, []string{"missing body.responses_create_params"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, row, err := episode.ParseLegacyRequest([]byte(test.body), episode.RowRules{Taskset: "weather"})
			if row != test.row {
				t.Errorf("it is a row: %t, want %t", row, test.row)
			}
			if diff := cmp.Diff(test.want, faultsIn(t, err)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
