package episode_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/protocol"
)

// replyTo is a reply to newRequest's, with what else is in it.
func replyTo(rest string) string {
	return `{"episode_id":{"rollout_id":"7-0","attempt":0},"task_id":{"taskset":"weather","task_id":"t-7"},` + rest + `}`
}

const scoredResult = `{"responses_create_params":{},"response":{},"reward":1}`

// What RunBody asks for is the request, when it is read again.
func TestRunBodyIsTheRequest(t *testing.T) {
	for _, test := range []struct {
		name    string
		request episode.Request
		want    string
	}{
		{"all of it", episode.Request{
			EpisodeID: protocol.EpisodeID{RolloutID: "7-0", Attempt: 2}, TaskID: protocol.TaskID{Taskset: "w<é>", TaskID: "t\n7"},
			Params: []byte(`{"input": "<é>", "t":1.0}`), TaskData: []byte(`{"a":18446744073709551616}`), AgentTimeout: 1500 * time.Millisecond,
		}, `{"episode_id":{"rollout_id":"7-0","attempt":2},"task":{"task_id":{"taskset":"w<é>","task_id":"t\n7"},` +
			`"task_input":{"responses_create_params":{"input": "<é>", "t":1.0},"task_data":{"a":18446744073709551616},"agent_timeout_seconds":1.5}}}`},
		{"what must be there", episode.Request{EpisodeID: protocol.EpisodeID{RolloutID: "7-0"}, TaskID: protocol.TaskID{Taskset: "w", TaskID: "t"}, Params: []byte(`{}`)},
			`{"episode_id":{"rollout_id":"7-0","attempt":0},"task":{"task_id":{"taskset":"w","task_id":"t"},"task_input":{"responses_create_params":{}}}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			body := string(test.request.RunBody().Bytes())
			if diff := cmp.Diff(test.want, body); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again, err := episode.ParseRequest([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			if again.EpisodeID != test.request.EpisodeID || again.TaskID != test.request.TaskID || again.AgentTimeout != test.request.AgentTimeout || string(again.Params) != string(test.request.Params) {
				t.Errorf("it is read as %+v", again)
			}
		})
	}
}

// A reply of the driver is read as what it is, in either compatibility.
func TestAReplyOfOursIsReadAgain(t *testing.T) {
	failure := failures.New(failures.StageAgent, failures.AgentRunError, "boom")
	failure.PartialResponse, failure.Observations, failure.Trajectory, failure.CleanupError = []byte(`{"output":[]}`), []byte(`[1]`), []byte(`{"t":1}`), "busy"
	r := newRequest()
	reply := episode.Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID, Failure: failure}
	for name, encode := range map[string]func(*failures.Failure) episode.Body{"0.7": nil, "main": (*failures.Failure).MainBody} {
		got, err := episode.ParseReply(reply.Body(encode).Bytes(), r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := *failure
		if name == "0.7" {
			want.Observations, want.Trajectory, want.CleanupError = nil, nil, ""
		}
		if diff := cmp.Diff(&want, got.Failure); diff != "" || got.Result != nil || got.EpisodeID != r.EpisodeID || got.TaskID != r.TaskID {
			t.Errorf("%s: %+v (-want +got):\n%s", name, got, diff)
		}
	}
	const result = `{"responses_create_params":{"a": 1.0},"response":{},"reward":0.50,"mask_sample":true,"x":"<\u00e9>","agent_timed_out":true}`
	first, err := episode.ParseReply([]byte(replyTo(`"result":`+result+`,"failure":null`)), r)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(first.Result.Body().Bytes()); got != result || first.Result.Reward != 0.5 || !first.Result.Masked || !first.Result.AgentTimedOut {
		t.Errorf("result %s, %+v", got, first.Result)
	}
	second, err := episode.ParseReply(first.Body(nil).Bytes(), r)
	if err != nil || string(second.Result.Body().Bytes()) != result {
		t.Errorf("read again: %s, %v", second.Result.Body().Bytes(), err)
	}
}

// The fields of a result are kept as they came, save those that the collector
// writes itself.
func TestTheFieldsOfAResultThatAreKept(t *testing.T) {
	reply, err := episode.ParseReply([]byte(replyTo(`"result":{"_ng_task_index":1,"reward":"0.5","mask_sample":"yes","responses_create_params":{"_ng_x":1},"response":{},"_ng_":2,"ng_trajectory":{},`+
		`"ng_agent_observations":null,"ng_perf":[1.0],"_nothing":3,"failure_kind":"agent_timeout","failure_reason":null,"agent_timed_out":"yes"}`)), newRequest())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"reward":0.5,"mask_sample":true,"responses_create_params":{"_ng_x":1},"response":{},"ng_trajectory":{},` +
		`"ng_agent_observations":null,"ng_perf":[1.0],"_nothing":3,"failure_kind":"agent_timeout","failure_reason":null,"agent_timed_out":"yes"}`
	if diff := cmp.Diff(want, string(reply.Result.Body().Bytes())); diff != "" || reply.Result.AgentTimedOut {
		t.Errorf("the agent timed out: %t; (-want +got):\n%s", reply.Result.AgentTimedOut, diff)
	}
}

// A failure is read with what of it is well formed.
func TestAFailureThatIsRead(t *testing.T) {
	long := strings.Repeat("é", failures.MaxReason+1)
	for _, test := range []struct {
		body string
		want failures.Failure
	}{
		{`{"failure_reason":"x","terminal":true,"partial_response":null}`, failures.Failure{Reason: "x", Terminal: true}},
		{`{"terminal":false}`, failures.Failure{Reason: "no reason was given"}},
		{`{"terminal":false,"failure_reason":7,"stage":null,"failure_kind":1}`, failures.Failure{Reason: "no reason was given"}},
		{`{"terminal":false,"failure_reason":"` + long + `"}`, failures.Failure{Reason: strings.Repeat("é", failures.MaxReason-1) + "…"}},
		{`{"terminal":false,"failure_reason":"x","failure_kind":"mine:own","stage":"agent","more":1}`, failures.Failure{Reason: "x", Kind: "mine:own", Stage: "agent"}},
		{`{"terminal":false,"failure_reason":"x","failure_kind":"Not well formed"}`, failures.Failure{Reason: "x"}},
		{`{"terminal":false,"failure_reason":"x","partial_response":{"a": 1},"ng_agent_observations":[],"ng_trajectory":{},"cleanup_error":"c"}`,
			failures.Failure{Reason: "x", PartialResponse: []byte(`{"a": 1}`), Observations: []byte(`[]`), Trajectory: []byte(`{}`), CleanupError: "c"}},
	} {
		reply, err := episode.ParseReply([]byte(replyTo(`"failure":`+test.body)), newRequest())
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		if diff := cmp.Diff(&test.want, reply.Failure); diff != "" || reply.Result != nil {
			t.Errorf("%s (-want +got):\n%s", test.body, diff)
		}
	}
}

// Ids may be spelled in any way that means the same.
func TestIDsThatAreTheRequests(t *testing.T) {
	for _, body := range []string{
		"\n" + replyTo(`"result":`+scoredResult) + "\n",
		strings.Replace(replyTo(`"result":`+scoredResult), `,"attempt":0`, ``, 1),
		strings.Replace(replyTo(`"result":`+scoredResult), `"attempt":0`, `"attempt":0.0`, 1),
		strings.Replace(replyTo(`"result":`+scoredResult), `"t-7"`, `"\u0074-7"`, 1),
		replyTo(`"more":1,"failure":null,"result":` + scoredResult),
	} {
		if reply, err := episode.ParseReply([]byte(body), newRequest()); err != nil || reply.Result == nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestWhatIsNoReply(t *testing.T) {
	result := `"result":` + scoredResult
	for _, test := range []struct{ name, body, says string }{
		{"nothing", ``, "JSON"},
		{"not JSON", `oops`, "JSON"},
		{"half of one", replyTo(result)[:90], "JSON"},
		{"more than one", replyTo(result) + `{}`, "JSON"},
		{"a list", `[]`, "want an object, got an array"},
		{"no ids", `{` + result + `}`, "episode_id"},
		{"no task id", `{"episode_id":{"rollout_id":"7-0"},` + result + `}`, "task_id"},
		{"an episode id that is none", strings.Replace(replyTo(result), `{"rollout_id":"7-0","attempt":0}`, `"7-0"`, 1), "episode_id"},
		{"an episode id that is null", strings.Replace(replyTo(result), `{"rollout_id":"7-0","attempt":0}`, `null`, 1), "episode_id"},
		{"another rollout", strings.Replace(replyTo(result), "7-0", "7-1", 1), `it is of another episode: rollout "7-1", attempt 0`},
		{"another attempt", strings.Replace(replyTo(result), `"attempt":0`, `"attempt":1`, 1), `it is of another episode: rollout "7-0", attempt 1`},
		{"an attempt that is none", strings.Replace(replyTo(result), `"attempt":0`, `"attempt":"0"`, 1), "attempt"},
		{"a long id", strings.Replace(replyTo(result), "7-0", strings.Repeat("7", 5000), 1), "it is of another episode"},
		{"another taskset", strings.Replace(replyTo(result), "weather", "Weather", 1), "it is of another task"},
		{"another task", strings.Replace(replyTo(result), "t-7", "t-8", 1), "it is of another task"},
		{"neither", replyTo(`"result":null,"failure":null`), "neither a result nor a failure"},
		{"neither is there", replyTo(`"x":1`), "neither a result nor a failure"},
		{"both", replyTo(result + `,"failure":{"failure_reason":"x","terminal":false}`), "both a result and a failure"},
		{"a result that is none", replyTo(`"result":[]`), "its result: want an object"},
		{"a result without a reward", replyTo(`"result":{"responses_create_params":{},"response":{}}`), "its result: it lacks reward"},
		{"a result without a response", replyTo(`"result":{"responses_create_params":{},"reward":1}`), "its result: it lacks response"},
		{"a result with another response", replyTo(`"result":{"responses_create_params":{},"response":null,"reward":1}`), "response: want an object, got null"},
		{"a reward past all floats", replyTo(strings.Replace(result, `:1}`, `:1e999}`, 1)), "its result: reward"},
		{"a mask that is none", replyTo(strings.Replace(result, `:1}`, `:1,"mask_sample":2}`, 1)), "mask_sample"},
		{"a failure that is none", replyTo(`"failure":"x"`), "its failure: want an object"},
		{"a failure that may be final or not", replyTo(`"failure":{"failure_reason":"x"}`), "does not say whether it is terminal"},
		{"a failure that is final in a way", replyTo(`"failure":{"failure_reason":"x","terminal":1}`), "does not say whether it is terminal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			reply, err := episode.ParseReply([]byte(test.body), newRequest())
			if err == nil || !strings.Contains(err.Error(), test.says) || len(err.Error()) > 500 {
				t.Errorf("got %v, want an error with %q", err, test.says)
			}
			if reply.Result != nil || reply.Failure != nil || reply.EpisodeID != newRequest().EpisodeID || reply.TaskID != newRequest().TaskID {
				t.Errorf("reply %s, want one of the request's ids alone", fmt.Sprintf("%+v", reply))
			}
		})
	}
}
