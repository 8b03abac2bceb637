package agentserver

import (
	"crypto/rand"
	"errors"
	"net/http"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// responseOf is the Responses object that says what a Chat Completions reply says.
// Of several choices it is the first.
func responseOf(completion []byte) ([]byte, error) {
	response, err := convert(completion)
	if refusal := new(requests.Refusal); errors.As(err, &refusal) {
		return nil, err
	}
	if err != nil {
		return nil, requests.RefuseAs(http.StatusInternalServerError, failures.AgentRunError, "the model's reply: %w", err)
	}
	return response, nil
}

func convert(text []byte) ([]byte, error) {
	completion, err := rawjson.ParseObject(text)
	if err != nil {
		return nil, err
	}
	choice, message, err := firstChoice(completion)
	if err != nil {
		return nil, err
	}
	id := completion.Text("id")
	if id == "" {
		id = "resp_" + rand.Text()
	}
	var w rawjson.ObjectWriter
	w.Text("id", id)
	w.Text("object", "response")
	if created := completion.Present("created"); created != nil {
		w.Value("created_at", created)
	}
	if model := completion.Present("model"); model != nil {
		w.Value("model", model)
	}
	w.Value("output", array(outputItems(message, id)))
	writeStatus(&w, choice.Text("finish_reason"))
	if usage, err := rawjson.ParseObject(completion.Present("usage")); err == nil {
		w.Body("usage", responseUsage(usage))
	}
	return w.End().Bytes(), nil
}

func firstChoice(completion rawjson.Object) (choice, message rawjson.Object, err error) {
	choices, _ := completion.Get("choices")
	words := reply{completion}.errorWords() // a gateway's way to fail with 200
	switch {
	case (!rawjson.IsArray(choices) || rawjson.IsEmpty(choices)) && words != "":
		return nil, nil, modelFailed("the model's reply has no choices%s", words)
	case !rawjson.IsArray(choices) || rawjson.IsEmpty(choices):
		return nil, nil, errors.New("it has no choices")
	}
	if choice, err = rawjson.ParseObject(rawjson.Elements(choices)[0]); err != nil {
		return nil, nil, errors.New("its first choice is no object")
	}
	if choice.Text("finish_reason") == "error" {
		return nil, nil, modelFailed("the model's reply ended in an error%s", reply{choice}.errorWords())
	}
	if message, err = rawjson.ParseObject(choice.Present("message")); err != nil {
		return nil, nil, errors.New("its first choice has no message")
	}
	return choice, message, nil
}

// outputItems are what the model thought, said and called, in that order.
func outputItems(message rawjson.Object, id string) [][]byte {
	var items [][]byte
	if thought := firstText(message, "reasoning_content", "reasoning"); thought != nil {
		items = append(items, reasoningItem(thought, id))
	}
	var parts [][]byte
	if said := textOf(message.Present("content")); said != nil {
		parts = append(parts, outputText(said))
	}
	if refusal := firstText(message, "refusal"); refusal != nil {
		parts = append(parts, chatPart("refusal", "refusal", refusal))
	}
	if parts != nil {
		items = append(items, messageItem(parts, id))
	}
	if calls, _ := message.Get("tool_calls"); rawjson.IsArray(calls) {
		for _, element := range rawjson.Elements(calls) {
			items = append(items, callItem(element))
		}
	}
	return items
}

// firstText is the first of an object's members that is a string which is not empty,
// as it came; nil when none is.
func firstText(o rawjson.Object, names ...string) []byte {
	for _, name := range names {
		if value, _ := o.Get(name); rawjson.IsString(value) && !rawjson.IsEmpty(value) {
			return value
		}
	}
	return nil
}

// textOf is a message's content as one JSON string; nil when it has no text.
func textOf(content []byte) []byte {
	if rawjson.IsArray(content) {
		content = rawjson.AppendText(nil, contentText(content))
	}
	if !rawjson.IsString(content) || rawjson.IsEmpty(content) {
		return nil
	}
	return content
}

// reasoningItem keeps the thoughts as a summary, as NeMo Gym's model servers do:
// readers of a conversation look for them there.
func reasoningItem(thought []byte, id string) []byte {
	var w rawjson.ObjectWriter
	w.Text("type", "reasoning")
	w.Text("id", "rs_"+id)
	w.Value("summary", array([][]byte{chatPart("summary_text", "text", thought)}))
	return w.End().Bytes()
}

func messageItem(parts [][]byte, id string) []byte {
	var w rawjson.ObjectWriter
	w.Text("type", "message")
	w.Text("id", "msg_"+id)
	w.Text("role", "assistant")
	w.Text("status", "completed")
	w.Value("content", array(parts))
	return w.End().Bytes()
}

func outputText(text []byte) []byte {
	var w rawjson.ObjectWriter
	w.Text("type", "output_text")
	w.Value("text", text)
	w.Value("annotations", []byte("[]"))
	return w.End().Bytes()
}

// callItem is a call of a function. Some servers give it no id, by which its output
// would find it, or no arguments when there are none to give.
func callItem(element []byte) []byte {
	call, _ := rawjson.ParseObject(element)
	called, _ := rawjson.ParseObject(call.Present("function"))
	id := call.Text("id")
	if id == "" {
		id = "call_" + rand.Text()
	}
	arguments := called.Present("arguments")
	switch {
	case arguments == nil || rawjson.IsString(arguments) && rawjson.IsEmpty(arguments):
		arguments = []byte(`"{}"`)
	case !rawjson.IsString(arguments):
		arguments = rawjson.AppendText(nil, string(arguments))
	}
	var w rawjson.ObjectWriter
	w.Text("type", "function_call")
	w.Text("id", "fc_"+id)
	w.Text("call_id", id)
	w.Text("name", called.Text("name"))
	w.Value("arguments", arguments)
	w.Text("status", "completed")
	return w.End().Bytes()
}

// writeStatus says whether the model came to its end.
func writeStatus(w *rawjson.ObjectWriter, finish string) {
	reason := ""
	switch finish {
	case "length":
		reason = "max_output_tokens"
	case "content_filter":
		reason = "content_filter"
	default:
		w.Text("status", "completed")
		return
	}
	var details rawjson.ObjectWriter
	details.Text("reason", reason)
	w.Text("status", "incomplete")
	w.Body("incomplete_details", details.End())
}

// responseUsage is what the reply cost, under the names of the Responses API.
func responseUsage(u rawjson.Object) rawjson.Body {
	var w, input, output rawjson.ObjectWriter
	input.Int("cached_tokens", detailOf(u, "prompt_tokens_details", "cached_tokens"))
	output.Int("reasoning_tokens", detailOf(u, "completion_tokens_details", "reasoning_tokens"))
	w.Int("input_tokens", wholeOf(u, "prompt_tokens"))
	w.Body("input_tokens_details", input.End())
	w.Int("output_tokens", wholeOf(u, "completion_tokens"))
	w.Body("output_tokens_details", output.End())
	w.Int("total_tokens", wholeOf(u, "total_tokens"))
	return w.End()
}
