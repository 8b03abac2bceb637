package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	rsid = "resources-session-00112233445566778899aabbccddeeff"
	asid = "agent-session-ffeeddccbbaa99887766554433221100"

	said     = `{"id":"resp_1","created_at":1000.0,"error":null,"incomplete_details":null,"instructions":null,"metadata":null,"model":"stub","object":"response","output":[{"id":"msg_1","content":[{"annotations":[],"text":"It is cold.","type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message"}],"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":0},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":15}}`
	episode  = `"episode_id":{"rollout_id":"run-1.t_7","attempt":0}`
	task     = `"task_id":{"taskset":"env:example","task_id":"task-7"}`
	verified = `"reward":1.0,"mask_sample":false,"failure_kind":null,"failure_reason":null`
)

func load(t *testing.T, name string) Case {
	t.Helper()
	var c Case
	if err := c.load(filepath.Join(casesFolder, name+".json")); err != nil {
		t.Fatal(err)
	}
	return c
}

// okBoth is what a driver that makes no mistake does in the case ok_both.
func okBoth(c Case) Trace {
	params := readValue(c.Requests[0].text()).get("task").get("task_input").get("responses_create_params").raw
	call := func(server, path, cookie, body, answer string) Call {
		made := Call{Server: server, Method: "POST", Path: path, Body: []byte(body), Reply: "200", Answer: []byte(answer)}
		if cookie != "" {
			made.Cookies = []string{cookie}
		}
		return made
	}
	verdict := `{"responses_create_params":` + params + `,"response":` + said + `,` + verified + `}`
	return Trace{
		Addresses: map[string]string{"127.0.0.1:4001": "ENV_ADDR", "127.0.0.1:4002": "RES_ADDR", "127.0.0.1:4003": "AGENT_ADDR"},
		Calls: []Call{
			call("resources", "/seed_session", "", `{"resources_session_id":"`+rsid+`",`+episode+`,`+task+`,"task_data":{"expected":"cold"}}`, ``),
			call("agent", "/v1/agent_sessions", "", `{"agent_session_id":"`+asid+`",`+episode+`,`+task+`,"tool_accesses":[`+
				`{"kind":"direct_http","name":"peer_resources.direct_http","required":true,"base_url":"http://127.0.0.1:4002/","cookies":{"res_session":"res-cookie-1"},"headers":{}},`+
				`{"kind":"mcp","name":"weather","required":true,"connection":{"transport":"streamable_http","url":"http://127.0.0.1:4002/deep/mcp/","headers":{"X-NeMo-Gym-Session-Token":"tok.en-1"}}}],"sandbox_access":null}`, ``),
			call("agent", "/ng-rollout/run-1.t_7/v1/responses", "agent_session=agent-cookie-1", params, said),
			call("agent", "/v1/agent_sessions/close", "agent_session=agent-cookie-2", `{"agent_session_id":"`+asid+`",`+episode+`}`, ``),
			call("resources", "/verify", "res_session=res-cookie-1", `{"expected":"cold","responses_create_params":`+params+`,"response":`+said+`}`, verdict),
			call("resources", "/close_session", "res_session=res-cookie-8", `{"resources_session_id":"`+rsid+`",`+episode+`}`, ``),
		},
		Replies: []Reply{{Status: 200, Body: []byte(`{` + episode + `,` + task + `,"result":` + strings.TrimSuffix(verdict, "}") + `,"ng_agent_observations":null},"failure":null}`)}},
	}
}

// verify500 is the same of the case verify_500: the verifier is at fault.
func verify500(t *testing.T, c Case) Trace {
	tr := okBoth(c)
	seeded := &tr.Calls[1]
	from, to := bytes.Index(seeded.Body, []byte(`[`)), bytes.LastIndex(seeded.Body, []byte(`]`))
	seeded.Body = slices.Concat(seeded.Body[:from+1], seeded.Body[to:]) // without tools
	tr.Calls[4].Reply = "500"
	tr.Calls[5].Cookies = []string{"res_session=res-cookie-1"}
	tr.Replies[0].Body = []byte(`{` + episode + `,` + task + `,"result":null,"failure":{"failure_reason":"the verifier refused with 500: no","terminal":false,"partial_response":` + said + `,"failure_kind":"verifier_error","stage":"verification"}}`)
	swap(t, &tr.Replies[0].Body, `"attempt":0`, `"attempt":0.0`)
	return tr
}

// swap replaces what must be there once or more.
func swap(t *testing.T, text *[]byte, old, new string) {
	t.Helper()
	if !bytes.Contains(*text, []byte(old)) {
		t.Fatalf("there is no %s in %s", old, *text)
	}
	*text = bytes.ReplaceAll(*text, []byte(old), []byte(new))
}

