package agentserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/requests"
)

// A Scripted model follows a policy written in Go, where a language model would
// be: in demonstrations, which must not need one, and in tests, which must know
// what it does. The same conversation always brings the same answer, ids
// included.
type Scripted struct {
	// Name is the model's name in its responses.
	Name string
	// Play is the policy. Required.
	Play func(Conversation) Move
	// Clock dates the responses. Nil: time.Now.
	Clock func() time.Time
}

// A Conversation is what a policy sees.
type Conversation struct {
	Messages []Message  // in order
	Tools    []string   // the functions that it may call
	Calls    []ToolCall // the calls made so far, in order
}

// A Message is something that was said.
type Message struct{ Role, Text string }

// A ToolCall is a call of a tool, and its output once there is one.
type ToolCall struct {
	Name      string
	Arguments json.RawMessage
	Output    string
	id        string
}

// LastSaid is the text of the last message of a role, "" when there is none.
func (c Conversation) LastSaid(role string) string {
	for i := len(c.Messages) - 1; i >= 0; i-- {
		if c.Messages[i].Role == role {
			return c.Messages[i].Text
		}
	}
	return ""
}

// A Move is what a policy does next: it calls tools, or says something, or both.
type Move struct {
	Say   string
	Calls []ToolCall // Name and Arguments
}

// Respond answers as a Responses endpoint would.
func (m *Scripted) Respond(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	conversation, err := readConversation(params)
	if err != nil {
		return nil, err
	}
	move := m.Play(conversation)
	hash := sha256.Sum256(params)
	return jsonapi.Marshal(m.response(params, conversation, move, hex.EncodeToString(hash[:12])))
}

func (m *Scripted) response(params json.RawMessage, conversation Conversation, move Move, id string) map[string]any {
	clock := m.Clock
	if clock == nil {
		clock = time.Now
	}
	read, spoken := conversation.words(), move.words()
	return map[string]any{
		"id":                  "resp_" + id,
		"created_at":          clock().Unix(),
		"error":               nil,
		"incomplete_details":  nil,
		"instructions":        nil,
		"metadata":            map[string]any{},
		"model":               m.Name,
		"object":              "response",
		"output":              move.items(id),
		"parallel_tool_calls": true,
		"status":              "completed",
		"temperature":         nil,
		"tool_choice":         "auto",
		"tools":               toolsOf(params),
		"top_p":               nil,
		"usage": map[string]any{
			"input_tokens":          read,
			"input_tokens_details":  map[string]any{"cached_tokens": 0},
			"output_tokens":         spoken,
			"output_tokens_details": map[string]any{"reasoning_tokens": 0},
			"total_tokens":          read + spoken,
		},
	}
}

func (m Move) items(id string) []any {
	items := []any{}
	if m.Say != "" {
		items = append(items, map[string]any{
			"type": "message", "id": "msg_" + id, "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": m.Say, "annotations": []any{}}},
		})
	}
	for i, call := range m.Calls {
		items = append(items, map[string]any{
			"type": "function_call", "id": fmt.Sprintf("fc_%s_%d", id, i), "call_id": fmt.Sprintf("call_%s_%d", id, i),
			"name": call.Name, "arguments": string(call.Arguments), "status": "completed",
		})
	}
	return items
}

// A script counts words for tokens: a number that grows with the conversation
// is all that a reader of its usage can want.

func (c Conversation) words() int {
	count := 0
	for _, message := range c.Messages {
		count += len(strings.Fields(message.Text))
	}
	for _, call := range c.Calls {
		count += len(strings.Fields(call.Output)) + len(strings.Fields(string(call.Arguments)))
	}
	return count
}

func (m Move) words() int {
	count := len(strings.Fields(m.Say))
	for _, call := range m.Calls {
		count += len(strings.Fields(string(call.Arguments)))
	}
	return count
}

func toolsOf(params json.RawMessage) json.RawMessage {
	object, _ := rawjson.ParseObject(params)
	if tools, _ := object.Get("tools"); rawjson.IsArray(tools) {
		return tools
	}
	return json.RawMessage("[]")
}

func readConversation(params json.RawMessage) (Conversation, error) {
	fields := requests.Read(params, "body")
	var c Conversation
	for _, item := range fields.List("input") {
		members, _ := rawjson.ParseObject(item.JSON()) // one that is no object is a fault already
		c.read(members)
	}
	for _, element := range rawjson.Elements(toolsOf(params)) {
		if tool, err := rawjson.ParseObject(element); err == nil && tool.Text("type") == "function" {
			c.Tools = append(c.Tools, tool.Text("name"))
		}
	}
	return c, fields.Err()
}

// read adds one item of the input. An item without a type is a message.
func (c *Conversation) read(item rawjson.Object) {
	switch item.Text("type") {
	case "", "message":
		content, _ := item.Get("content")
		c.Messages = append(c.Messages, Message{Role: item.Text("role"), Text: contentText(content)})
	case "function_call":
		c.Calls = append(c.Calls, ToolCall{
			Name: item.Text("name"), Arguments: json.RawMessage(item.Text("arguments")), id: item.Text("call_id"),
		})
	case "function_call_output":
		for i := range c.Calls {
			if c.Calls[i].id == item.Text("call_id") {
				c.Calls[i].Output = item.Text("output")
			}
		}
	}
}

// contentText is the text of a message's content: a string, or a list of parts.
func contentText(content []byte) string {
	if text, ok := rawjson.Text(content); ok {
		return text
	}
	if !rawjson.IsArray(content) {
		return ""
	}
	var texts []string
	for _, element := range rawjson.Elements(content) {
		if part, err := rawjson.ParseObject(element); err == nil {
			texts = append(texts, part.Text("text"))
		}
	}
	return strings.Join(texts, "\n")
}
