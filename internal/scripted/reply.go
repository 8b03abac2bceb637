package scripted

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
)

// A reply is what would be sent if nothing happened to it.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// replyTo makes the reply that the action has for a call.
func (s *Servers) replyTo(call Call, action Action, r *http.Request) reply {
	behind := s.handlerBehind(call.Server)
	if behind != nil && !action.answersItself() {
		return action.change(record(behind, r, call.Body))
	}
	return action.change(action.scripted(call))
}

// record lets a handler answer and keeps what it says.
func record(handler http.Handler, r *http.Request, body []byte) reply {
	again := r.Clone(r.Context())
	again.Body = http.NoBody
	if len(body) > 0 {
		again.Body = readCloser{bytes.NewReader(body)}
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, again)
	result := recorder.Result()
	return reply{status: result.StatusCode, header: result.Header, body: recorder.Body.Bytes()}
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

// scripted is the reply that the action spells out, with what it leaves open
// from the default one.
func (a Action) scripted(call Call) reply {
	text, cookies := defaultReply(call)
	switch {
	case a.Raw != nil:
		text = *a.Raw
	case a.JSON != nil:
		text = string(a.JSON)
	}
	out := reply{status: http.StatusOK, header: http.Header{}, body: a.fill(text, call.Body)}
	if a.Status != 0 {
		out.status = a.Status
	}
	if out.status < 400 {
		out.header["Set-Cookie"] = cookies
	}
	out.header.Set("Content-Type", "application/json")
	return out
}

// change puts the action's headers on a reply.
func (a Action) change(out reply) reply {
	if a.SetCookie != nil {
		out.header["Set-Cookie"] = a.SetCookie
	}
	if a.ContentType != "" {
		out.header.Set("Content-Type", a.ContentType)
	}
	for _, header := range a.Headers {
		out.header.Add(header[0], header[1])
	}
	return out
}

// fill replaces the marks in a text by what they stand for.
func (a Action) fill(text string, request []byte) []byte {
	if a.Repeat > 0 {
		text = strings.ReplaceAll(text, "{{repeat}}", strings.Repeat(a.RepeatText, a.Repeat))
	}
	if !strings.Contains(text, "{{") {
		return []byte(text)
	}
	// A map, because a struct would take "Response" for "response" as well.
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(request, &fields) // a request that is no object has no ids
	text = strings.ReplaceAll(text, "{{id}}", sessionID(fields))
	text = strings.ReplaceAll(text, `"{{response}}"`, string(fields["response"]))
	text = strings.ReplaceAll(text, `"{{params}}"`, string(fields["responses_create_params"]))
	return []byte(text)
}

func sessionID(fields map[string]json.RawMessage) string {
	for _, name := range []string{"resources_session_id", "agent_session_id"} {
		var id string
		if json.Unmarshal(fields[name], &id) == nil && id != "" {
			return id
		}
	}
	return ""
}

// cannedResponse is what the agent says when the script does not.
const cannedResponse = `{"id":"resp_1","created_at":1000.0,"error":null,"incomplete_details":null,"instructions":null,"metadata":null,"model":"stub","object":"response",` +
	`"output":[{"id":"msg_1","content":[{"annotations":[],"text":"It is cold.","type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message"}],` +
	`"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,` +
	`"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":0},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":15}}`

// defaultReply is the body and the Set-Cookie headers of a route's default
// reply. Each call has a cookie value of its own, so that a log shows which reply
// a cookie is from.
func defaultReply(call Call) (text string, cookies []string) {
	switch call.Route {
	case Seed:
		return `{"resources_session_id":"{{id}}"}`, []string{"res_session=res-cookie-1; path=/; Max-Age=1209600; httponly; samesite=lax"}
	case Verify:
		return `{"responses_create_params":"{{params}}","response":"{{response}}","reward":1.0,"mask_sample":false,"failure_kind":null,"failure_reason":null}`,
			[]string{"res_session=res-cookie-8; path=/; httponly; samesite=lax"}
	case CloseSession:
		return `{"resources_session_id":"{{id}}"}`, []string{"res_session=res-cookie-9; path=/; httponly; samesite=lax"}
	case Metrics:
		return `{"group_level_metrics":[],"agent_metrics":{"mean/reward":1.0},"key_metrics":{"mean/reward":1.0},"repeat_level_metrics":[]}`, nil
	case AgentSeed:
		return `{"agent_session_id":"{{id}}"}`, []string{"agent_session=agent-cookie-1; path=/; Max-Age=1209600; httponly; samesite=lax"}
	case Responses:
		return cannedResponse, []string{"agent_session=agent-cookie-2; path=/; Max-Age=1209600; httponly; samesite=lax"}
	case AgentClose:
		return `{"agent_session_id":"{{id}}","agent_observations":null,"resources_cookies":null}`, []string{"agent_session=agent-cookie-9; path=/; httponly; samesite=lax"}
	}
	return `{"status":"ok"}`, nil
}