func TestDoctoredTracesAreFound(t *testing.T) {
	for _, doctored := range []struct {
		name   string
		doctor func(t *testing.T, tr *Trace)
		want   string // in one of the complaints; "": there must be none
	}{
		{"untouched", func(*testing.T, *Trace) {}, ""},
		{"other white space", func(t *testing.T, tr *Trace) {
			swap(t, &tr.Calls[4].Body, `"expected":"cold"`, ` "expected" : "cold"`)
			swap(t, &tr.Replies[0].Body, `"reward":1.0`, `"reward": 1`)
		}, ""},
		{"missing call", func(_ *testing.T, tr *Trace) { tr.Calls = tr.Calls[:5] }, "calls [seed open resp aclose verify], want"},
		{"call made twice", func(_ *testing.T, tr *Trace) { tr.Calls = slices.Insert(tr.Calls, 2, tr.Calls[2]) }, "calls [seed open resp resp"},
		{"closed before it ended", func(_ *testing.T, tr *Trace) { tr.Calls[3], tr.Calls[4] = tr.Calls[4], tr.Calls[3] }, "calls [seed open resp verify aclose"},
		{"wrong path", func(_ *testing.T, tr *Trace) { tr.Calls[2].Path = "/ng-rollout/run-1.t_7-a1/v1/responses" }, "want POST /ng-rollout/run-1.t_7/v1/responses"},
		{"wrong server", func(_ *testing.T, tr *Trace) { tr.Calls[4].Server = "agent" }, "want POST /verify on resources"},
		{"wrong method", func(_ *testing.T, tr *Trace) { tr.Calls[4].Method = "PUT" }, "want POST /verify on resources"},
		{"wrong cookie", func(_ *testing.T, tr *Trace) { tr.Calls[4].Cookies = []string{"res_session=agent-cookie-2"} }, "call 4 verify: cookies"},
		{"no cookie", func(_ *testing.T, tr *Trace) { tr.Calls[3].Cookies = nil }, "call 3 aclose: cookies"},
		{"cookie too many", func(_ *testing.T, tr *Trace) { tr.Calls[0].Cookies = []string{"a=b"} }, "call 0 seed: cookies"},
		{"cookie quoted anew", func(_ *testing.T, tr *Trace) { tr.Calls[4].Cookies = []string{`res_session="res-cookie-1"`} }, "on the wire"},
		{"session id of its own making", func(t *testing.T, tr *Trace) { swap(t, &tr.Calls[5].Body, rsid, "resources-session-1") }, "call 5 close: body"},
		{"ids mixed up", func(t *testing.T, tr *Trace) { swap(t, &tr.Calls[3].Body, asid, rsid) }, "call 3 aclose: body"},
		{"field missing", func(t *testing.T, tr *Trace) { swap(t, &tr.Calls[1].Body, `,"sandbox_access":null`, ``) }, "call 1 open: body"},
		{"wrong server's address", func(t *testing.T, tr *Trace) {
			swap(t, &tr.Calls[1].Body, "127.0.0.1:4002/deep", "127.0.0.1:4003/deep")
		}, "call 1 open: body"},
		{"number in another form", func(t *testing.T, tr *Trace) { swap(t, &tr.Calls[4].Body, `1000.0`, `1000`) }, "verify: response is"},
		{"text in another form", func(t *testing.T, tr *Trace) { swap(t, &tr.Calls[4].Body, `"cold"`, `"\u0063old"`) }, "verify: expected is"},
		{"task data in another form", func(t *testing.T, tr *Trace) { swap(t, &tr.Calls[0].Body, `"cold"`, `"\u0063old"`) }, "seed: task_data is"},
		{"params without their white space", func(_ *testing.T, tr *Trace) { tr.Calls[2].Body = []byte(readValue(tr.Calls[2].Body).compact()) }, "resp: body"},
		{"params changed for the verifier", func(t *testing.T, tr *Trace) { swap(t, &tr.Calls[4].Body, `"user"`, `"\u0075ser"`) }, "verify: responses_create_params is"},
		{"key twice in verify", func(t *testing.T, tr *Trace) { swap(t, &tr.Calls[4].Body, `{"expected"`, `{"response":1,"expected"`) }, "verify: response twice"},
		{"key twice in the result", func(t *testing.T, tr *Trace) {
			swap(t, &tr.Replies[0].Body, `"reward":1.0`, `"reward":0.0,"reward":1.0`)
		}, "result: reward twice"},
		{"verdict in another form", func(t *testing.T, tr *Trace) { swap(t, &tr.Replies[0].Body, `1000.0`, `1000`) }, "result: response is"},
		{"verdict changed", func(t *testing.T, tr *Trace) { swap(t, &tr.Replies[0].Body, `"reward":1.0`, `"reward":0.5`) }, "reply 0: result"},
		{"reward is a text", func(t *testing.T, tr *Trace) { swap(t, &tr.Replies[0].Body, `"reward":1.0`, `"reward":"1.0"`) }, "reply 0: result"},
		{"reward is a boolean", func(t *testing.T, tr *Trace) { swap(t, &tr.Replies[0].Body, `"reward":1.0`, `"reward":true`) }, "reply 0: result"},
		{"result lost", func(t *testing.T, tr *Trace) {
			tr.Replies[0].Body = []byte(`{` + episode + `,` + task + `,"result":null,"failure":{"failure_reason":"x","terminal":true,"partial_response":null}}`)
		}, "reply 0: no result"},
		{"both result and failure", func(t *testing.T, tr *Trace) { swap(t, &tr.Replies[0].Body, `"failure":null}`, `"failure":{}}`) }, "reply 0: no result"},
		{"failure left out", func(t *testing.T, tr *Trace) { swap(t, &tr.Replies[0].Body, `,"failure":null}`, `}`) }, "keys [episode_id result task_id]"},
		{"wrong attempt", func(t *testing.T, tr *Trace) { swap(t, &tr.Replies[0].Body, `"attempt":0`, `"attempt":1`) }, "reply: episode_id.attempt is 1"},
		{"wrong task", func(t *testing.T, tr *Trace) { swap(t, &tr.Replies[0].Body, `task-7`, `task-8`) }, "reply: task_id is"},
		{"wrong status", func(_ *testing.T, tr *Trace) { tr.Replies[0].Status = 502 }, "reply 0: status 502"},
		{"no reply", func(_ *testing.T, tr *Trace) { tr.Replies[0] = Reply{Err: errors.New("EOF")} }, "reply 0: none came: EOF"},
		{"reply lost", func(_ *testing.T, tr *Trace) { tr.Replies = nil }, "0 replies to 1 requests"},
		{"not JSON", func(_ *testing.T, tr *Trace) { tr.Replies[0].Body = tr.Replies[0].Body[1:] }, "reply 0: keys []"},
	} {
		t.Run(doctored.name, func(t *testing.T) {
			c := load(t, "ok_both")
			tr := okBoth(c)
			doctored.doctor(t, &tr)
			expectComplaint(t, Check(c, tr), doctored.want)
		})
	}
}

