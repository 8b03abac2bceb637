package episode_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
)

// faultsIn are the faults that an error lists, each with where it is and what
// kind of fault.
func faultsIn(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var invalid *episode.InvalidRequest
	if !errors.As(err, &invalid) {
		t.Fatalf("%v is a %T", err, err)
	}
	var list []string
	for _, fault := range invalid.Faults {
		list = append(list, fault.Type+" "+strings.Join(fault.Path, "."))
	}
	return list
}

// A request that a program made is held to what one on the wire is held to.
func TestValidateListsWhatIsWrong(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*episode.Request)
		want   []string
	}{
		{"nothing", func(*episode.Request) {}, nil},
		{"no task data", func(r *episode.Request) { r.TaskData = nil }, nil},
		{"space around the bodies", func(r *episode.Request) { r.Params, r.TaskData = []byte(" {}\n"), []byte("\t{} ") }, nil},
		{"an agent timeout", func(r *episode.Request) { r.AgentTimeout = 1 }, nil},
		{"a rollout id that names an attempt", func(r *episode.Request) { r.EpisodeID.RolloutID = "7-0-a1" }, []string{"string_pattern_mismatch episode_id.rollout_id"}},
		{"an attempt below 0", func(r *episode.Request) { r.EpisodeID.Attempt = -1 }, []string{"greater_than_equal episode_id.attempt"}},
		{"no taskset", func(r *episode.Request) { r.TaskID.Taskset = "" }, []string{"string_too_short task_id.taskset"}},
		{"a task id that is no text", func(r *episode.Request) { r.TaskID.TaskID = "\xed\xa0\x80" }, []string{"string_unicode task_id.task_id"}},
		{"an agent timeout below 0", func(r *episode.Request) { r.AgentTimeout = -1 }, []string{"greater_than agent_timeout_seconds"}},
		{"no params", func(r *episode.Request) { r.Params = nil }, []string{"json_invalid responses_create_params"}},
		{"params that are a list", func(r *episode.Request) { r.Params = []byte(`[]`) }, []string{"dict_type responses_create_params"}},
		{"params that ask for a stream", func(r *episode.Request) { r.Params = []byte(`{"stream":true}`) }, []string{"value_error responses_create_params.stream"}},
		{"task data that is a list", func(r *episode.Request) { r.TaskData = []byte(`[]`) }, []string{"json_invalid task_data"}},
		{"task data that is nothing", func(r *episode.Request) { r.TaskData = []byte{} }, []string{"json_invalid task_data"}},
		{"everything", func(r *episode.Request) {
			*r = episode.Request{EpisodeID: protocol.EpisodeID{Attempt: math.MinInt64}, AgentTimeout: math.MinInt64}
		}, []string{
			"string_pattern_mismatch episode_id.rollout_id", "greater_than_equal episode_id.attempt",
			"string_too_short task_id.taskset", "string_too_short task_id.task_id",
			"greater_than agent_timeout_seconds", "json_invalid responses_create_params",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			request := newRequest()
			test.change(request)
			if diff := cmp.Diff(test.want, faultsIn(t, request.Validate())); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// What is wrong with a body is told in words.
func TestValidateSaysWhy(t *testing.T) {
	request := newRequest()
	request.Params, request.TaskData = []byte(`{"input":`), []byte(`[]`)
	const want = "responses_create_params: not JSON: the text ends where a value should be at byte 9; task_data: want an object, got an array"
	if err := request.Validate(); err == nil || err.Error() != want {
		t.Errorf("Validate says %v, want %s", err, want)
	}
}

// Whichever body a program changes after a request was parsed, it is looked at
// anew.
func TestEachChangedBodyIsLookedAtAnew(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*episode.Request)
		want   []string
	}{
		{"nothing", func(*episode.Request) {}, nil},
		{"the params", func(r *episode.Request) { r.Params = []byte(`{"stream":true}`) }, []string{"value_error responses_create_params.stream"}},
		{"the task data", func(r *episode.Request) { r.TaskData = []byte(`7`) }, []string{"json_invalid task_data"}},
		{"the task data's end", func(r *episode.Request) { r.TaskData = r.TaskData[:len(r.TaskData)-1] }, []string{"json_invalid task_data"}},
		{"the params' end", func(r *episode.Request) { r.Params = r.Params[:len(r.Params)-1] }, []string{"json_invalid responses_create_params"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			request := mustParse(t, `{"responses_create_params":{"input":"x"},"task_data":{"city":"Oslo"}}`)
			test.change(request)
			if diff := cmp.Diff(test.want, faultsIn(t, request.Validate())); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// A request without task data, and with space around its params, is sent as the
// contract has it.
func TestWhatAProgramLeavesOutIsSent(t *testing.T) {
	servers := scripted.New(t)
	request := newRequest()
	request.Params, request.TaskData = []byte(" {\"input\": 1.0}\n"), nil
	mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), request))
	if got := string(callsOn(servers, scripted.Seed)[0].Body); !strings.HasSuffix(got, `,"task_data":{}}`) {
		t.Errorf("seed %s, want empty task data at its end", got)
	}
	if got, want := string(callsOn(servers, scripted.Responses)[0].Body), `{"input": 1.0}`; got != want {
		t.Errorf("the agent was sent %q, want %q", got, want)
	}
	if got, want := string(callsOn(servers, scripted.Verify)[0].Body), `{"responses_create_params":{"input": 1.0},"response":`; !strings.HasPrefix(got, want) {
		t.Errorf("verify %s, want %s at its beginning", got, want)
	}
	if request.TaskData != nil {
		t.Error("the caller's request was changed")
	}
}

func TestCheckParams(t *testing.T) {
	for _, test := range []struct {
		params string
		want   []string
	}{
		{`{}`, nil},
		{`{"stream":false}`, nil},
		{`{"stream":true}`, []string{"value_error responses_create_params.stream"}},
		{`"x"`, []string{"dict_type responses_create_params"}},
		{`{`, []string{"json_invalid responses_create_params"}},
		{``, []string{"json_invalid responses_create_params"}},
	} {
		if diff := cmp.Diff(test.want, faultsIn(t, episode.CheckParams([]byte(test.params)))); diff != "" {
			t.Errorf("CheckParams(%s) (-want +got):\n%s", test.params, diff)
		}
	}
	const want = "responses_create_params: not JSON: the text ends where a name in quotes should be at byte 1"
	if err := episode.CheckParams([]byte(`{`)); err == nil || err.Error() != want {
		t.Errorf("CheckParams says %v, want %s", err, want)
	}
}

// requestWith is the body of POST /run with that task_input.
func requestWith(input string) []byte {
	return []byte(`{"episode_id":{"rollout_id":"1-0"},"task":{"task_id":{"taskset":"a","task_id":"b"},"task_input":` + input + `}}`)
}

func mustParse(t *testing.T, input string) *episode.Request {
	t.Helper()
	request, err := episode.ParseRequest(requestWith(input))
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// What a request was read as is written as the same task_input.
func TestTheTaskInputIsWrittenAsItWasRead(t *testing.T) {
	for _, test := range []struct {
		name    string
		request episode.Request
		want    string
	}{
		{"params alone", episode.Request{Params: []byte(`{"n":1.0}`)}, `{"responses_create_params":{"n":1.0}}`},
		{"task data", episode.Request{Params: []byte(`{}`), TaskData: []byte(`{"a":1.0}`)}, `{"responses_create_params":{},"task_data":{"a":1.0}}`},
		{"an agent timeout", episode.Request{Params: []byte(`{}`), AgentTimeout: 1500 * time.Millisecond}, `{"responses_create_params":{},"agent_timeout_seconds":1.5}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var w rawjson.ObjectWriter
			test.request.WriteInput(&w)
			member, _ := rawjson.Find(w.End().Bytes(), "task_input")
			got := string(member)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again := mustParse(t, got)
			if string(again.Params) != string(test.request.Params) || again.AgentTimeout != test.request.AgentTimeout {
				t.Errorf("it is read as %s, %s", again.Params, again.AgentTimeout)
			}
		})
	}
}

// A field inside and outside of task_data is the same as Python's == has it, true
// and false apart, which are no numbers here.
func TestTheSameFieldTwiceIsComparedAsPythonDoes(t *testing.T) {
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{`1`, `1`, true},
		{`0`, `-0`, true},
		{`0`, `-0.0`, true},
		{`1`, `1.0`, true},
		{`100`, `1e2`, true},
		{`1.5`, `1.50`, true},
		{`1.5`, `15e-1`, true},
		{`[]`, `[ ]`, true},
		{`{"a":null,"b":[true]}`, `{"b":[true],"a":null}`, true},
		{`"a"`, `"\u0061"`, true},
		{`"\ud83d\ude00"`, `"😀"`, true},
		{`"\ud800\uD83D\uDE00"`, `"\uD800😀"`, true},

		{`0`, `5`, false},
		{`1`, `-1`, false},
		{`1`, `1.5`, false},
		{`2`, `1.5`, false},
		{`1.5`, `2.5`, false},
		{`1`, `1e400`, false},
		{`1.5`, `1e400`, false},
		{`9007199254740993`, `9007199254740992.0`, false},
		{`9007199254740993`, `9007199254740992`, false},
		{`1`, `"1"`, false},
		{`1`, `true`, false},
		{`0`, `false`, false},
		{`0`, `null`, false},
		{`0`, `[]`, false},
		{`0`, `{}`, false},
		{`[]`, `{}`, false},
		{`[1]`, `[1,1]`, false},
		{`[[1]]`, `[[2]]`, false},
		{`{"a":1}`, `{"a":1,"b":1}`, false},
		{`{"a":null}`, `{"b":null}`, false},
		{`{"a":{"b":1}}`, `{"a":{"b":2}}`, false},
		{`"a"`, `"A"`, false},
		{`"\ud800"`, `"\ud801"`, false},
		{`"\udc00"`, `"\ufffd"`, false},
		{`"\ud800"`, `"\\ud800"`, false},
		{`"\ud83d\ude00"`, `"\ude00\ud83d"`, false},
		{`{"\ud800":1,"\ud801":2}`, `{"\ud801":2}`, false},
	} {
		for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			_, err := episode.ParseRequest(requestWith(fmt.Sprintf(`{"responses_create_params":{},"task_data":{"n":%s},"n":%s}`, pair[0], pair[1])))
			var want []string
			if !test.same {
				want = []string{"value_error body.task.task_input"}
			}
			if diff := cmp.Diff(want, faultsIn(t, err)); diff != "" {
				t.Errorf("%s inside, %s outside: faults (-want +got):\n%s", pair[0], pair[1], diff)
			}
		}
	}
}

// An attempt is read exactly, also where a float could not hold it.
func TestAttemptsAreReadExactly(t *testing.T) {
	for _, test := range []struct {
		attempt string
		want    int64 // -1: refused
	}{
		{`0`, 0},
		{`-0`, 0},
		{`-0.0`, 0},
		{`1`, 1},
		{`20e-1`, 2},
		{`9007199254740993`, 9007199254740993},
		{`4611686018427387904`, protocol.MaxAttempt},
		{`4611686018427387905`, -1},
		{`9223372036854775808`, -1},
		{`-1`, -1},
		{`-1.0`, -1},
		{`1.5`, -1},
	} {
		r, err := episode.ParseRequest([]byte(`{"episode_id":{"rollout_id":"r","attempt":` + test.attempt + `},"task":{"task_id":{"taskset":"a","task_id":"b"},"task_input":{"responses_create_params":{}}}}`))
		if refused := err != nil; refused != (test.want < 0) || !refused && r.EpisodeID.Attempt != test.want {
			t.Errorf("attempt %s is read as %d, %v, want %d", test.attempt, r.EpisodeID.Attempt, err, test.want)
		}
	}
}

func TestTheAgentsTimeoutIsReadInSeconds(t *testing.T) {
	for seconds, want := range map[string]time.Duration{
		`600`:                 10 * time.Minute,
		`1.5`:                 1500 * time.Millisecond,
		`1e-9`:                1,
		`1e-12`:               1, // never none
		`9e9`:                 9e9 * time.Second,
		`1e10`:                math.MaxInt64,
		`1e300`:               math.MaxInt64,
		`null`:                0,
		`9223372036.85477580`: math.MaxInt64,
	} {
		request := mustParse(t, `{"responses_create_params":{},"agent_timeout_seconds":`+seconds+`}`)
		if request.AgentTimeout != want {
			t.Errorf("%s seconds are read as %d, want %d", seconds, request.AgentTimeout, want)
		}
	}
}
