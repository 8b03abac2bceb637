package agentserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/requests"
)

func TestATurnCallsToolsUntilTheModelIsDone(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", b.access(`{"res":"c1","odd":"a b;c"}`))
	b.model.replies = []string{calls("look", `{"at": 1.0}`), calls("take", `{}`, "take", `{}`), says("done")}
	b.tools.serve = func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/base/look":
			w.Header().Set("Set-Cookie", "res=c2")
			_, _ = w.Write([]byte(`{"seen":"<it>"}`))
		case "/base/take":
			http.Error(w, "no hands", http.StatusConflict)
		}
	}
	got := b.post(protocol.ResponsesPath("0-0", true), cookie, `{"input":[{"role":"user","content":"go"}],"seed":9007199254740993}`)

	if diff := cmp.Diff([]toolCall{
		{"/base/look", `{"at": 1.0}`, `res=c1; odd="a b\073c"`, "granted"},
		{"/base/take", `{}`, `res=c2; odd="a b\073c"`, "granted"},
		{"/base/take", `{}`, `res=c2; odd="a b\073c"`, "granted"},
	}, b.tools.seen()); diff != "" {
		t.Errorf("tool calls (-want +got):\n%s", diff)
	}
	user := `{"role":"user","content":"go"}`
	first := functionCall("call_0", "look", `{"at": 1.0}`) + "," + output("call_0", `{"seen":"<it>"}`)
	second := functionCall("call_0", "take", `{}`) + "," + functionCall("call_1", "take", `{}`) + "," +
		output("call_0", "no hands\n") + "," + output("call_1", "no hands\n")
	if diff := cmp.Diff([]string{
		`{"input":[` + user + `],"seed":9007199254740993}`,
		`{"input":[` + user + `,` + first + `],"seed":9007199254740993}`,
		`{"input":[` + user + `,` + first + `,` + second + `],"seed":9007199254740993}`,
	}, b.model.seen()); diff != "" {
		t.Errorf("the model was asked (-want +got):\n%s", diff)
	}
	want := `{"id":"r","created_at":1,"model":"m","object":"response","output":[` + first + `,` + second + `,` + message("done") + `],` +
		`"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"status":"completed",` +
		`"usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":3},"output_tokens":15,"output_tokens_details":{"reasoning_tokens":6},"total_tokens":45}}`
	b.want("the response", got, 200, want)
}

func TestATextAsInputIsTheUsersMessage(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	b.post("/v1/responses", b.seed("a", ""), `{"input":"how \"warm\" is it?"}`)
	want := []string{`{"input":[{"role":"user","content":"how \"warm\" is it?","type":"message"}]}`}
	if diff := cmp.Diff(want, b.model.seen()); diff != "" {
		t.Errorf("the model was asked (-want +got):\n%s", diff)
	}
}

func TestEveryPathOfATurn(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", "")
	for _, path := range []string{protocol.PathResponses, protocol.ResponsesPath("0-0-a1", false), protocol.ResponsesPath("0-0", true)} {
		if got := b.post(path, cookie, `{"input":"hi"}`); got.Status != http.StatusOK || got.Body != says("done") {
			// usage is summed over one round, and so the same
			t.Errorf("%s: got %+v", path, got)
		}
	}
}

func TestATurnNeedsALiveSession(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	const noCookie = `{"detail":"the request carries no session cookie that this server set"}`
	b.want("without a cookie", b.post("/v1/responses", "", `{"input":"hi"}`), 409, noCookie)
	b.want("with a cookie that is made up", b.post("/v1/responses", "agent_session=a", `{"input":"hi"}`), 409, noCookie)
	cookie := b.seed("a", "")
	b.post("/v1/agent_sessions/close", "", closeBody("a", episode0))
	b.want("when it is closed", b.post("/v1/responses", cookie, `{"input":"hi"}`), 409, `{"detail":"agent session a is not open"}`)
	if len(b.model.seen()) > 0 {
		t.Error("the model was asked")
	}
}

func TestCreateParamsAreChecked(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", "")
	for _, test := range []struct{ name, body, want string }{
		{"no input", `{}`, "body.input: Field required"},
		{"input of another kind", `{"input":{}}`, "body.input: Input should be a valid string or list"},
		{"a stream", `{"input":"hi","stream":true}`, "body.stream: this agent does not stream"},
	} {
		got := b.post("/v1/responses", cookie, test.body)
		if got.Status != http.StatusUnprocessableEntity || faults(t, got.Body) != test.want {
			t.Errorf("%s: got %+v, want %q", test.name, got, test.want)
		}
	}
	if got := b.post("/v1/responses", cookie, `{"input":"hi","stream":false}`); got.Status != http.StatusOK {
		t.Errorf("no stream: got %+v", got)
	}
}

