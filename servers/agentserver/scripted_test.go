package agentserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.com/turn/servers/agentserver"
)

const talk = `{"input":[
	{"role":"developer","content":"be brief"},
	{"type":"message","role":"user","content":[{"type":"input_text","text":"how warm"},{"type":"input_text","text":"is it?"}]},
	{"type":"reasoning","summary":[]},
	{"type":"function_call","call_id":"c1","name":"look","arguments":"{\"at\":\"sky\"}"},
	{"type":"function_call","call_id":"c2","name":"feel","arguments":"{}"},
	{"type":"function_call_output","call_id":"c2","output":"warm enough"}],
	"tools":[{"type":"function","name":"look"},{"type":"web_search"},{"type":"function","name":"feel"}]}`

func TestAPolicySeesTheConversation(t *testing.T) {
	var seen agentserver.Conversation
	model := agentserver.Scripted{Play: func(c agentserver.Conversation) agentserver.Move { seen = c; return agentserver.Move{} }}
	if _, err := model.Respond(t.Context(), json.RawMessage(talk)); err != nil {
		t.Fatal(err)
	}
	want := agentserver.Conversation{
		Messages: []agentserver.Message{{Role: "developer", Text: "be brief"}, {Role: "user", Text: "how warm\nis it?"}},
		Tools:    []string{"look", "feel"},
		Calls: []agentserver.ToolCall{
			{Name: "look", Arguments: json.RawMessage(`{"at":"sky"}`)},
			{Name: "feel", Arguments: json.RawMessage(`{}`), Output: "warm enough"},
		},
	}
	if diff := cmp.Diff(want, seen, cmpopts.IgnoreUnexported(agentserver.ToolCall{})); diff != "" {
		t.Errorf("conversation (-want +got):\n%s", diff)
	}
	for role, want := range map[string]string{"user": "how warm\nis it?", "developer": "be brief", "assistant": ""} {
		if got := seen.LastSaid(role); got != want {
			t.Errorf("the last that the %s said is %q, want %q", role, got, want)
		}
	}
}

func TestAMoveIsAResponse(t *testing.T) {
	model := agentserver.Scripted{
		Name:  "script",
		Clock: func() time.Time { return time.Unix(1_800_000_000, 0) },
		Play: func(agentserver.Conversation) agentserver.Move {
			return agentserver.Move{Say: "let me see", Calls: []agentserver.ToolCall{{Name: "look", Arguments: json.RawMessage(`{"at": "sky"}`)}}}
		},
	}
	got, err := model.Respond(t.Context(), json.RawMessage(talk))
	if err != nil {
		t.Fatal(err)
	}
	again, _ := model.Respond(t.Context(), json.RawMessage(talk))
	if string(got) != string(again) {
		t.Errorf("the same conversation brought\n%s\nand then\n%s", got, again)
	}
	const id = "75b7ecf664b1e54d257f1057"
	want := `{"created_at":1800000000,"error":null,"id":"resp_` + id + `","incomplete_details":null,"instructions":null,"metadata":{},"model":"script","object":"response",` +
		`"output":[{"content":[{"annotations":[],"text":"let me see","type":"output_text"}],"id":"msg_` + id + `","role":"assistant","status":"completed","type":"message"},` +
		`{"arguments":"{\"at\": \"sky\"}","call_id":"call_` + id + `_0","id":"fc_` + id + `_0","name":"look","status":"completed","type":"function_call"}],` +
		`"parallel_tool_calls":true,"status":"completed","temperature":null,"tool_choice":"auto",` +
		`"tools":[{"type":"function","name":"look"},{"type":"web_search"},{"type":"function","name":"feel"}],"top_p":null,` +
		`"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":0},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":15}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("response (-want +got):\n%s", diff)
	}
}

func TestAScriptIsNotPlayedForNothing(t *testing.T) {
	model := agentserver.Scripted{Play: func(agentserver.Conversation) agentserver.Move {
		t.Error("it was played")
		return agentserver.Move{}
	}}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := model.Respond(ctx, json.RawMessage(talk)); !errors.Is(err, gone) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := model.Respond(t.Context(), json.RawMessage(`{"input":["hi"]}`)); err == nil {
		t.Error("an input item that is no object was accepted")
	}
}