func expectComplaint(t *testing.T, complaints []string, want string) {
	t.Helper()
	if want == "" && complaints != nil {
		t.Errorf("complaints about nothing: %q", complaints)
	}
	if want != "" && !slices.ContainsFunc(complaints, func(c string) bool { return strings.Contains(c, want) }) {
		t.Errorf("complaints %q, want one with %q", complaints, want)
	}
}

func TestDoctoredFailuresAreFound(t *testing.T) {
	for _, doctored := range []struct{ name, old, new, want string }{
		{"untouched", `"stage"`, `"stage"`, ""},
		{"wrong stage", `"stage":"verification"`, `"stage":"agent"`, `stage "agent", want verification`},
		{"no stage", `,"stage":"verification"`, ``, `stage , want verification`},
		{"stage is null", `"stage":"verification"`, `"stage":null`, `stage is null`},
		{"terminal", `"terminal":false`, `"terminal":true`, `terminal true, want false`},
		{"terminal is a text", `"terminal":false`, `"terminal":"false"`, `terminal "false"`},
		{"wrong kind", `"verifier_error"`, `"agent_run_error"`, `failure_kind "agent_run_error"`},
		{"no kind", `"failure_kind":"verifier_error",`, ``, `failure_kind , want "verifier_error"`},
		{"kind is null", `"verifier_error"`, `null`, `failure_kind is null`},
		{"no partial response", `"partial_response":` + said, `"partial_response":null`, `partial_response null`},
		{"another partial response", `"It is cold."`, `"It is warm."`, `partial_response is`},
		{"partial response in another form", `1000.0`, `1e3`, `partial_response is`},
		{"no words of the server", `500: no`, `500`, `lacks "no"`},
		{"no reason", `"the verifier refused with 500: no"`, `""`, `failure_reason is empty`},
		{"reason is null", `"the verifier refused with 500: no"`, `null`, `failure_reason is empty`},
		{"long reason", `500: no`, `500: no` + strings.Repeat("é", 2000), `over 2000 characters`},
		{"secret in the reason", `500: no`, `500: no session res-cookie-1`, `shows a secret: "res-cookie"`},
		{"token in the reason", `500: no`, `500: no tok.en-1`, `shows a secret: "tok.en"`},
		{"result beside the failure", `"result":null`, `"result":{}`, `no failure`},
		{"no failure", `"failure":{`, `"failure":null,"x":{`, `keys [episode_id failure result task_id x]`},
	} {
		t.Run(doctored.name, func(t *testing.T) {
			c := load(t, "verify_500")
			tr := verify500(t, c)
			swap(t, &tr.Replies[0].Body, doctored.old, doctored.new)
			expectComplaint(t, Check(c, tr), doctored.want)
		})
	}
}