func TestAModelThatFailsFailsTheTurn(t *testing.T) {
	for _, test := range []struct {
		name    string
		respond func(context.Context) (json.RawMessage, error)
		want    reply
	}{
		{"any error", failing(errors.New("out of tokens")),
			reply{Status: 500, Body: `{"detail":"out of tokens","failure_kind":"agent_run_error"}`}},
		{"a refusal", failing(requests.RefuseAs(429, failures.ProviderQuotaExhausted, "quota for team")),
			reply{Status: 429, Body: `{"detail":"quota for team","failure_kind":"provider_quota_exhausted"}`}},
		{"faults", failing(requests.Invalid{{Type: "missing", Loc: []any{"body", "model"}, Msg: "Field required"}}),
			reply{Status: 422, Body: `{"detail":[{"type":"missing","loc":["body","model"],"msg":"Field required"}]}`}},
		{"a reply that is no JSON", replying(`<html>`),
			reply{Status: 500, Body: `{"detail":"the model's reply: not JSON: \"<\" where a value should be at byte 0","failure_kind":"agent_run_error"}`}},
		{"a reply without output", replying(`{"error":{"message":"no"}}`),
			reply{Status: 500, Body: `{"detail":"the model's reply: it has no array output: no","failure_kind":"agent_run_error"}`}},
		{"a panic", func(context.Context) (json.RawMessage, error) { panic("oops") },
			reply{Status: 500, Body: `{"detail":"a bug in this server: oops"}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, agentserver.Config{})
			cookie := b.seed("a", "")
			b.model.respond = test.respond
			b.want("the turn", b.post("/v1/responses", cookie, `{"input":"hi"}`), test.want.Status, test.want.Body)
			b.model.respond = nil
			if got := b.post("/v1/responses", cookie, `{"input":"hi"}`); got.Status != http.StatusOK {
				t.Errorf("the next turn of the session got %+v", got)
			}
		})
	}
}

func failing(err error) func(context.Context) (json.RawMessage, error) {
	return func(context.Context) (json.RawMessage, error) { return nil, err }
}

func replying(text string) func(context.Context) (json.RawMessage, error) {
	return func(context.Context) (json.RawMessage, error) { return json.RawMessage(text), nil }
}

func TestWhatAModelMayNotCallIsItsToolsOutput(t *testing.T) {
	for _, test := range []struct{ name, tool, arguments, want string }{
		{"its session's end", "close_session", `{}`, `{"error":"There is no tool of the name \"close_session\""}`},
		{"its own verdict", "verify", `{}`, `{"error":"There is no tool of the name \"verify\""}`},
		{"a path out of the base URL", "../secret", `{}`, `{"error":"There is no tool of the name \"../secret\""}`},
		{"a query", "look?as=root", `{}`, `{"error":"There is no tool of the name \"look?as=root\""}`},
		{"nothing", "", `{}`, `{"error":"There is no tool of the name \"\""}`},
		{"with half of its arguments", "look", `{"at":`,
			`{"error":"Invalid tool call arguments: not JSON: the text ends where a value should be at byte 6"}`},
		{"for too much output", "_look", `{}`, `{"error":"The output of tool _look is longer than 10 bytes"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, agentserver.Config{MaxOutputBytes: 10})
			b.tools.serve = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("01234567890")) }
			b.model.replies = []string{calls(test.tool, test.arguments), says("done")}
			got := b.post("/v1/responses", b.seed("a", b.access("{}")), `{"input":"hi"}`)
			want := []string{functionCall("call_0", test.tool, test.arguments), output("call_0", test.want), message("done")}
			if diff := cmp.Diff(want, outputOf(t, got.Body)); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if called := len(b.tools.seen()) > 0; called != (test.tool == "_look") {
				t.Errorf("calls: %+v", b.tools.seen())
			}
		})
	}
}

