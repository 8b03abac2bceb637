package envserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/scripted"
)

// A fault is one entry of a 422's detail: its type and its place.
type fault struct{ Type, Loc string }

// faultsOf reads a 422 and checks its form.
func faultsOf(t testing.TB, got reply) []fault {
	t.Helper()
	if got.Status != http.StatusUnprocessableEntity {
		t.Fatalf("status %d: %.300s", got.Status, got.Body)
	}
	if !json.Valid([]byte(got.Body)) || !utf8.ValidString(got.Body) {
		t.Fatalf("not JSON in UTF-8: %.300q", got.Body)
	}
	var body struct {
		Detail []map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(got.Body), &body); err != nil || len(body.Detail) == 0 {
		t.Fatalf("%v: %.300s", err, got.Body)
	}
	var faults []fault
	for _, entry := range body.Detail {
		var f fault
		var loc []string
		var msg string
		for name, into := range map[string]any{"type": &f.Type, "loc": &loc, "msg": &msg} {
			if err := json.Unmarshal(entry[name], into); err != nil {
				t.Errorf("%s: %v in %s", name, err, got.Body)
			}
		}
		if msg == "" || f.Type == "" || len(loc) == 0 || loc[0] != "body" {
			t.Errorf("a fault without type, place or words: %s", got.Body)
		}
		delete(entry, "type")
		delete(entry, "loc")
		delete(entry, "msg")
		delete(entry, "input")
		if len(entry) > 0 {
			t.Errorf("unknown fields in a fault: %s", got.Body)
		}
		f.Loc = strings.Join(loc, ".")
		faults = append(faults, f)
	}
	return faults
}

// nested is an array in an array, and so on, of that depth.
func nested(depth int) string {
	return strings.Repeat("[", depth) + strings.Repeat("]", depth)
}

