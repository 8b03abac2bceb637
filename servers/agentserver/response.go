package agentserver

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// A reply is a model's Responses object.
type reply struct{ rawjson.Object }

func readReply(raw []byte) (reply, error) {
	object, err := rawjson.ParseObject(raw)
	if err != nil {
		return reply{}, err
	}
	r := reply{object}
	if err := r.failure(); err != nil {
		return reply{}, err
	}
	if !rawjson.IsArray(r.get("output")) {
		return reply{}, fmt.Errorf("it has no array output%s", r.errorWords())
	}
	return r, nil
}

func (r reply) get(name string) []byte {
	value, _ := r.Get(name)
	return value
}

func (r reply) output() [][]byte { return rawjson.Elements(r.get("output")) }

// failure is why the model has given no answer, in an answer that came with 200: a
// verifier would blame the model for what befell it. Nil when it has given one, also
// one that was cut off.
func (r reply) failure() error {
	status, _ := rawjson.Text(r.get("status"))
	switch status {
	case "failed", "cancelled", "queued", "in_progress":
		return modelFailed("the model's reply is %s%s", status, r.errorWords())
	}
	return nil
}

// modelFailed refuses the turn of a model that failed inside a reply of 200.
func modelFailed(format string, args ...any) error {
	return requests.RefuseAs(http.StatusBadGateway, failures.AgentRunError, format, args...)
}

// errorWords is what the reply's error says, behind a colon; "" when it says nothing.
func (r reply) errorWords() string {
	object, err := rawjson.ParseObject(r.get("error"))
	if err != nil || object.Text("message") == "" {
		return ""
	}
	return ": " + object.Text("message")
}

// unfinished reports whether the model was cut off: what it called in that state may
// be half a call.
func (r reply) unfinished() bool {
	status, _ := rawjson.Text(r.get("status"))
	return status == "incomplete" || rawjson.IsObject(r.get("incomplete_details"))
}

// A functionCall is one call in a model's output.
type functionCall struct{ id, name, arguments string }

func (r reply) calls() []functionCall {
	var calls []functionCall
	for _, element := range r.output() {
		item, err := rawjson.ParseObject(element)
		if err != nil || item.Text("type") != "function_call" {
			continue
		}
		calls = append(calls, functionCall{
			id:        item.Text("call_id"),
			name:      item.Text("name"),
			arguments: item.Text("arguments"),
		})
	}
	return calls
}

// cutOff is the reply of a turn that ends before the model was through with it,
// marked as NeMo Gym's agents mark theirs: incomplete_details knows two reasons
// only, and neither is ours.
func (r reply) cutOff(reason string) reply {
	var metadata rawjson.ObjectWriter
	if held, err := rawjson.ParseObject(r.get("metadata")); err == nil {
		for _, member := range held {
			if member.Name != "ng_termination_reason" {
				metadata.Member(member)
			}
		}
	}
	metadata.Text("ng_termination_reason", reason)
	cut := with(r.Object, "status", []byte(`"incomplete"`))
	return reply{with(cut, "metadata", metadata.End().Bytes())}
}

// response is the turn's Responses object: the model's last one, with all that
// the turn added as its output and all that it cost as its usage, and with the
// members that every Responses object has.
func (t *turn) response(last reply) rawjson.Body {
	whole := with(last.Object, "output", array(t.added))
	whole = with(whole, "usage", t.usage.appendJSON(nil))
	for _, member := range t.standard() {
		if _, there := whole.Get(member.Name); !there {
			whole = append(whole, member)
		}
	}
	return encode(whole)
}

// standard is the members that a reader of a Responses object counts on, as
// they are when the model leaves them out.
func (t *turn) standard() []rawjson.Member {
	return []rawjson.Member{
		member("id", rawjson.AppendText(nil, "resp_"+rand.Text())),
		member("created_at", strconv.AppendInt(nil, t.server.config.Clock().Unix(), 10)),
		member("model", t.param("model", rawjson.AppendText(nil, t.server.config.Name))),
		member("object", []byte(`"response"`)),
		member("parallel_tool_calls", t.param("parallel_tool_calls", []byte("true"))),
		member("tool_choice", t.param("tool_choice", []byte(`"auto"`))),
		member("tools", t.param("tools", []byte("[]"))),
		member("status", []byte(`"completed"`)),
	}
}

func (t *turn) param(name string, fallback []byte) []byte {
	if value, there := t.params.Get(name); there && !rawjson.IsNull(value) {
		return value
	}
	return fallback
}

// usage is what the model's rounds cost in all. The zero value is unknown.
type usage struct {
	known                                   bool
	input, cached, output, reasoning, total int64
}

func (u *usage) add(r reply) {
	object, err := rawjson.ParseObject(r.get("usage"))
	if err != nil {
		return
	}
	u.known = true
	u.input += wholeOf(object, "input_tokens")
	u.output += wholeOf(object, "output_tokens")
	u.total += wholeOf(object, "total_tokens")
	u.cached += detailOf(object, "input_tokens_details", "cached_tokens")
	u.reasoning += detailOf(object, "output_tokens_details", "reasoning_tokens")
}

func detailOf(object rawjson.Object, name, detail string) int64 {
	value, _ := object.Get(name)
	details, err := rawjson.ParseObject(value)
	if err != nil {
		return 0
	}
	return wholeOf(details, detail)
}

func wholeOf(object rawjson.Object, name string) int64 {
	value, _ := object.Get(name)
	number, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return 0
	}
	return int64(number)
}

func (u usage) appendJSON(dst []byte) []byte {
	if !u.known {
		return append(dst, "null"...)
	}
	var w, input, output rawjson.ObjectWriter
	input.Int("cached_tokens", u.cached)
	output.Int("reasoning_tokens", u.reasoning)
	w.Int("input_tokens", u.input)
	w.Body("input_tokens_details", input.End())
	w.Int("output_tokens", u.output)
	w.Body("output_tokens_details", output.End())
	w.Int("total_tokens", u.total)
	return append(dst, w.End().Bytes()...)
}

// with is an object with the value of one member replaced, or added at the end.
func with(o rawjson.Object, name string, value []byte) rawjson.Object {
	changed := slices.Clone(o)
	for i := range changed {
		if changed[i].Name == name {
			changed[i].Value = value
			return changed
		}
	}
	return append(changed, member(name, value))
}

func member(name string, value []byte) rawjson.Member {
	return rawjson.Member{Name: name, Key: rawjson.AppendText(nil, name), Value: value}
}

func encode(o rawjson.Object) rawjson.Body {
	var w rawjson.ObjectWriter
	for _, member := range o {
		w.Member(member)
	}
	return w.End()
}

func array(elements [][]byte) []byte {
	out := []byte{'['}
	for i, element := range elements {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, element...)
	}
	return append(out, ']')
}