func TestAToolThatDoesNotAnswerFailsTheTurn(t *testing.T) {
	for _, test := range []struct {
		name  string
		serve http.HandlerFunc
		want  string
	}{
		{"before the reply", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "tool look did not answer: EOF"},
		{"inside the reply", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "tool look did not answer: unexpected EOF"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, agentserver.Config{})
			b.tools.serve = test.serve
			b.model.replies = []string{calls("look", `{}`)}
			cookie := b.seed("a", b.access(`{"res":"a-secret-value"}`))
			b.want("the turn", b.post("/v1/responses", cookie, `{"input":"hi"}`), 502,
				`{"detail":"`+test.want+`","failure_kind":"agent_request_failed"}`)
			receipt := b.post("/v1/agent_sessions/close", cookie, closeBody("a", episode0)).Body
			for _, want := range []string{`"status":"failed","error_type":"agent_request_failed"`, `"resources_cookies":{"res":"a-secret-value"}`} {
				if !strings.Contains(receipt, want) {
					t.Errorf("the receipt %s has no %s", receipt, want)
				}
			}
			if n := len(b.tools.seen()); n != 1 {
				t.Errorf("the tool was called %d times", n)
			}
		})
	}
}

func TestAToolsRedirectIsItsOutput(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	b.tools.serve = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusTemporaryRedirect)
		_, _ = w.Write([]byte("moved"))
	}
	b.model.replies = []string{calls("look", `{}`), says("done")}
	got := b.post("/v1/responses", b.seed("a", b.access("{}")), `{"input":"hi"}`)
	if items := outputOf(t, got.Body); len(items) != 3 || items[1] != output("call_0", "moved") || len(b.tools.seen()) != 1 {
		t.Errorf("got %+v after %+v", got, b.tools.seen())
	}
}

func TestAToolCallWithoutAccessFailsTheTurn(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	b.model.replies = []string{calls("look", `{}`)}
	b.want("the turn", b.post("/v1/responses", b.seed("a", ""), `{"input":"hi"}`), 422,
		`{"detail":"the model called tool look, but this agent session was given no tool access","failure_kind":"agent_run_error"}`)
}

func TestATurnIsBounded(t *testing.T) {
	b := newBench(t, agentserver.Config{MaxRounds: 3})
	b.model.replies = []string{strings.Replace(calls("look", `{}`), `"status"`, `"metadata":{"run":"7"},"status"`, 1)}
	got := b.post("/v1/responses", b.seed("a", b.access("{}")), `{"input":"hi"}`)
	if len(b.model.seen()) != 3 || len(b.tools.seen()) != 3 {
		t.Errorf("the model was asked %d times, the tool %d times, want 3 each", len(b.model.seen()), len(b.tools.seen()))
	}
	if n := len(outputOf(t, got.Body)); n != 6 {
		t.Errorf("the output has %d items, want 3 calls and their outputs", n)
	}
	if !strings.Contains(got.Body, `"metadata":{"run":"7","ng_termination_reason":"max_rounds"},"status":"incomplete"`) {
		t.Errorf("the response does not say that it was cut off: %s", got.Body)
	}
}

// A model that failed inside a reply of 200 has given no answer that could be scored.
func TestAModelThatFailsInItsReplyFailsTheTurn(t *testing.T) {
	for _, test := range []struct{ status, error, want string }{
		{"failed", `{"code":"server_error","message":"GPU on fire"}`, "failed: GPU on fire"},
		{"failed", `null`, "failed"},
		{"cancelled", `null`, "cancelled"},
		{"queued", `null`, "queued"},
		{"in_progress", `null`, "in_progress"},
	} {
		t.Run(test.want, func(t *testing.T) {
			b := newBench(t, agentserver.Config{})
			b.model.replies = []string{strings.Replace(calls("look", `{}`), `"status":"completed"`, `"status":"`+test.status+`","error":`+test.error, 1)}
			b.want("the turn", b.post("/v1/responses", b.seed("a", b.access("{}")), `{"input":"hi"}`), 502,
				`{"detail":"the model's reply is `+test.want+`","failure_kind":"agent_run_error"}`)
			if len(b.tools.seen()) > 0 {
				t.Error("its tool was called")
			}
		})
	}
	b := newBench(t, agentserver.Config{})
	b.model.replies = []string{`{"status":"failed","error":{"message":"GPU on fire"}}`}
	b.want("a turn whose model gave no output either", b.post("/v1/responses", b.seed("a", ""), `{"input":"hi"}`), 502,
		`{"detail":"the model's reply is failed: GPU on fire","failure_kind":"agent_run_error"}`)
}

