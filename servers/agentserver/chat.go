package agentserver

import (
	"net/http"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// chatParams are the params of a Chat Completions call that ask what the create
// params of a Responses call ask. Values that both have in one form are not decoded.
func chatParams(params []byte) ([]byte, error) {
	fields := requests.Read(params, "body")
	messages, err := chatMessages(fields)
	if err != nil {
		return nil, err
	}
	tools, err := chatTools(fields)
	if err != nil {
		return nil, err
	}
	if err := fields.Err(); err != nil {
		return nil, err
	}
	object, _ := rawjson.ParseObject(params) // it is an object: fields were read of it
	var chat rawjson.Object
	for _, member := range object {
		if rawjson.IsNull(member.Value) {
			continue // as if it were not there, which more servers understand
		}
		if chat, err = addChatParam(chat, member, len(tools) > 0); err != nil {
			return nil, err
		}
	}
	if len(tools) > 0 {
		chat = with(chat, "tools", array(tools))
	}
	return encode(with(chat, "messages", array(messages))).Bytes(), nil
}

// addChatParam adds what one member of the create params says, besides its input and
// its tools.
func addChatParam(chat rawjson.Object, param rawjson.Member, hasTools bool) (rawjson.Object, error) {
	switch param.Name {
	case "input", "instructions", "tools":
		return chat, nil
	case "background", "context_management", "include", "max_tool_calls", "metadata", "store", "stream", "stream_options",
		"top_logprobs", "truncation":
		return chat, nil
	case "conversation", "previous_response_id", "prompt":
		return nil, unsayable("%s", param.Name)
	case "tool_choice":
		if !hasTools { // a choice without tools is a mistake there
			return chat, nil
		}
		choice, err := chatToolChoice(param.Value)
		return with(chat, "tool_choice", choice), err
	case "parallel_tool_calls":
		if !hasTools {
			return chat, nil
		}
	case "max_output_tokens":
		return with(chat, "max_tokens", param.Value), nil
	case "reasoning":
		return withPart(chat, "reasoning_effort", param.Value, "effort"), nil
	case "text":
		return withFormat(withPart(chat, "verbosity", param.Value, "verbosity"), param.Value), nil
	}
	return with(chat, param.Name, param.Value), nil
}

// unsayable refuses what an endpoint without the Responses API cannot be asked.
func unsayable(format string, args ...any) error {
	return requests.RefuseAs(http.StatusUnprocessableEntity, failures.AgentRunError,
		"the model endpoint has no Responses API, and Chat Completions have no "+format, args...)
}

// withPart is an object with one member of another one, under another name, if it is
// there.
func withPart(o rawjson.Object, name string, of []byte, part string) rawjson.Object {
	object, _ := rawjson.ParseObject(of)
	if value := object.Present(part); value != nil {
		return with(o, name, value)
	}
	return o
}

// withFormat adds the format that text is wanted in: that of a schema is nested
// once more.
func withFormat(chat rawjson.Object, text []byte) rawjson.Object {
	chat = withPart(chat, "response_format", text, "format")
	value, _ := chat.Get("response_format")
	format, err := rawjson.ParseObject(value)
	if err != nil || format.Text("type") != "json_schema" {
		return chat
	}
	var w rawjson.ObjectWriter
	w.Text("type", "json_schema")
	w.Body("json_schema", withoutType(format))
	return with(chat, "response_format", w.End().Bytes())
}

// withoutType is an object as it is nested in Chat Completions, where its type
// stands outside.
func withoutType(o rawjson.Object) rawjson.Body {
	var w rawjson.ObjectWriter
	for _, member := range o {
		if member.Name != "type" && !rawjson.IsNull(member.Value) {
			w.Member(member)
		}
	}
	return w.End()
}

func chatTools(fields *requests.Fields) ([][]byte, error) {
	if !fields.Has("tools") {
		return nil, nil
	}
	var tools [][]byte
	for _, tool := range fields.List("tools") {
		if kind := tool.Text("type"); kind != "function" && kind != "" {
			return nil, unsayable("tool of type %q", kind)
		}
		tools = append(tools, function(tool.JSON()))
	}
	return tools, nil
}

// function is a function tool, or the choice of one, in its nested form.
func function(flat []byte) []byte {
	object, _ := rawjson.ParseObject(flat) // one that is no object is a fault already
	var w rawjson.ObjectWriter
	w.Text("type", "function")
	w.Body("function", withoutType(object))
	return w.End().Bytes()
}

// chatToolChoice is a choice of tools: a word is the same in both, that of one
// function is nested.
func chatToolChoice(choice []byte) ([]byte, error) {
	object, err := rawjson.ParseObject(choice)
	if err != nil {
		return choice, nil
	}
	if kind := object.Text("type"); kind != "function" {
		return nil, unsayable("tool_choice of type %q", kind)
	}
	return function(choice), nil
}

// chatMessages are the input, with the instructions before it.
func chatMessages(fields *requests.Fields) ([][]byte, error) {
	var t transcript
	if fields.Has("instructions") {
		t.add("system", rawText(fields, "instructions"))
	}
	if fields.Array("input") == nil {
		return nil, nil // a fault
	}
	for _, item := range fields.List("input") {
		if err := t.item(item); err != nil {
			return nil, err
		}
	}
	t.endSaid()
	return t.messages, nil
}

// rawText is a required string, as it came.
func rawText(fields *requests.Fields, name string) []byte {
	value := fields.Value(name)
	if value != nil && !rawjson.IsString(value) {
		fields.Fault(name, "string_type", "Input should be a valid string")
	}
	return value
}

// A transcript is the messages of a conversation. What the model said and called in
// one go, several items in the Responses API, is one message.
type transcript struct {
	messages [][]byte
	said     []byte   // by the model, in the message that is being put together; nil: nothing
	calls    [][]byte // of the model, in that message
}

// item adds one item of the input. An item without a type is a message. One that is
// not what it should be leaves a fault, and what is made of it is not used.
func (t *transcript) item(item *requests.Fields) error {
	kind := "message"
	if item.Has("type") {
		kind = item.Text("type")
	}
	switch kind {
	case "message":
		return t.message(item)
	case "function_call":
		t.call(item)
	case "function_call_output":
		return t.output(item)
	case "reasoning": // is the model's own, and most servers take none back
	default:
		return unsayable("item of type %q", kind)
	}
	return nil
}

func (t *transcript) message(item *requests.Fields) error {
	role := item.NonEmpty("role")
	content, err := chatContent(item, "content")
	switch {
	case err != nil:
		return err
	case role == "assistant":
		if t.said != nil {
			t.endSaid()
		}
		t.said = content
	case role == "developer": // few servers know it, and their templates none
		t.add("system", content)
	default:
		t.add(role, content)
	}
	return nil
}

func (t *transcript) call(item *requests.Fields) {
	var called, call rawjson.ObjectWriter
	called.Value("name", rawText(item, "name"))
	called.Value("arguments", rawText(item, "arguments"))
	call.Value("id", rawText(item, "call_id"))
	call.Text("type", "function")
	call.Body("function", called.End())
	t.calls = append(t.calls, call.End().Bytes())
}

func (t *transcript) output(item *requests.Fields) error {
	t.endSaid()
	content, err := chatContent(item, "output")
	if err != nil {
		return err
	}
	var w rawjson.ObjectWriter
	w.Text("role", "tool")
	w.Value("tool_call_id", rawText(item, "call_id"))
	w.Value("content", content)
	t.messages = append(t.messages, w.End().Bytes())
	return nil
}

// add adds a message of somebody else than the model.
func (t *transcript) add(role string, content []byte) {
	t.endSaid()
	var w rawjson.ObjectWriter
	w.Text("role", role)
	w.Value("content", content)
	t.messages = append(t.messages, w.End().Bytes())
}

// endSaid ends the model's message, if there is one.
func (t *transcript) endSaid() {
	if t.said == nil && t.calls == nil {
		return
	}
	var w rawjson.ObjectWriter
	w.Text("role", "assistant")
	w.Value("content", rawjson.OrNull(t.said))
	if t.calls != nil {
		w.Value("tool_calls", array(t.calls))
	}
	t.messages = append(t.messages, w.End().Bytes())
	t.said, t.calls = nil, nil
}

// chatContent is the content of a message, or the output of a function: a string, or
// a list of parts. A single text is a string, which every server takes.
func chatContent(item *requests.Fields, name string) ([]byte, error) {
	value := item.Value(name)
	switch {
	case value == nil || rawjson.IsString(value):
		return value, nil
	case !rawjson.IsArray(value):
		item.Fault(name, "value_error", "Input should be a valid string or list")
		return nil, nil
	}
	var parts [][]byte
	var text []byte
	for _, part := range item.List(name) {
		switch kind := part.Text("type"); kind {
		case "": // a fault
		case "input_text", "output_text", "text":
			text = rawText(part, "text")
			parts = append(parts, chatPart("text", "text", text))
		case "refusal":
			parts = append(parts, chatPart("refusal", "refusal", rawText(part, "refusal")))
		case "input_image":
			image, err := chatImage(part)
			if err != nil {
				return nil, err
			}
			parts = append(parts, image)
		default:
			return nil, unsayable("content of type %q", kind)
		}
	}
	switch {
	case len(parts) == 0:
		return []byte(`""`), nil
	case len(parts) == 1 && text != nil:
		return text, nil
	}
	return array(parts), nil
}

func chatPart(kind, name string, value []byte) []byte {
	var w rawjson.ObjectWriter
	w.Text("type", kind)
	w.Value(name, value)
	return w.End().Bytes()
}

func chatImage(part *requests.Fields) ([]byte, error) {
	if !part.Has("image_url") {
		return nil, unsayable("image without an image_url")
	}
	var w rawjson.ObjectWriter
	w.Value("url", rawText(part, "image_url"))
	if part.Has("detail") {
		w.Value("detail", rawText(part, "detail"))
	}
	return chatPart("image_url", "image_url", w.End().Bytes()), nil
}
