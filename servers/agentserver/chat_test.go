package agentserver_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/requests"
)

// A wire is an endpoint without a socket: it has Chat Completions only, and keeps
// what it was asked.
type wire struct {
	completion string
	asked      string
}

func (w *wire) RoundTrip(request *http.Request) (*http.Response, error) {
	defer func() { _ = request.Body.Close() }()
	status, body := http.StatusNotFound, ""
	if strings.HasSuffix(request.URL.Path, "/chat/completions") {
		asked, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		w.asked = string(asked)
		status, body = http.StatusOK, w.completion
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: request}, nil
}

// respond asks once and returns what the wire was asked.
func (w *wire) respond(ctx context.Context, params string) (answer, asked string, err error) {
	model, err := agentserver.NewOpenAI(agentserver.OpenAIConfig{URL: "http://model", Transport: w})
	if err != nil {
		return "", "", err
	}
	defer model.Close()
	w.asked = ""
	raw, err := model.Respond(ctx, []byte(params))
	return string(raw), w.asked, err
}

func TestChatIsAskedWhatTheParamsAsk(t *testing.T) {
	const user = `{"role":"user","content":"hi"}`
	for _, test := range []struct{ name, params, want string }{
		{"text as it came", `{"input":[{"role":"user","content":"<&>` + "\u2028" + `\u2028\/\ud800"}],"seed":9007199254740993,"top_p":1.0}`,
			`{"seed":9007199254740993,"top_p":1.0,"messages":[{"role":"user","content":"<&>` + "\u2028" + `\u2028\/\ud800"}]}`},
		{"instructions", `{"instructions":"be \u003cbrief","input":[` + user + `]}`,
			`{"messages":[{"role":"system","content":"be \u003cbrief"},` + user + `]}`},
		{"roles", `{"input":[{"type":"message","role":"developer","content":"a"},{"role":"system","content":"b"},{"role":"assistant","content":"c"},{"role":"critic","content":"d"}]}`,
			`{"messages":[{"role":"system","content":"a"},{"role":"system","content":"b"},{"role":"assistant","content":"c"},{"role":"critic","content":"d"}]}`},
		{"a part", `{"input":[{"role":"user","content":[{"type":"input_text","text":"h\u0069"}]},{"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"output_text","text":"yes","annotations":[]}]}]}`,
			`{"messages":[{"role":"user","content":"h\u0069"},{"role":"assistant","content":"yes"}]}`},
		{"parts", `{"input":[{"role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:x","detail":"low"},{"type":"input_image","image_url":"http://y"}]}]}`,
			`{"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:x","detail":"low"}},{"type":"image_url","image_url":{"url":"http://y"}}]}]}`},
		{"a refusal", `{"input":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}]}`,
			`{"messages":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}]}`},
		{"no parts", `{"input":[{"role":"assistant","content":[]}]}`, `{"messages":[{"role":"assistant","content":""}]}`},
		{"calls", `{"input":[` + user + `,{"type":"reasoning","summary":[]},{"role":"assistant","content":"let me see"},` + functionCall("c0", "look", `{"at":1.0}`) + `,` +
			`{"type":"reasoning","summary":[]},` + functionCall("c1", "take", `{}`) + `,` + output("c0", "<it>") + `,` + output("c1", "none") + `,{"role":"user","content":"go on"}]}`,
			`{"messages":[` + user + `,{"role":"assistant","content":"let me see","tool_calls":[` +
				`{"id":"c0","type":"function","function":{"name":"look","arguments":"{\"at\":1.0}"}},{"id":"c1","type":"function","function":{"name":"take","arguments":"{}"}}]},` +
				`{"role":"tool","tool_call_id":"c0","content":"<it>"},{"role":"tool","tool_call_id":"c1","content":"none"},{"role":"user","content":"go on"}]}`},
		{"rounds of calls", `{"input":[` + functionCall("c0", "look", `{}`) + `,` + output("c0", "x") + `,` + functionCall("c1", "look", `{}`) + `,` + output("c1", "y") + `]}`,
			`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c0","type":"function","function":{"name":"look","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c0","content":"x"},` +
				`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"y"}]}`},
		{"said after it was called", `{"input":[` + functionCall("c0", "look", `{}`) + `,{"role":"assistant","content":"looking"},` + output("c0", "x") + `]}`,
			`{"messages":[{"role":"assistant","content":"looking","tool_calls":[{"id":"c0","type":"function","function":{"name":"look","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c0","content":"x"}]}`},
		{"said twice", `{"input":[{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}]}`,
			`{"messages":[{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}]}`},
		{"an output of parts", `{"input":[{"type":"function_call_output","call_id":"c0","output":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}]}`,
			`{"messages":[{"role":"tool","tool_call_id":"c0","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`},
		{"tools", `{"input":[` + user + `],"tools":[{"type":"function","name":"look","description":null,"parameters":{"a": 1.0},"strict":true}],"tool_choice":{"type":"function","name":"look"},"parallel_tool_calls":false}`,
			`{"tool_choice":{"type":"function","function":{"name":"look"}},"parallel_tool_calls":false,"tools":[{"type":"function","function":{"name":"look","parameters":{"a": 1.0},"strict":true}}],"messages":[` + user + `]}`},
		{"a choice in a word", `{"input":[` + user + `],"tools":[{"type":"function","name":"look"}],"tool_choice":"required"}`,
			`{"tool_choice":"required","tools":[{"type":"function","function":{"name":"look"}}],"messages":[` + user + `]}`},
		{"a choice of no tools", `{"input":[` + user + `],"tools":[],"tool_choice":"auto","parallel_tool_calls":true}`, `{"messages":[` + user + `]}`},
		{"other names", `{"max_output_tokens":12,"reasoning":{"effort":"low","summary":"auto"},"text":{"format":{"type":"json_object"},"verbosity":"low"},"input":[` + user + `]}`,
			`{"max_tokens":12,"reasoning_effort":"low","verbosity":"low","response_format":{"type":"json_object"},"messages":[` + user + `]}`},
		{"a schema", `{"text":{"format":{"type":"json_schema","name":"n","schema":{"a": 1.0},"strict":true}},"input":[` + user + `]}`,
			`{"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"a": 1.0},"strict":true}},"messages":[` + user + `]}`},
		{"the same names", `{"model":"m","temperature":0.50,"top_p":1,"stop":["x"],"top_k":5,"user":"u","input":[` + user + `]}`,
			`{"model":"m","temperature":0.50,"top_p":1,"stop":["x"],"top_k":5,"user":"u","messages":[` + user + `]}`},
		{"what chat does not have", `{"background":false,"context_management":[],"include":["x"],"max_tool_calls":3,"metadata":{"a":"b"},"store":true,"stream":false,"stream_options":{},"top_logprobs":2,"truncation":"auto","input":[` + user + `]}`,
			`{"messages":[` + user + `]}`},
		{"null", `{"temperature":null,"tools":null,"tool_choice":null,"reasoning":null,"text":null,"previous_response_id":null,"instructions":null,"input":[` + user + `]}`,
			`{"messages":[` + user + `]}`},
		{"a member of chat's", `{"input":[` + user + `],"messages":[1],"max_tokens":1,"max_output_tokens":2}`, `{"messages":[` + user + `],"max_tokens":2}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, got, err := (&wire{completion: hello}).respond(t.Context(), test.params)
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestWhatChatCannotSayIsRefused(t *testing.T) {
	const without = "the model endpoint has no Responses API, and Chat Completions have no "
	for _, test := range []struct{ params, want string }{
		{`{"input":[{"type":"web_search_call","id":"w"}]}`, `item of type "web_search_call"`},
		{`{"input":[{"type":"item_reference","id":"w"}]}`, `item of type "item_reference"`},
		{`{"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]}`, `content of type "input_file"`},
		{`{"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]}`, `image without an image_url`},
		{`{"input":[],"tools":[{"type":"web_search"}]}`, `tool of type "web_search"`},
		{`{"input":[],"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools"}}`, `tool_choice of type "allowed_tools"`},
		{`{"input":[],"previous_response_id":"r"}`, `previous_response_id`},
		{`{"input":[],"conversation":"c"}`, `conversation`},
		{`{"input":[],"prompt":{"id":"p"}}`, `prompt`},
	} {
		_, asked, err := (&wire{}).respond(t.Context(), test.params)
		want := wanted{Status: http.StatusUnprocessableEntity, Kind: failures.AgentRunError, Reason: without + test.want}
		if diff := cmp.Diff(want, refusalIn(t, err)); diff != "" {
			t.Errorf("refusal (-want +got):\n%s", diff)
		}
		if asked != "" {
			t.Errorf("the endpoint was asked %s", asked)
		}
	}
}

func TestParamsThatChatCannotReadAreFaults(t *testing.T) {
	for _, test := range []struct{ params, want string }{
		{`[]`, "body: Input should be a valid dictionary"},
		{`{}`, "body.input: Field required"},
		{`{"input":"hi"}`, "body.input: Input should be a valid list"},
		{`{"input":[5]}`, "body.input.0: Input should be a valid dictionary"},
		{`{"input":[{"content":"hi"}]}`, "body.input.0.role: Field required"},
		{`{"input":[{"role":"user"}]}`, "body.input.0.content: Field required"},
		{`{"input":[{"role":"user","content":null}]}`, "body.input.0.content: Input should be a valid string or list"},
		{`{"input":[{"role":"user","content":[{"text":"hi"}]}]}`, "body.input.0.content.0.type: Field required"},
		{`{"input":[{"role":"user","content":[{"type":"input_text"},{"type":"text","text":1}]}]}`,
			"body.input.0.content.0.text: Field required; body.input.0.content.1.text: Input should be a valid string"},
		{`{"input":[{"type":"function_call","name":"f","arguments":{}}]}`,
			"body.input.0.arguments: Input should be a valid string; body.input.0.call_id: Field required"},
		{`{"input":[{"type":"function_call_output"}]}`, "body.input.0.output: Field required; body.input.0.call_id: Field required"},
		{`{"input":[],"instructions":7,"tools":[{"name":"f"}]}`,
			"body.instructions: Input should be a valid string; body.tools.0.type: Field required"},
	} {
		_, asked, err := (&wire{}).respond(t.Context(), test.params)
		var invalid requests.Invalid
		if !errors.As(err, &invalid) || invalid.Error() != test.want || asked != "" {
			t.Errorf("%s: got %v, want %s; the endpoint was asked %q", test.params, err, test.want, asked)
		}
	}
}

func TestAChatReplyIsAResponse(t *testing.T) {
	const head, done = `{"id":"c1","object":"response","output":[`, `],"status":"completed"}`
	for _, test := range []struct{ name, completion, want string }{
		{"text as it came", `{"id":"c1","created":17e8,"model":"m\u0026m","choices":[{"index":0,"message":{"content":"<&>` + "\u2028" + `\ud800","refusal":null},"finish_reason":"stop"},{"message":{"content":"another"}}]}`,
			`{"id":"c1","object":"response","created_at":17e8,"model":"m\u0026m","output":[{"type":"message","id":"msg_c1","role":"assistant","status":"completed",` +
				`"content":[{"type":"output_text","text":"<&>` + "\u2028" + `\ud800","annotations":[]}]}],"status":"completed"}`},
		{"calls", `{"id":"c1","choices":[{"message":{"content":null,"tool_calls":[{"id":"t0","type":"function","function":{"name":"look","arguments":"{\"at\":1.0}"}},` +
			`{"id":"t1","function":{"name":"take","arguments":""}},{"id":"t2","function":{"name":"put","arguments":{"n": 1.0}}},{"id":"t3","function":{"name":"end"}}]},"finish_reason":"tool_calls"}]}`,
			head + `{"type":"function_call","id":"fc_t0","call_id":"t0","name":"look","arguments":"{\"at\":1.0}","status":"completed"},` +
				`{"type":"function_call","id":"fc_t1","call_id":"t1","name":"take","arguments":"{}","status":"completed"},` +
				`{"type":"function_call","id":"fc_t2","call_id":"t2","name":"put","arguments":"{\"n\": 1.0}","status":"completed"},` +
				`{"type":"function_call","id":"fc_t3","call_id":"t3","name":"end","arguments":"{}","status":"completed"}` + done},
		{"thoughts before words", `{"id":"c1","choices":[{"message":{"content":"yes","reasoning_content":"hm"}}]}`,
			head + `{"type":"reasoning","id":"rs_c1","summary":[{"type":"summary_text","text":"hm"}]},` +
				`{"type":"message","id":"msg_c1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"yes","annotations":[]}]}` + done},
		{"thoughts by another name", `{"id":"c1","choices":[{"message":{"content":"","reasoning_content":null,"reasoning":"hm"}}]}`,
			head + `{"type":"reasoning","id":"rs_c1","summary":[{"type":"summary_text","text":"hm"}]}` + done},
		{"parts", `{"id":"c1","choices":[{"message":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}}]}`,
			head + `{"type":"message","id":"msg_c1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"a\nb","annotations":[]}]}` + done},
		{"a refusal", `{"id":"c1","choices":[{"message":{"content":null,"refusal":"no"}}]}`,
			head + `{"type":"message","id":"msg_c1","role":"assistant","status":"completed","content":[{"type":"refusal","refusal":"no"}]}` + done},
		{"nothing", `{"id":"c1","choices":[{"message":{}}]}`, head + done},
		{"cut off", `{"id":"c1","choices":[{"message":{},"finish_reason":"length"}]}`,
			head + `],"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}`},
		{"filtered", `{"id":"c1","choices":[{"message":{},"finish_reason":"content_filter"}]}`,
			head + `],"status":"incomplete","incomplete_details":{"reason":"content_filter"}}`},
		{"usage", `{"id":"c1","choices":[{"message":{}}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":2}}}`,
			head + `],"status":"completed","usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":3},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":15}}`},
		{"usage without details", `{"id":"c1","choices":[{"message":{}}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":null}}`,
			head + `],"status":"completed","usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":0},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":15}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, _, err := (&wire{completion: test.completion}).respond(t.Context(), hi)
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// Without ids of the endpoint's there are others: an output finds its call by one.
func TestAChatReplyWithoutIdsGetsThem(t *testing.T) {
	const completion = `{"choices":[{"message":{"tool_calls":[{"function":{"name":"look"}},{"id":"","function":{"name":"look"}}]}}]}`
	got, _, err := (&wire{completion: completion}).respond(t.Context(), hi)
	if err != nil {
		t.Fatal(err)
	}
	response, err := rawjson.ParseObject([]byte(got))
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{response.Text("id")}
	for _, item := range outputOf(t, got) {
		call, _ := rawjson.ParseObject([]byte(item))
		ids = append(ids, call.Text("call_id"))
	}
	if len(ids) != 3 || !strings.HasPrefix(ids[0], "resp_") || !strings.HasPrefix(ids[1], "call_") || !strings.HasPrefix(ids[2], "call_") || ids[1] == ids[2] {
		t.Errorf("the ids are %q", ids)
	}
}

func TestAChatReplyThatIsNoneFailsTheTurn(t *testing.T) {
	for _, test := range []struct{ completion, want string }{
		{``, "not JSON: the text ends where a value should be at byte 0"},
		{`<html>`, `not JSON: "<" where a value should be at byte 0`},
		{`[]`, "want an object, got an array"},
		{`{}`, "it has no choices"},
		{`{"choices":null}`, "it has no choices"},
		{`{"choices":[ ]}`, "it has no choices"},
		{`{"choices":[5]}`, "its first choice is no object"},
		{`{"choices":[{"message":null}]}`, "its first choice has no message"},
	} {
		_, _, err := (&wire{completion: test.completion}).respond(t.Context(), hi)
		want := wanted{Status: http.StatusInternalServerError, Kind: failures.AgentRunError, Reason: "the model's reply: " + test.want}
		if diff := cmp.Diff(want, refusalIn(t, err)); diff != "" {
			t.Errorf("refusal (-want +got):\n%s", diff)
		}
	}
}

func TestAChatModelThatFailsInItsReplyFailsTheTurn(t *testing.T) {
	for _, test := range []struct{ completion, want string }{
		{`{"error":{"message":"upstream provider died","code":502}}`, "the model's reply has no choices: upstream provider died"},
		{`{"choices":[{"message":null,"finish_reason":"error","error":{"message":"out of memory"}}]}`, "the model's reply ended in an error: out of memory"},
	} {
		_, _, err := (&wire{completion: test.completion}).respond(t.Context(), hi)
		want := wanted{Status: http.StatusBadGateway, Kind: failures.AgentRunError, Reason: test.want}
		if diff := cmp.Diff(want, refusalIn(t, err)); diff != "" {
			t.Errorf("refusal (-want +got):\n%s", diff)
		}
	}
}

// Whatever the params are, the endpoint gets JSON, or the caller an error; and so
// with whatever the endpoint answers.
func FuzzConversion(f *testing.F) {
	f.Add(hi, hello)
	f.Add(odd, `{"choices":[{"message":{"content":[{"text":"\ud800"}],"tool_calls":[{"function":{"arguments":[1.0]}}]}}],"usage":{"prompt_tokens":1e400}}`)
	f.Add(`{"input":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},`+functionCall("c", "look", `{}`)+`,`+output("c", "x")+`],"tools":[{"type":"function"}],"tool_choice":{"type":"function"},"text":{"format":{"type":"json_schema"}},"reasoning":{"effort":1}}`, `{"choices":[{}]}`)
	f.Add(`{"input":[{"type":"function_call","name":{},"arguments":[]},{"type":5,"role":6,"content":{}}],"instructions":[],"tools":[[]]}`, `{"choices":{}}`)
	f.Fuzz(func(t *testing.T, params, completion string) {
		answer, asked, err := (&wire{completion: completion}).respond(t.Context(), params)
		if asked != "" && !rawjson.Valid([]byte(asked)) {
			t.Errorf("the endpoint got %s", asked)
		}
		if err == nil && !rawjson.Valid([]byte(answer)) {
			t.Errorf("the answer is %s", answer)
		}
		if err == nil && asked == "" {
			t.Error("there is an answer to what nobody was asked")
		}
	})
}