func TestAModelThatWasCutOffEndsTheTurn(t *testing.T) {
	for name, change := range map[string][2]string{
		"incomplete":         {`"status":"completed"`, `"status":"incomplete"`},
		"incomplete details": {`"object":"response"`, `"object":"response","incomplete_details":{"reason":"max_output_tokens"}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, agentserver.Config{})
			cut := strings.Replace(calls("look", `{}`), change[0], change[1], 1)
			b.model.replies = []string{cut}
			b.want("the turn", b.post("/v1/responses", b.seed("a", b.access("{}")), `{"input":"hi"}`), 200, cut)
			if len(b.tools.seen()) > 0 {
				t.Error("half a call was called")
			}
		})
	}
}

func TestAResponseIsWholeWhenTheModelsIsNot(t *testing.T) {
	b := newBench(t, agentserver.Config{Name: "tester"})
	b.model.replies = []string{`{"output":[]}`}
	got := b.post("/v1/responses", b.seed("a", ""), `{"input":"hi","model":"asked-for","tools":[{"type":"function","name":"look"}],"tool_choice":null}`)
	var response map[string]any
	if err := json.Unmarshal([]byte(got.Body), &response); err != nil {
		t.Fatal(err)
	}
	if id, _ := response["id"].(string); !strings.HasPrefix(id, "resp_") {
		t.Errorf("the id is %v", response["id"])
	}
	delete(response, "id")
	want := map[string]any{
		"output": []any{}, "usage": nil, "created_at": 1_800_000_006.0, "model": "asked-for", "object": "response", "parallel_tool_calls": true,
		"tool_choice": "auto", "tools": []any{map[string]any{"type": "function", "name": "look"}}, "status": "completed",
	}
	if diff := cmp.Diff(want, response); diff != "" {
		t.Errorf("response (-want +got):\n%s", diff)
	}
}

func TestACallerThatLeavesStopsTheTurn(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", b.access("{}"))
	b.model.replies = []string{calls("look", `{}`)}
	reached, stopped := make(chan struct{}), make(chan struct{})
	b.tools.serve = func(_ http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
		close(stopped)
	}
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-reached
		leave()
	}()
	if got, err := b.try(ctx, "/v1/responses", cookie, `{"input":"hi"}`); err == nil {
		t.Fatalf("the turn was answered: %+v", got)
	}
	<-stopped
	receipt := b.post("/v1/agent_sessions/close", "", closeBody("a", episode0)).Body
	for _, want := range []string{`"status":"cancelled","error_type":`, `"invocation_id":"root","status":"incomplete"`, `"error_type":"cancelled"`} {
		if !strings.Contains(receipt, want) {
			t.Errorf("the receipt %s has no %s", receipt, want)
		}
	}
	if n := len(b.model.seen()); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
}

func TestACloseStopsTheTurnThatRuns(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", "")
	reached := make(chan struct{})
	b.model.respond = func(ctx context.Context) (json.RawMessage, error) {
		close(reached)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	turn := make(chan reply)
	go func() {
		got, _ := b.try(context.Background(), "/v1/responses", cookie, `{"input":"hi"}`)
		turn <- got
	}()
	<-reached
	closed := b.post("/v1/agent_sessions/close", "", closeBody("a", episode0))
	if closed.Status != http.StatusOK || !strings.Contains(closed.Body, `"status":"incomplete"`) {
		t.Errorf("the close got %+v", closed)
	}
	b.want("the turn", <-turn, 409, `{"detail":"the session was closed during its turn"}`)
}

func TestCloseStopsTheTurnsThatRun(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", "")
	reached := make(chan struct{})
	b.model.respond = func(ctx context.Context) (json.RawMessage, error) {
		close(reached)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	turn := make(chan reply)
	go func() {
		got, _ := b.try(context.Background(), "/v1/responses", cookie, `{"input":"hi"}`)
		turn <- got
	}()
	<-reached
	if err := b.server.Close(t.Context()); err != nil {
		t.Error(err)
	}
	b.want("the turn", <-turn, 503, `{"detail":"the server is shutting down","failure_kind":"shutdown"}`)
	b.want("a seed after it", b.post("/v1/agent_sessions", "", seedBody("b", episode0, "")), 503,
		`{"detail":"the server is shutting down","failure_kind":"shutdown"}`)
}

func TestASecondTurnIsAnInvocationOfItsOwn(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", "")
	b.post("/v1/responses", cookie, `{"input":"hi"}`)
	b.post("/v1/responses", cookie, `{"input":"again"}`)
	receipt := b.post("/v1/agent_sessions/close", cookie, closeBody("a", episode0)).Body
	if !strings.Contains(receipt, `"invocation_id":"root"`) || !strings.Contains(receipt, `"invocation_id":"activation-2"`) {
		t.Errorf("the receipt is %s", receipt)
	}
}
