package envserver_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

// FuzzParseRequest holds what a server may rely on whatever it is sent, as an
// episode request and as a flat row: no panic, a refusal that can be printed, or a
// request with valid ids and bodies, which comes out the same when it is written
// down and read again.
func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{
		plain, row, ``, `{}`, `[]`, `null`, "\uFEFF{}", "\xff", `{"\ud800":1}`,
		request(`{"responses_create_params":{"stream":true},"task_data":{"n":1},"n":1.0}`),
		request(`{"responses_create_params":{},"agent_timeout_seconds":1e300,"x":{"x":[1,{"y":"\udc00"}]}}`),
		strings.Replace(plain, `"3-0"`, `"r-a1"`, 1),
		strings.Replace(plain, `"attempt":0`, `"attempt":2.0`, 1),
		strings.Replace(plain, `"task-3"`, `"\ud800"`, 1),
		`{"responses_create_params":{},"_ng_task_index":3,"_ng_rollout_index":0,"task_id":1e400,"task_source":"weather","agent_ref":{"name":"simple_agent"}}`,
		`{"responses_create_params":{},"_ng_task_index":null,"_ng_rollout_index":0.0,"_ng_rollout_id":"x","instance_id":"","problem_id":-0}`,
	} {
		f.Add([]byte(seed))
	}
	rules := episode.RowRules{Taskset: "weather", Servers: []string{"weather", "simple_agent"}, Agent: "simple_agent"}
	f.Fuzz(func(t *testing.T, body []byte) {
		sent := string(body)
		r, err := episode.ParseRequest(body)
		checkParsed(t, r, err, body)
		r, _, err = episode.ParseLegacyRequest(body, rules)
		checkParsed(t, r, err, body)
		if string(body) != sent {
			t.Error("the body was changed")
		}
	})
}

func checkParsed(t *testing.T, r *episode.Request, err error, body []byte) {
	t.Helper()
	var invalid *episode.InvalidRequest
	switch {
	case errors.As(err, &invalid):
		text := invalid.Body().Bytes()
		if !json.Valid(text) || !utf8.Valid(text) || len(invalid.Faults) == 0 {
			t.Errorf("the refusal %q is not JSON in UTF-8", text)
		}
		if err.Error() == "" {
			t.Error("an error without words")
		}
		return
	case errors.Is(err, episode.ErrNotUTF8):
		if utf8.Valid(body) {
			t.Errorf("%q is UTF-8", body)
		}
		return
	case err != nil:
		t.Fatalf("an error of another type: %v", err)
	}
	if err := protocol.CheckRolloutID(r.EpisodeID.RolloutID); err != nil {
		t.Errorf("rollout id %q %v", r.EpisodeID.RolloutID, err)
	}
	if r.EpisodeID.Attempt < 0 || r.EpisodeID.Attempt > protocol.MaxAttempt || r.AgentTimeout < 0 {
		t.Errorf("attempt %d, agent timeout %s", r.EpisodeID.Attempt, r.AgentTimeout)
	}
	for _, id := range []string{r.TaskID.Taskset, r.TaskID.TaskID} {
		if id == "" || !utf8.ValidString(id) {
			t.Errorf("task id %q", r.TaskID)
		}
	}
	if !utf8.Valid(body) {
		t.Errorf("%q is not UTF-8 and was taken", body)
	}
	if err := r.Validate(); err != nil {
		t.Errorf("it is not valid: %v", err)
	}
	for _, object := range [][]byte{r.Params, r.TaskData} {
		if _, err := rawjson.ParseObject(object); err != nil || !json.Valid(object) {
			t.Errorf("%q is not an object: %v", object, err)
		}
	}
	checkWrittenDown(t, r)
}

// checkWrittenDown writes a request as a program would and reads it again.
func checkWrittenDown(t *testing.T, r *episode.Request) {
	t.Helper()
	text := r.RunBody().Bytes()
	again, err := episode.ParseRequest(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if again.EpisodeID != r.EpisodeID || again.TaskID != r.TaskID || string(again.Params) != string(r.Params) || string(again.TaskData) != string(r.TaskData) {
		t.Errorf("%s came back as %+v, was %+v", text, again, r)
	}
	fresh := &episode.Request{EpisodeID: r.EpisodeID, TaskID: r.TaskID, Params: r.Params, TaskData: r.TaskData, AgentTimeout: r.AgentTimeout}
	if err := fresh.Validate(); err != nil {
		t.Errorf("a program's own request like it is not valid: %v", err)
	}
}