func TestKindThatMustBeLeftOut(t *testing.T) {
	c := load(t, "verify_500")
	c.Want.Replies[0].Failure.Kind = []byte("null")
	expectComplaint(t, Check(c, verify500(t, c)), `failure_kind "verifier_error", want null`)
	tr := verify500(t, c)
	swap(t, &tr.Replies[0].Body, `"verifier_error"`, `""`)
	expectComplaint(t, Check(c, tr), `failure_kind "", want null`)
	tr = verify500(t, c)
	swap(t, &tr.Replies[0].Body, `"failure_kind":"verifier_error",`, ``)
	expectComplaint(t, Check(c, tr), "")
}

func TestStepsAreMatched(t *testing.T) {
	const any = "must match"
	for _, test := range []struct{ steps, got, want string }{
		{"", "", any},
		{"", "seed", ""},
		{"seed close", "seed close", any},
		{"seed close", "seed", ""},
		{"seed close", "close seed", ""},
		{"seed aclose* close", "seed aclose aclose aclose aclose close", any},
		{"seed aclose* close", "seed aclose aclose aclose aclose aclose close", ""},
		{"seed aclose* close", "seed close", ""},
		{"seed aclose aclose? close", "seed aclose close", any},
		{"seed aclose aclose? close", "seed aclose aclose aclose close", ""},
		{"close", "aclose", ""},
	} {
		c := Case{Want: Want{Steps: strings.Fields(test.steps)}}
		c.Want.Steps = append([]string{}, c.Want.Steps...)
		var tr Trace
		for _, name := range strings.Fields(test.got) {
			tr.Calls = append(tr.Calls, Call{Path: pathOf(step(name))})
		}
		complaints := Check(c, tr)
		if (complaints == nil) != (test.want == any) {
			t.Errorf("%q against %q: %q", test.got, test.steps, complaints)
		}
	}
}

func pathOf(s step) string {
	for path, name := range steps {
		if name == s {
			return path
		}
	}
	return ""
}

func TestCallsOfTwoEpisodesMayInterleave(t *testing.T) {
	c := Case{
		Requests: make([]Request, 2),
		Want:     Want{Steps: []string{"seed", "close", "seed", "close"}, Replies: []WantReply{{Disconnected: true}, {Disconnected: true}}},
	}
	tr := Trace{Calls: []Call{{Path: "/seed_session"}, {Path: "/seed_session"}, {Path: "/close_session"}, {Path: "/close_session"}}, Replies: make([]Reply, 2)}
	expectComplaint(t, Check(c, tr), "")
	tr.Calls[3].Path = "/verify"
	expectComplaint(t, Check(c, tr), "calls [seed seed close verify]")
}

func TestAttemptsAreToldApart(t *testing.T) {
	c := Case{Want: Want{
		Steps:         []string{"seed", "resp", "seed", "resp"},
		ResponsePaths: []string{"/ng-rollout/x/v1/responses", "/ng-rollout/x-a1/v1/responses"},
		MinElapsedS:   1,
	}}
	attempt := func(id, key string) []Call {
		return []Call{{Path: "/seed_session", Body: fmt.Appendf(nil, `{"resources_session_id":"%s"}`, id)}, {Path: "/ng-rollout/" + key + "/v1/responses"}}
	}
	for _, test := range []struct {
		first, second []Call
		elapsed       time.Duration
		want          string
	}{
		{attempt("a", "x"), attempt("b", "x-a1"), time.Second, ""},
		{attempt("a", "x"), attempt("a", "x-a1"), time.Second, "used for two attempts"},
		{attempt("a", "x"), attempt("b", "x"), time.Second, "the agent runs at"},
		{attempt("a", "x"), attempt("b", "x-a1"), time.Second - 1, "want at least 1s"},
	} {
		expectComplaint(t, Check(c, Trace{Calls: slices.Concat(test.first, test.second), Elapsed: test.elapsed}), test.want)
	}
}

