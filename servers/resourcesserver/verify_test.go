package resourcesserver_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
	"example.com/turn/servers/resourcesserver"
)

func TestAVerdictCarriesTheAnswerAsItCame(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	cookie := b.seed("a")
	b.post("/add", cookie, `{"line":"one"}`)
	for _, path := range []string{protocol.PathVerify, protocol.RolloutPath("0-0", protocol.PathVerify)} {
		b.want(path, b.post(path, cookie, verifyBody), 200, passedOn+
			`,"reward":0.5,"mask_sample":false,"failure_kind":null,"failure_reason":null,"asked":{"owner":"Ann"},"calls":1,"owner":"Ann"}`)
	}
}

func TestTheSameAnswerGetsTheSameVerdict(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	cookie := b.seed("a")
	first := b.post("/verify", cookie, verifyBody)
	b.post("/add", cookie, `{"line":"one"}`)
	if diff := cmp.Diff(first, b.post("/verify", cookie, verifyBody)); diff != "" {
		t.Errorf("the repeated verify (-first +second):\n%s", diff)
	}
	if b.book.scored != 1 {
		t.Errorf("the answer was scored %d times", b.book.scored)
	}
	other := strings.Replace(verifyBody, `"id":"r"`, `"id":"s"`, 1)
	if got := b.post("/verify", cookie, other); !strings.Contains(got.Body, `"reward":0.5`) {
		t.Errorf("another answer was not scored anew: %+v", got)
	}
}

func TestAnAnswerWhoseSessionIsGoneIsMasked(t *testing.T) {
	var log bytes.Buffer
	b := newBench(t, resourcesserver.Config{Logger: zerolog.New(&log)})
	cookie := b.seed("a")
	b.post("/verify", cookie, verifyBody) // its verdict goes with the session
	b.book.scored = 0
	b.post("/close_session", "", closeBody("a", episode0))
	for range 2 {
		b.want("after the close", b.post("/verify", cookie, verifyBody), 200, lost+`"resources session a is not held here any more"}`)
	}
	b.want("without a cookie", b.post("/verify", "", verifyBody), 200,
		lost+`"the request carries no session cookie that this server set: it may have been restarted"}`)
	if b.book.scored != 0 {
		t.Error("it was scored")
	}
	if n := strings.Count(log.String(), `"level":"warn"`); n != 3 {
		t.Errorf("there are %d warnings, want one each time:\n%s", n, log.String())
	}
	if _, value, _ := strings.Cut(cookie, "="); strings.Contains(log.String(), value) {
		t.Error("the log shows the cookie")
	}
}

func TestAVerifyBodyHasAnAnswer(t *testing.T) {
	for _, test := range []struct{ name, body, detail string }{
		{"nothing", `{}`, `[{"type":"missing","loc":["body","response"],"msg":"Field required"},` +
			`{"type":"missing","loc":["body","responses_create_params"],"msg":"Field required"}]`},
		{"a response without output", `{"responses_create_params":{},"response":{}}`,
			`[{"type":"missing","loc":["body","response","output"],"msg":"Field required"}]`},
		{"a response that is none", `{"responses_create_params":{},"response":"x"}`,
			`[{"type":"dict_type","loc":["body","response"],"msg":"Input should be a valid dictionary","input":"x"}]`},
		{"parameters that are none", `{"responses_create_params":1,"response":{"output":[]}}`,
			`[{"type":"dict_type","loc":["body","responses_create_params"],"msg":"Input should be a valid dictionary","input":1}]`},
	} {
		b := newBench(t, resourcesserver.Config{})
		b.want(test.name, b.post("/verify", b.seed("a"), test.body), 422, `{"detail":`+test.detail+`}`)
	}
}

func TestAVerdictThatCannotBeSentIsAnError(t *testing.T) {
	for _, test := range []struct {
		name    string
		verdict resourcesserver.Verdict
		detail  string
	}{
		{"not a number", resourcesserver.Verdict{Reward: math.NaN()}, "the reward NaN is not finite"},
		{"infinite", resourcesserver.Verdict{Reward: math.Inf(-1)}, "the reward -Inf is not finite"},
		{"a member of the kit's", resourcesserver.Verdict{Extra: map[string]any{"reward": 1}}, "the verdict has an extra member of the name reward"},
		{"no JSON", resourcesserver.Verdict{Extra: map[string]any{"f": func() {}}}, "the verdict's f: json: unsupported type: func()"},
	} {
		b := newBench(t, resourcesserver.Config{})
		b.book.verdict = &test.verdict
		b.want(test.name, b.post("/verify", b.seed("a"), verifyBody), 500,
			`{"detail":"the verifier failed: `+test.detail+`","failure_kind":"verifier_error"}`)
	}
}

func TestAVerifierThatFailsIsAskedAgain(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want reply
	}{
		{"any error", errors.New("no judge"), reply{Status: 500, Body: `{"detail":"the verifier failed: no judge","failure_kind":"verifier_error"}`}},
		{"a refusal", requests.RefuseAs(502, failures.JudgeFailed, "no judge"), reply{Status: 502, Body: `{"detail":"no judge","failure_kind":"judge_failed"}`}},
		{"a fault", requests.Invalid{{Type: "missing", Loc: []any{"body", "owner"}, Msg: "Field required"}},
			reply{Status: 422, Body: `{"detail":[{"type":"missing","loc":["body","owner"],"msg":"Field required"}]}`}},
	} {
		b := newBench(t, resourcesserver.Config{})
		cookie := b.seed("a")
		b.book.verifyErr = test.err
		b.want(test.name, b.post("/verify", cookie, verifyBody), test.want.Status, test.want.Body)
		b.book.verifyErr = nil
		if got := b.post("/verify", cookie, verifyBody); got.Status != 200 {
			t.Errorf("%s: the second verify got %+v", test.name, got)
		}
	}
}

func TestAMaskedVerdictNamesItsKind(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	b.book.verdict = &resourcesserver.Verdict{Reward: 1e21, Mask: true, Kind: failures.JudgeFailed, Reason: `it said "no"`}
	b.want("the verdict", b.post("/verify", b.seed("a"), verifyBody), 200,
		passedOn+`,"reward":1e+21,"mask_sample":true,"failure_kind":"judge_failed","failure_reason":"it said \"no\""}`)
}

func TestCallsOfAnAnswer(t *testing.T) {
	for _, test := range []struct {
		name, response string
		want           []resourcesserver.Call
	}{
		{"none", `{"output":[]}`, nil},
		{"an output that is no array", `{"output":{"a":1}}`, nil},
		{"among other items", `{"output":[
			{"type":"message","name":"x"}, 5, {"type":"function_call_output","name":"x"},
			{"type":"function_call","name":"add","arguments":"{\"line\": \"one\"}"},
			{"type":"function_call","name":"add","arguments":"{\"line\": "},
			{"type":"function_call"}]}`,
			[]resourcesserver.Call{{Name: "add", Arguments: []byte(`{"line": "one"}`)}, {Name: "add"}, {}}},
	} {
		got := resourcesserver.Answer{Response: []byte(test.response)}.Calls()
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}