func TestInvalidRequestIsRefusedAndNothingIsCalled(t *testing.T) {
	h := newHouse(t, nil)
	id := func(episodeID string) string {
		return `{"episode_id":` + episodeID + `,"task":{"task_id":` + taskID + `,"task_input":{"responses_create_params":{}}}}`
	}
	rollout := func(name string) string { return id(`{"rollout_id":` + name + `}`) }
	attempt := func(n string) string { return id(`{"rollout_id":"r","attempt":` + n + `}`) }
	task := func(taskID string) string {
		return `{"episode_id":` + episodeID + `,"task":{"task_id":` + taskID + `,"task_input":{"responses_create_params":{}}}}`
	}
	flat := func(fields string) string { return request(`{"responses_create_params":{},` + fields + `}`) }
	const (
		rolloutLoc = "body.episode_id.rollout_id"
		attemptLoc = "body.episode_id.attempt"
		inputLoc   = "body.task.task_input"
	)
	for _, test := range []struct {
		name, body string
		want       []fault
	}{
		{"nothing", ``, []fault{{"json_invalid", "body"}}},
		{"white space", " \r\n\t", []fault{{"json_invalid", "body"}}},
		{"not JSON", `episode`, []fault{{"json_invalid", "body"}}},
		{"two values", plain + plain, []fault{{"json_invalid", "body"}}},
		{"cut off", plain[:len(plain)-1], []fault{{"json_invalid", "body"}}},
		{"a comma too many", `{"episode_id":1,}`, []fault{{"json_invalid", "body"}}},
		{"single quotes", `{'episode_id':1}`, []fault{{"json_invalid", "body"}}},
		{"a comment", `/* */` + plain, []fault{{"json_invalid", "body"}}},
		{"a raw newline in text", rollout("\"a\nb\""), []fault{{"json_invalid", "body"}}},
		{"NaN", flat(`"x":NaN`), []fault{{"json_invalid", "body"}}},
		{"Infinity", flat(`"x":-Infinity`), []fault{{"json_invalid", "body"}}},
		{"a number that is not one", flat(`"x":01`), []fault{{"json_invalid", "body"}}},
		{"two byte order marks", "\uFEFF\uFEFF" + plain, []fault{{"json_invalid", "body"}}},
		{"too deep", flat(`"x":` + nested(10_001)), []fault{{"json_invalid", "body"}}},
		{"too deep by one", flat(`"x":` + nested(10_001-3)), []fault{{"json_invalid", "body"}}},
		{"megabytes of brackets", strings.Repeat("[", 5_000_000), []fault{{"json_invalid", "body"}}},

		{"list", `[]`, []fault{{"model_attributes_type", "body"}}},
		{"string", `"episode"`, []fault{{"model_attributes_type", "body"}}},
		{"null", `null`, []fault{{"model_attributes_type", "body"}}},
		{"number", ` 7 `, []fault{{"model_attributes_type", "body"}}},

		{"missing all", `{}`, []fault{{"missing", "body.episode_id"}, {"missing", "body.task"}}},
		{"names in another case", `{"Episode_ID":1,"TASK":2}`, []fault{{"missing", "body.episode_id"}, {"missing", "body.task"}, {"extra_forbidden", "body.Episode_ID"}, {"extra_forbidden", "body.TASK"}}},
		{"unknown key", strings.Replace(plain, "{", `{"x":1,`, 1), []fault{{"extra_forbidden", "body.x"}}},
		{"unknown key in the episode id", id(`{"rollout_id":"r","x":1}`), []fault{{"extra_forbidden", "body.episode_id.x"}}},
		{"unknown key in the task", strings.Replace(plain, `"task":{`, `"task":{"x":1,`, 1), []fault{{"extra_forbidden", "body.task.x"}}},
		{"unknown key in the task id", task(`{"taskset":"w","task_id":"t","x":1}`), []fault{{"extra_forbidden", "body.task.task_id.x"}}},
		{"unknown key that is a lone surrogate", strings.Replace(plain, "{", `{"\ud800":1,`, 1), []fault{{"extra_forbidden", "body.\uFFFD"}}},
		{"a flat row where it is not taken", `{"responses_create_params":{},"_ng_task_index":1,"_ng_rollout_index":0}`, []fault{
			{"missing", "body.episode_id"}, {"missing", "body.task"},
			{"extra_forbidden", "body.responses_create_params"}, {"extra_forbidden", "body._ng_task_index"}, {"extra_forbidden", "body._ng_rollout_index"},
		}},

		{"episode id as text", id(`"3-0"`), []fault{{"dict_type", "body.episode_id"}}},
		{"episode id null", id(`null`), []fault{{"dict_type", "body.episode_id"}}},
		{"no rollout id", id(`{}`), []fault{{"missing", rolloutLoc}}},
		{"rollout id a number", rollout(`7`), []fault{{"string_type", rolloutLoc}}},
		{"rollout id null", rollout(`null`), []fault{{"string_type", rolloutLoc}}},
		{"rollout id empty", rollout(`""`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id with a slash", rollout(`"a/b"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id that climbs", rollout(`".."`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id with a newline at its end", rollout(`"a\n"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id with a NUL", rollout(`"a\u0000"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id with a letter of another alphabet", rollout(`"é"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id that is a lone surrogate", rollout(`"\udfff"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id that begins with a dash", rollout(`"-a"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id of an attempt", rollout(`"r-a1"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id of attempt 10", rollout(`"r-a10"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},
		{"rollout id of attempt 01", rollout(`"r-a01"`), []fault{{"string_pattern_mismatch", rolloutLoc}}},

		{"attempt as text", attempt(`"2"`), []fault{{"int_type", attemptLoc}}},
		{"attempt true", attempt(`true`), []fault{{"int_type", attemptLoc}}},
		{"attempt null", attempt(`null`), []fault{{"int_type", attemptLoc}}},
		{"attempt a list", attempt(`[1]`), []fault{{"int_type", attemptLoc}}},
		{"attempt below 0", attempt(`-1`), []fault{{"greater_than_equal", attemptLoc}}},
		{"attempt between two", attempt(`1.5`), []fault{{"int_from_float", attemptLoc}}},
		{"attempt just above 0", attempt(`1e-300`), []fault{{"int_from_float", attemptLoc}}},
		{"attempt beyond all", attempt(`1e300`), []fault{{"less_than_equal", attemptLoc}}},
		{"attempt that is no float either", attempt(`1e400`), []fault{{"int_from_float", attemptLoc}}},

		{"task null", `{"episode_id":` + episodeID + `,"task":null}`, []fault{{"dict_type", "body.task"}}},
		{"task empty", `{"episode_id":` + episodeID + `,"task":{}}`, []fault{{"missing", "body.task.task_id"}, {"missing", "body.task.task_input"}}},
		{"task id as text", task(`"t"`), []fault{{"dict_type", "body.task.task_id"}}},
		{"task id empty", task(`{}`), []fault{{"missing", "body.task.task_id.taskset"}, {"missing", "body.task.task_id.task_id"}}},
		{"empty names", task(`{"taskset":"","task_id":""}`), []fault{{"string_too_short", "body.task.task_id.taskset"}, {"string_too_short", "body.task.task_id.task_id"}}},
		{"names that are no text", task(`{"taskset":1,"task_id":null}`), []fault{{"string_type", "body.task.task_id.taskset"}, {"string_type", "body.task.task_id.task_id"}}},
		{"names that are lone surrogates", task(`{"taskset":"\ud800","task_id":"x\udc00"}`), []fault{{"string_unicode", "body.task.task_id.taskset"}, {"string_unicode", "body.task.task_id.task_id"}}},

		{"task input a list", request(`[]`), []fault{{"dict_type", inputLoc}}},
		{"no params", request(`{"task_data":{}}`), []fault{{"missing", inputLoc + ".responses_create_params"}}},
		{"params null", request(`{"responses_create_params":null}`), []fault{{"dict_type", inputLoc + ".responses_create_params"}}},
		{"params a list", request(`{"responses_create_params":[]}`), []fault{{"dict_type", inputLoc + ".responses_create_params"}}},
		{"streaming", request(`{"responses_create_params":{"stream": true }}`), []fault{{"value_error", inputLoc + ".responses_create_params.stream"}}},
		{"streaming, said last", request(`{"responses_create_params":{"stream":false,"\u0073tream":true}}`), []fault{{"value_error", inputLoc + ".responses_create_params.stream"}}},
		{"task data null", flat(`"task_data":null`), []fault{{"dict_type", inputLoc + ".task_data"}}},
		{"task data a list", flat(`"task_data":[1]`), []fault{{"dict_type", inputLoc + ".task_data"}}},
		{"agent timeout 0", flat(`"agent_timeout_seconds":0`), []fault{{"greater_than", inputLoc + ".agent_timeout_seconds"}}},
		{"agent timeout below 0", flat(`"agent_timeout_seconds":-1e-9`), []fault{{"greater_than", inputLoc + ".agent_timeout_seconds"}}},
		{"agent timeout as text", flat(`"agent_timeout_seconds":"30"`), []fault{{"float_type", inputLoc + ".agent_timeout_seconds"}}},
		{"agent timeout true", flat(`"agent_timeout_seconds":true`), []fault{{"float_type", inputLoc + ".agent_timeout_seconds"}}},
		{"agent timeout beyond all", flat(`"agent_timeout_seconds":1e400`), []fault{{"greater_than", inputLoc + ".agent_timeout_seconds"}}},

		{"conflict of numbers", flat(`"task_data":{"n":1},"n":2`), []fault{{"value_error", inputLoc}}},
		{"conflict of a number and text", flat(`"task_data":{"n":1},"n":"1"`), []fault{{"value_error", inputLoc}}},
		{"conflict of a number and a boolean", flat(`"task_data":{"n":1},"n":true`), []fault{{"value_error", inputLoc}}},
		{"conflict of large integers", flat(`"task_data":{"n":9007199254740993},"n":9007199254740992`), []fault{{"value_error", inputLoc}}},
		{"conflict of a large integer and a float", flat(`"task_data":{"n":9007199254740993},"n":9007199254740992.0`), []fault{{"value_error", inputLoc}}},
		{"conflict of an integer and a fraction", flat(`"task_data":{"n":1},"n":1.5`), []fault{{"value_error", inputLoc}}},
		{"conflict within", flat(`"task_data":{"n":{"a":[1,{"b":2}]}},"n":{"a":[1,{"b":3}]}`), []fault{{"value_error", inputLoc}}},
		{"conflict of lengths", flat(`"task_data":{"n":[1]},"n":[1,1]`), []fault{{"value_error", inputLoc}}},
		{"conflict of null", flat(`"task_data":{"n":null},"n":0`), []fault{{"value_error", inputLoc}}},
		{"conflict under an escape", flat(`"task_data":{"n":1},"\u006e":2`), []fault{{"value_error", inputLoc}}},
		{"two conflicts", flat(`"task_data":{"n":1,"m":1},"n":2,"m":2`), []fault{{"value_error", inputLoc}, {"value_error", inputLoc}}},

		{"everything at once", `{"x":1,"episode_id":{"rollout_id":"/","attempt":-1,"y":[]},"task":{"z":{},"task_id":{"taskset":"","task_id":7},` +
			`"task_input":{"responses_create_params":{"stream":true},"task_data":{"n":1},"n":2,"agent_timeout_seconds":0}}}`, []fault{
			{"string_pattern_mismatch", rolloutLoc},
			{"greater_than_equal", attemptLoc},
			{"extra_forbidden", "body.episode_id.y"},
			{"string_too_short", "body.task.task_id.taskset"},
			{"string_type", "body.task.task_id.task_id"},
			{"value_error", inputLoc + ".responses_create_params.stream"},
			{"greater_than", inputLoc + ".agent_timeout_seconds"},
			{"value_error", inputLoc},
			{"extra_forbidden", "body.task.z"},
			{"extra_forbidden", "body.x"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Play(nil)
			if diff := cmp.Diff(test.want, faultsOf(t, h.run(t, test.body))); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if calls := h.Routes(); len(calls) > 0 {
				t.Errorf("calls were made: %v", calls)
			}
		})
	}
}

// The input that a fault shows is the request's own text, unless it is long.
func TestFaultShowsItsInput(t *testing.T) {
	h := newHouse(t, nil)
	for _, test := range []struct{ attempt, want string }{
		{`-1.0`, `,"input":-1.0`},
		{`{"n": 1e2, "<&>":"\ud800\u2028"}`, `,"input":{"n": 1e2, "<&>":"\ud800\u2028"}`},
		{`"` + strings.Repeat("x", 510) + `"`, `,"input":"` + strings.Repeat("x", 510) + `"`},
		{`"` + strings.Repeat("x", 511) + `"`, ``},
	} {
		got := h.run(t, `{"episode_id":{"rollout_id":"r","attempt":`+test.attempt+`},"task":{"task_id":`+taskID+`,"task_input":{"responses_create_params":{}}}}`)
		if !strings.HasSuffix(got.Body, test.want+`}]}`) || strings.Contains(got.Body, `"input"`) != (test.want != "") {
			t.Errorf("%.100s: got %s", test.attempt, got.Body)
		}
	}
}

// What is valid although it looks odd.
func TestOddRequestsAreTaken(t *testing.T) {
	h := newHouse(t, nil)
	id := func(episodeID string) string {
		return `{"episode_id":` + episodeID + `,"task":{"task_id":` + taskID + `,"task_input":{"responses_create_params":{}}}}`
	}
	const zero = `{"rollout_id":"r","attempt":0}`
	for _, test := range []struct{ name, body, wantID string }{
		{"a byte order mark", "\uFEFF" + plain, episodeID},
		{"white space around", " \r\n\t" + plain + " \r\n\t", episodeID},
		{"the last of two keys", strings.Replace(plain, "{", `{"episode_id":7,"\u0065pisode_id":8,`, 1), episodeID},
		{"escaped keys", strings.Replace(plain, `"episode_id"`, `"\u0065pisode\u005fid"`, 1), episodeID},
		{"no attempt", id(`{"rollout_id":"r"}`), zero},
		{"attempt 2.0", id(`{"rollout_id":"r","attempt":2.0}`), `{"rollout_id":"r","attempt":2}`},
		{"attempt 2e0", id(`{"rollout_id":"r","attempt":2e0}`), `{"rollout_id":"r","attempt":2}`},
		{"attempt -0", id(`{"rollout_id":"r","attempt":-0}`), zero},
		{"attempt at its end", id(`{"rollout_id":"r","attempt":9007199254740991}`), `{"rollout_id":"r","attempt":9007199254740991}`},
		{"a rollout id in escapes", id(`{"rollout_id":"\u0072"}`), zero},
		{"a rollout id of one digit", id(`{"rollout_id":"0"}`), `{"rollout_id":"0","attempt":0}`},
		{"a rollout id with all there is", id(`{"rollout_id":"A.b_c-9."}`), `{"rollout_id":"A.b_c-9.","attempt":0}`},
		{"a rollout id that ends in -a0", id(`{"rollout_id":"r-a0"}`), `{"rollout_id":"r-a0","attempt":0}`},
		{"a rollout id that ends in -a", id(`{"rollout_id":"r-a"}`), `{"rollout_id":"r-a","attempt":0}`},
		{"a rollout id that ends in a1", id(`{"rollout_id":"ra1"}`), `{"rollout_id":"ra1","attempt":0}`},
		{"stream false", request(`{"responses_create_params":{"stream":false}}`), episodeID},
		{"stream null", request(`{"responses_create_params":{"stream":null}}`), episodeID},
		{"stream in the task's data", request(`{"responses_create_params":{},"task_data":{"stream":true}}`), episodeID},
		{"as deep as it may be", request(`{"responses_create_params":{},"x":` + nested(10_000-3) + `}`), episodeID},
		{"no agent timeout", request(`{"responses_create_params":{},"agent_timeout_seconds":null}`), episodeID},
		{"long agent timeout", request(`{"responses_create_params":{},"agent_timeout_seconds":1e300}`), episodeID},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Play(nil)
			got := open(t, h.run(t, test.body))
			if got.Failure != nil || string(got.EpisodeID) != test.wantID {
				t.Errorf("episode id %s, failure %+v", got.EpisodeID, got.Failure)
			}
			if diff := cmp.Diff(whole, h.Routes()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// Fields beside task_data are the task's, and the same one twice is no conflict
// however it is spelled.
func TestFlatInputIsMerged(t *testing.T) {
	h := newHouse(t, nil)
	for _, test := range []struct{ name, input, data string }{
		{"no task data", `{"responses_create_params":{}}`, `{}`},
		{"nested", `{"responses_create_params":{},"task_data":{"a": 1.0}}`, `{"a": 1.0}`},
		{"flat", `{"a": 1.0,"responses_create_params":{},"b":"<"}`, `{"a":1.0,"b":"<"}`},
		{"both", `{"c":3,"responses_create_params":{},"task_data":{ "a" : 1 , "b":2}}`, `{"a":1,"b":2,"c":3}`},
		{"the same number", `{"responses_create_params":{},"task_data":{"n":1},"n":1.0}`, `{"n":1}`},
		{"the same large integer as a float", `{"responses_create_params":{},"task_data":{"n":[9007199254740992,-0]},"n":[9007199254740992.0,0e5]}`, `{"n":[9007199254740992,-0]}`},
		{"the same large integer", `{"responses_create_params":{},"task_data":{"n":[18446744073709551617,-0]},"n":[18446744073709551617,0]}`, `{"n":[18446744073709551617,-0]}`},
		{"the same value", `{"responses_create_params":{},"task_data":{"n":{"a":[1,2],"b":"x"}},"n":{"b":"\u0078", "a": [1e0,2.0]}}`, `{"n":{"a":[1,2],"b":"x"}}`},
		{"the last of two", `{"responses_create_params":{},"task_data":{"n":1,"n":2},"n":3,"n":2}`, `{"n":1,"n":2}`},
		{"keys in another case", `{"responses_create_params":{},"task_data":{"n":1},"N":2}`, `{"n":1,"N":2}`},
		{"the agent's timeout is not data", `{"responses_create_params":{},"agent_timeout_seconds":600,"a":1}`, `{"a":1}`},
		{"the agent's timeout within the data is", `{"responses_create_params":{},"task_data":{"agent_timeout_seconds":"soon"}}`, `{"agent_timeout_seconds":"soon"}`},
		{"names of other levels", `{"responses_create_params":{},"episode_id":1,"task":2,"task_id":3,"task_input":4,"_ng_x":5}`, `{"episode_id":1,"task":2,"task_id":3,"task_input":4,"_ng_x":5}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Play(nil)
			if got := open(t, h.run(t, request(test.input))); got.Failure != nil {
				t.Fatal(got.Failure)
			}
			seed := h.Calls()[0]
			if want := `,"task_data":` + test.data + `}`; !strings.HasSuffix(string(seed.Body), want) {
				t.Errorf("seed %s, want %s at its end", seed.Body, want)
			}
		})
	}
}

// A flat input with as many fields as its data does not take their square.
func TestManyFieldsAreMergedInTime(t *testing.T) {
	h := newHouse(t, nil)
	var inside, outside strings.Builder
	for i := range 100_000 {
		_, _ = fmt.Fprintf(&inside, `,"in%d":1`, i)
		_, _ = fmt.Fprintf(&outside, `,"out%d":1`, i)
	}
	got := open(t, h.run(t, request(`{"responses_create_params":{},"task_data":{"a":1`+inside.String()+`}`+outside.String()+`}`)))
	if got.Failure != nil {
		t.Error(got.Failure)
	}
}

func TestTextThatIsNotUTF8Is400(t *testing.T) {
	h := newHouse(t, nil)
	for name, body := range map[string]string{
		"in a value":     strings.Replace(plain, "Oslo", "Oslo\xff", 1),
		"in a key":       strings.Replace(plain, "city", "c\xe9", 1),
		"an overlong /":  strings.Replace(plain, "Oslo", "\xc0\xaf", 1),
		"a surrogate":    strings.Replace(plain, "Oslo", "\xed\xa0\x80", 1),
		"UTF-16":         "\xff\xfe{\x00}\x00",
		"outside of all": "\xff" + plain,
		"cut at its end": strings.Replace(plain, "Oslo", "Os\xc3", 1),
	} {
		got := h.run(t, body)
		var detail struct{ Detail string }
		if err := json.Unmarshal([]byte(got.Body), &detail); got.Status != http.StatusBadRequest || err != nil || detail.Detail == "" || !utf8.ValidString(got.Body) {
			t.Errorf("%s: status %d, %s", name, got.Status, got.Body)
		}
	}
	if calls := h.Routes(); len(calls) > 0 {
		t.Errorf("calls were made: %v", calls)
	}
}

// What a web page can make a browser send is not taken.
func TestOnlyJSONIsTaken(t *testing.T) {
	h := newHouse(t, nil)
	for _, test := range []struct {
		contentType string
		taken       bool
	}{
		{"application/json", true},
		{"application/json; charset=utf-8", true},
		{"application/json;charset=UTF-8", true},
		{"Application/JSON", true},
		{"application/json; boundary", true},
		{"", false},
		{"text/plain", false},
		{"text/plain; application/json", false},
		{"text/json", false},
		{"application/x-www-form-urlencoded", false},
		{"multipart/form-data; boundary=x", false},
		{"application/jsonp", false},
		{"application/", false},
		{"json", false},
		{"*/*", false},
	} {
		for _, path := range []string{"/run", "/aggregate_metrics"} {
			h.Play(nil)
			got, err := h.call(within(t), http.MethodPost, path, test.contentType, plain)
			if err != nil {
				t.Fatal(err)
			}
			if taken := got.Status == 200; taken != test.taken || !taken && got.Status != 415 && got.Status != 422 {
				t.Errorf("%s as %q: status %d, %s", path, test.contentType, got.Status, got.Body)
			}
			if calls := h.Routes(); len(calls) > 0 != test.taken {
				t.Errorf("%s as %q: calls %v", path, test.contentType, calls)
			}
		}
	}
}

// Fields are passed on byte for byte: large integers, the spelling of floats,
// and text that HTML would have escaped.
func TestValuesPassThroughUnchanged(t *testing.T) {
	h := newHouse(t, nil)
	const data = `{"a":9007199254740993,"b":18446744073709551616,"c":1.0,"d":1e-7,"e":12345678.0,"f":-0.0,"g":1E400,` +
		`"text":"< > & ` + "\u2028\u2029" + ` \u003c \ud83d\ude00 \ud800 \/","n":[ 1 , {"a":null,"a":1} ]}`
	const create = `{"input":"<&>` + "\u2028" + `", "temperature": 1.0,"seed":18446744073709551616 }`
	const verdict = `{"responses_create_params":"{{params}}","response":"{{response}}","reward":0.50,"mask_sample":false,"score":1.0,"big":18446744073709551616,"text":"< > & ` + "\u2028" + `","f":1E400}`
	const response = `{"output":[],"text":"< > & ` + "\u2029" + `","n":1.0,"big":9007199254740993}`
	h.Play(scripted.Script{scripted.Verify: {{Raw: new(verdict)}}, scripted.Responses: {{Raw: new(response)}}})
	got := h.run(t, request(`{"responses_create_params":`+create+`,"task_data":`+data+`}`))
	bodies := map[scripted.Route]string{}
	for _, call := range h.Calls() {
		bodies[call.Route] = string(call.Body)
	}
	if want := `,"task_data":` + data + `}`; !strings.HasSuffix(bodies[scripted.Seed], want) {
		t.Errorf("seed %s\nwant %s at its end", bodies[scripted.Seed], want)
	}
	if bodies[scripted.Responses] != create {
		t.Errorf("call 4 %s\nwant %s", bodies[scripted.Responses], create)
	}
	fields := strings.TrimSuffix(data, "}")
	if want := fields + `,"responses_create_params":` + create + `,"response":` + response + `}`; bodies[scripted.Verify] != want {
		t.Errorf("verify %s\nwant   %s", bodies[scripted.Verify], want)
	}
	want := `{"episode_id":` + episodeID + `,"task_id":` + taskID + `,"result":{"responses_create_params":` + create + `,"response":` + response +
		`,"reward":0.50,"mask_sample":false,"score":1.0,"big":18446744073709551616,"text":"< > & ` + "\u2028" + `","f":1E400,"ng_agent_observations":null},"failure":null}`
	if got.Body != want {
		t.Errorf("reply %s\nwant  %s", got.Body, want)
	}
}

// NaN and Infinity, as Python writes them, are never a verdict.
func TestNaNIsAFailureAndNeverAZero(t *testing.T) {
	h := newHouse(t, nil)
	for _, test := range []struct{ verdict, want string }{
		{`{"responses_create_params":{},"response":{},"reward":NaN}`, "not JSON"},
		{`{"responses_create_params":{},"response":{},"reward":1,"score":Infinity}`, "not JSON"},
		{`{"responses_create_params":{},"response":{},"reward":1e400}`, "reward: 1e400 is not a finite number"},
		{`{"responses_create_params":{},"response":{},"reward":"nan"}`, "reward"},
		{`{"responses_create_params":{},"response":{},"reward":"Infinity"}`, "reward"},
		{`{"responses_create_params":{},"response":{},"reward":null}`, "reward: want a number, got null"},
	} {
		h.Play(scripted.Script{scripted.Verify: {{Raw: &test.verdict}}})
		got := wantFailure(t, h.run(t, plain))
		if !got.Terminal || got.Stage != "verification" || !strings.Contains(got.Reason, test.want) || string(got.Partial) == "null" {
			t.Errorf("%s: %+v", test.verdict, got)
		}
	}
}
