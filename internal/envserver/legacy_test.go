package envserver_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/scripted"
)

func legacy(s *settings) { s.server.Legacy = true }

// A flat row becomes an episode request: its ids from the collector's fields, the
// rest but those as task data (section 3, legacy mode).
func TestFlatRowIsRun(t *testing.T) {
	h := newHouse(t, legacy)
	for _, test := range []struct {
		name, row             string
		episode, task, fields string
	}{
		{"the least there is", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"3"}`, `{}`},
		{"all there is", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":1,"_ng_attempt_index":2,"_ng_rollout_id":"run-7","task_source":"simple_agent","agent_ref":{"type":"x","name":"simple_agent"},"skills_ref":{"a":1},"_ng_anything":[],"city": "Oslo","n":1.0}`,
			`{"rollout_id":"run-7","attempt":2}`, `{"taskset":"simple_agent","task_id":"3"}`, `{"city":"Oslo","n":1.0}`},
		{"task id as text", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"task_id":"t-9"}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"t-9"}`, `{"task_id":"t-9"}`},
		{"task id as a number", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"task_id":12345678901234567890}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"12345678901234567890"}`, `{"task_id":12345678901234567890}`},
		{"task id 0", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"task_id":0}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"0"}`, `{"task_id":0}`},
		{"task id null", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"task_id":null,"instance_id":"i-1"}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"i-1"}`, `{"task_id":null,"instance_id":"i-1"}`},
		{"problem id before instance id", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"instance_id":"i-1","problem_id":"p-1"}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"p-1"}`, `{"instance_id":"i-1","problem_id":"p-1"}`},
		{"no indexes needed", `{"responses_create_params":{},"_ng_rollout_id":"r","instance_id":"i-1"}`,
			`{"rollout_id":"r","attempt":0}`, `{"taskset":"weather","task_id":"i-1"}`, `{"instance_id":"i-1"}`},
		{"nulls are absent", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"_ng_attempt_index":null,"_ng_rollout_id":null,"task_source":null,"agent_ref":null}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"3"}`, `{}`},
		{"floats that are whole", `{"responses_create_params":{},"_ng_task_index":3.0,"_ng_rollout_index":1e0,"_ng_attempt_index":2.0}`,
			`{"rollout_id":"3-1","attempt":2}`, `{"taskset":"weather","task_id":"3"}`, `{}`},
		{"fields named like a request's", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"episode_id":"e","task":"sort the list","task_input":"x"}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"3"}`, `{"episode_id":"e","task":"sort the list","task_input":"x"}`},
		{"data inside and outside", `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"task_data":{"a":1},"b":2}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"3"}`, `{"a":1,"b":2}`},
		{"a byte order mark", "\uFEFF" + `{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0}`,
			`{"rollout_id":"3-0","attempt":0}`, `{"taskset":"weather","task_id":"3"}`, `{}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Play(nil)
			got := h.run(t, test.row)
			if want := `{"responses_create_params":{},"response":`; got.Status != http.StatusOK || !strings.HasPrefix(got.Body, want) {
				t.Fatalf("status %d: %s", got.Status, got.Body)
			}
			seed := string(h.Calls()[0].Body)
			if want := `,"episode_id":` + test.episode + `,"task_id":` + test.task + `,"task_data":` + test.fields + `}`; !strings.HasSuffix(seed, want) {
				t.Errorf("seed %s\nwant %s at its end", seed, want)
			}
			if diff := cmp.Diff(whole, h.Routes()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInvalidRowIsRefused(t *testing.T) {
	h := newHouse(t, legacy)
	row := func(fields string) string { return `{"responses_create_params":{},` + fields + `}` }
	indexed := func(fields string) string { return row(`"_ng_task_index":3,"_ng_rollout_index":0,` + fields) }
	for _, test := range []struct {
		name, row string
		want      []fault
	}{
		{"nothing", `{}`, []fault{{"missing", "body.responses_create_params"}, {"missing", "body._ng_task_index"}, {"missing", "body._ng_rollout_index"}}},
		{"a scalar task id alone", `{"task_id":"t"}`, []fault{{"missing", "body.responses_create_params"}, {"missing", "body._ng_task_index"}, {"missing", "body._ng_rollout_index"}}},
		{"a scalar task id and an index", `{"task_id":"t","_ng_task_index":1,"_ng_rollout_index":0}`, []fault{{"missing", "body.responses_create_params"}}},
		{"no rollout index", row(`"_ng_task_index":3`), []fault{{"missing", "body._ng_rollout_index"}}},
		{"no task index", row(`"_ng_rollout_index":0`), []fault{{"missing", "body._ng_task_index"}}},
		{"no task id and no index", row(`"_ng_rollout_id":"r"`), []fault{{"missing", "body._ng_task_index"}, {"missing", "body._ng_rollout_index"}}},
		{"indexes null", row(`"_ng_task_index":null,"_ng_rollout_index":null`), []fault{{"missing", "body._ng_task_index"}, {"missing", "body._ng_rollout_index"}}},
		{"rollout index null", row(`"_ng_task_index":3,"_ng_rollout_index":null`), []fault{{"missing", "body._ng_rollout_index"}}},
		{"indexes that are none", row(`"_ng_task_index":-1,"_ng_rollout_index":"0"`), []fault{{"greater_than_equal", "body._ng_task_index"}, {"int_type", "body._ng_rollout_index"}}},
		{"an attempt that is none", indexed(`"_ng_attempt_index":true`), []fault{{"int_type", "body._ng_attempt_index"}}},
		{"a rollout id that is no text", indexed(`"_ng_rollout_id":7`), []fault{{"string_type", "body._ng_rollout_id"}}},
		{"a rollout id that is none", indexed(`"_ng_rollout_id":"a/b"`), []fault{{"string_pattern_mismatch", "body._ng_rollout_id"}}},
		{"a rollout id of an attempt", indexed(`"_ng_rollout_id":"r-a1"`), []fault{{"string_pattern_mismatch", "body._ng_rollout_id"}}},
		{"a source that is none of the servers", indexed(`"task_source":"other"`), []fault{{"value_error", "body.task_source"}}},
		{"another agent", indexed(`"agent_ref":{"name":"other"}`), []fault{{"value_error", "body.agent_ref.name"}}},
		{"an agent without a name", indexed(`"agent_ref":{"type":"x"}`), []fault{{"missing", "body.agent_ref.name"}}},
		{"an agent by name alone", indexed(`"agent_ref":"simple_agent"`), []fault{{"dict_type", "body.agent_ref"}}},
		{"an agent's name that is no text", indexed(`"agent_ref":{"name":null}`), []fault{{"value_error", "body.agent_ref.name"}}},
		{"a task id that is a lone surrogate", indexed(`"task_id":"\ud800"`), []fault{{"string_unicode", "body.task_id"}}},
		{"streaming", `{"responses_create_params":{"stream":true},"_ng_task_index":3,"_ng_rollout_index":0}`, []fault{{"value_error", "body.responses_create_params.stream"}}},
		{"params null", `{"responses_create_params":null,"_ng_task_index":3,"_ng_rollout_index":0}`, []fault{{"dict_type", "body.responses_create_params"}}},
		{"a conflict", indexed(`"task_data":{"n":1},"n":2`), []fault{{"value_error", "body"}}},
		{"task data that is none", indexed(`"task_data":[]`), []fault{{"dict_type", "body.task_data"}}},
		{"an agent timeout that is none", indexed(`"agent_timeout_seconds":0`), []fault{{"greater_than", "body.agent_timeout_seconds"}}},
		{"several", `{"responses_create_params":{"stream":true},"_ng_task_index":-1,"_ng_rollout_index":0,"task_source":"other","agent_ref":{}}`, []fault{
			{"greater_than_equal", "body._ng_task_index"}, {"value_error", "body.task_source"}, {"missing", "body.agent_ref.name"}, {"value_error", "body.responses_create_params.stream"},
		}},
		{"a list", `[]`, []fault{{"model_attributes_type", "body"}}},
		{"not JSON", `row`, []fault{{"json_invalid", "body"}}},
		{"an episode request that is not valid", `{"episode_id":{"rollout_id":"r"},"task":{}}`, []fault{{"missing", "body.task.task_id"}, {"missing", "body.task.task_input"}}},
		{"an episode request without its id", `{"task":{}}`, []fault{{"missing", "body.episode_id"}, {"missing", "body.task.task_id"}, {"missing", "body.task.task_input"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Play(nil)
			if diff := cmp.Diff(test.want, faultsOf(t, h.run(t, test.row))); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if calls := h.Routes(); len(calls) > 0 {
				t.Errorf("calls were made: %v", calls)
			}
		})
	}
}

// In legacy mode an episode request is still one, and is answered as one.
func TestLegacyModeTakesEpisodeRequests(t *testing.T) {
	h := newHouse(t, legacy)
	if got := open(t, h.run(t, plain)); got.Failure != nil || string(got.EpisodeID) != episodeID || string(got.TaskID) != taskID {
		t.Errorf("got %+v", got)
	}
}

const row = `{"responses_create_params":{"input":"x"},"_ng_task_index":3,"_ng_rollout_index":0,"city":"Oslo"}`

// The replies to rows, whole.
func TestRowIsAnsweredFlat(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*settings)
		script scripted.Script
		want   string
	}{
		{"a result", nil, scripted.Script{
			scripted.Responses: {{Raw: new(`{"output":[]}`)}},
			scripted.Verify:    {{Raw: new(`{"reward":1.0,"responses_create_params":"{{params}}","response":"{{response}}","x":[1.0],"_ng_task_index":7,"agent_ref":{"name":"other"},"mask_sample":false}`)}},
		}, `{"reward":1.0,"responses_create_params":{"input":"x"},"response":{"output":[]},"x":[1.0],"mask_sample":false,"agent_ref":{"name":"simple_agent"}}`},
		{"a result with observations", nil, scripted.Script{
			scripted.Responses:  {{Raw: new(`{"output":[]}`)}},
			scripted.AgentClose: {{Raw: new(`{"agent_session_id":"{{id}}","agent_observations":{"n":1.0}}`)}},
			scripted.Verify:     {{Raw: new(`{"reward":1,"responses_create_params":{},"response":{}}`)}},
		}, `{"reward":1,"responses_create_params":{},"response":{},"ng_agent_observations":{"n":1.0},"agent_ref":{"name":"simple_agent"}}`},
		{"a result with nulls", nil, scripted.Script{
			scripted.Verify: {{Raw: new(`{"reward":1,"failure_kind":null,"responses_create_params":{},"response":{},"x":null}`)}},
		}, `{"reward":1,"failure_kind":null,"responses_create_params":{},"response":{},"x":null,"agent_ref":{"name":"simple_agent"}}`},
		{"a failure of verify", nil, scripted.Script{
			scripted.Responses: {{Raw: new(`{"output":[],"n":1.0}`)}},
			scripted.Verify:    {{Status: 500, JSON: json.RawMessage(`{"detail":"its own words"}`)}},
		}, `{"_ng_failure_class":"environment_server_failed","_ng_failure_terminal":false,"_ng_failure_message":"resources server weather refused POST /verify with 500 Internal Server Error: its own words",` +
			`"_ng_failure_stage":"verification","_ng_failure_partial_response":{"output":[],"n":1.0},"agent_ref":{"name":"simple_agent"}}`},
		{"a failure of the seed", nil, scripted.Script{
			scripted.Seed: {{Status: 422, JSON: json.RawMessage(`{"detail":"no such city"}`)}},
		}, `{"_ng_failure_class":"environment_server_failed","_ng_failure_terminal":true,"_ng_failure_message":"resources server weather refused POST /seed_session with 422 Unprocessable Entity: no such city",` +
			`"_ng_failure_stage":"seed","agent_ref":{"name":"simple_agent"}}`},
		{"a bug of ours", panicsAt("/verify"), nil,
			`{"_ng_failure_class":"environment_server_failed","_ng_failure_terminal":true,"_ng_failure_message":"Unhandled environment server error: boom","agent_ref":{"name":"simple_agent"}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHouse(t, func(s *settings) {
				legacy(s)
				if test.change != nil {
					test.change(s)
				}
			})
			h.Play(test.script)
			if got := h.run(t, row); got.Status != http.StatusOK || got.Body != test.want {
				t.Errorf("status %d\n got %s\nwant %s", got.Status, got.Body, test.want)
			}
		})
	}
}