func TestDoctoredRepliesAreFound(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		body   string
		want   string
	}{
		{"run_missing_all", 422, `{"detail":[{"loc":["body","task"]},{"loc":["body","episode_id","rollout_id"]}]}`, ""},
		{"run_missing_all", 422, `{"detail":[{"loc":["body","task"]}]}`, `no fault at ["body", "episode_id"]`},
		{"run_missing_all", 422, `{"detail":"task is missing"}`, `no fault at`},
		{"run_missing_all", 400, `{}`, `status 400, want [422]`},
		{"run_wrong_content_type", 415, ``, ""},
		{"run_wrong_content_type", 422, ``, ""},
		{"run_wrong_content_type", 200, ``, "status 200, want [415 422]"},
		{"run_flat_conflict", 422, `{"detail":[{"loc":["body"],"msg":"exp\u0065cted is there twice"}]}`, ""},
		{"run_flat_conflict", 422, `{"detail":[]}`, `lacks "expected"`},
		{"get_root", 200, ` {"status" : "ok"}`, ""},
		{"get_root", 200, `{"status":"draining"}`, `want {"status":"ok"}`},
	} {
		c := load(t, test.name)
		expectComplaint(t, Check(c, Trace{Replies: []Reply{{Status: test.status, Body: []byte(test.body)}}}), test.want)
	}
}

func TestFlatTaskInputIsFollowed(t *testing.T) {
	c := load(t, "run_flat_task_input")
	c.Want = Want{Steps: []string{"seed", "verify"}, Replies: []WantReply{{Status: statuses{200}}}}
	params := readValue(c.Requests[0].text()).get("task").get("task_input").get("responses_create_params").raw
	flat := func(seed, verify string) Trace {
		return Trace{
			Calls: []Call{
				{Path: "/seed_session", Body: []byte(`{"task_data":` + seed + `}`)},
				{Path: "/verify", Body: []byte(strings.TrimSuffix(verify, "}") + `,"responses_create_params":` + params + `}`)},
			},
			Replies: []Reply{{Status: 200}},
		}
	}
	expectComplaint(t, Check(c, flat(`{"n":1,"expected":"cold"}`, `{"expected":"cold","n":1}`)), "")
	expectComplaint(t, Check(c, flat(`{"n":1.0,"expected":"cold"}`, `{"expected":"cold","n":1}`)), "seed: n of task_data is 1.0")
	expectComplaint(t, Check(c, flat(`{"n":1,"expected":"cold"}`, `{"expected":"cold"}`)), "verify: n is")
}

func TestCookiesAreReadAsPythonWritesThem(t *testing.T) {
	call := Call{Cookies: []string{`a=1; b="x; \"y\\ \303\251\054"; c=`, `d=e=f`}}
	want := map[string]string{"a": "1", "b": "x; \"y\\ Ã©,", "c": "", "d": "e=f"}
	got := plainCookies(call.cookies())
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if wire := call.cookies()["b"]; wire != `"x; \"y\\ \303\251\054"` {
		t.Errorf("on the wire it is %s", wire)
	}
}

func TestLogIsChecked(t *testing.T) {
	for _, test := range []struct{ log, want string }{
		{`{"message":"listening"}`, ""},
		{`{"cookie":"res_session=res-cookie-1"}`, "shows a secret"},
		{"WARNING: DATA RACE", "DATA RACE"},
		{"panic: runtime error", "panic"},
	} {
		expectComplaint(t, CheckLog(test.log), test.want)
	}
}

func TestMistakenCasesAreRefused(t *testing.T) {
	good := `{"name":"x","flags":[],"requests":[{"body":{}}],"script":{},"want":{"steps":[],"replies":[{"status":422}]}}`
	for _, test := range []struct{ name, old, new, want string }{
		{"untouched", `"x"`, `"x"`, ""},
		{"name of another", `"x"`, `"y"`, `its name is "y"`},
		{"field that is not known", `"status":422`, `"state":422`, `unknown field`},
		{"nothing about calls", `"steps":[],`, ``, `either calls or steps`},
		{"too few replies", `[{"status":422}]`, `[]`, `1 requests and 0 replies`},
		{"route that there is not", `"script":{}`, `"script":{"sed":[]}`, `no route "sed"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := t.TempDir()
			text := []byte(good)
			swap(t, &text, test.old, test.new)
			writeFile(t, filepath.Join(folder, "x.json"), text)
			_, err := Load(folder)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("Load: %v, want %q", err, test.want)
			}
		})
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("a folder without cases is fine")
	}
}
