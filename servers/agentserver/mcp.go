package agentserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

const (
	// mcpVersion is the version of MCP that is asked for. The SDK's own choice, a
	// later one, is tried before the initialize that servers in the field know: a
	// refused call more per session.
	mcpVersion = "2025-11-25"

	// maxToolPages ends a list of tools that has no end.
	maxToolPages = 100
)

// An mcpAccess reaches tools through an MCP session, which is opened in the first
// turn that needs it and kept until the agent session closes.
type mcpAccess struct {
	name     string
	required bool
	url      string
	headers  []protocol.Pair // a session token is in one

	wire    *mcpWire
	session *mcp.ClientSession // nil: not open
	tools   []mcpTool          // that the server lists and a model may call, in its order
}

// An mcpTool is a tool as a model is told of it.
type mcpTool struct {
	name       string
	definition []byte // an entry of the create params' tools
}

// open opens the session and lists its tools, unless that is done already. The
// error holds nothing of the URL and the headers, and no words of the server's,
// which may repeat them.
func (a *mcpAccess) open(ctx context.Context, s *Server) error {
	if a.session != nil {
		return nil
	}
	wire := newMCPWire(a, s)
	// The SDK says farewell when it fails, and waits for the answer.
	keep := context.AfterFunc(ctx, wire.cut)
	session, err := wire.connect(ctx, s.config.Name)
	if err != nil {
		wire.cut()
		return withoutWords(err)
	}
	tools, err := listTools(ctx, wire, session)
	if err == nil && !keep() {
		err = context.Cause(ctx)
	}
	if err != nil {
		wire.end(ctx, session)
		return withoutWords(err)
	}
	a.wire, a.session, a.tools = wire, session, tools
	return nil
}

// withoutWords keeps the code of a JSON-RPC error only.
func withoutWords(err error) error {
	var answered *jsonrpc.Error
	if errors.As(err, &answered) {
		return fmt.Errorf("the MCP server answered with error %d", answered.Code)
	}
	return err
}

func listTools(ctx context.Context, wire *mcpWire, session *mcp.ClientSession) ([]mcpTool, error) {
	var tools []mcpTool
	cursor, size := "", int64(0)
	for range maxToolPages {
		page, err := wire.result(func() error {
			_, err := session.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, tool := range readTools(page) {
			if size += int64(len(tool.definition)); size > wire.limit { // that of one page
				return nil, errReplyTooLong
			}
			tools = append(tools, tool)
		}
		if cursor = page.Text("nextCursor"); cursor == "" {
			return tools, nil
		}
	}
	return nil, fmt.Errorf("the MCP server lists its tools in more than %d pages", maxToolPages)
}

// readTools reads a page of tools. Those that no model may call are left out.
func readTools(page rawjson.Object) []mcpTool {
	var tools []mcpTool
	for _, element := range elementsOf(page, "tools") {
		tool, err := rawjson.ParseObject(element)
		if err != nil || !isToolName(tool.Text("name")) {
			continue
		}
		tools = append(tools, mcpTool{name: tool.Text("name"), definition: definitionOf(tool)})
	}
	return tools
}

func definitionOf(tool rawjson.Object) []byte {
	description, _ := tool.Get("description")
	schema, _ := tool.Get("inputSchema")
	var w rawjson.ObjectWriter
	w.Text("type", "function")
	w.Text("name", tool.Text("name"))
	w.Value("description", rawjson.OrNull(description))
	w.Value("parameters", rawjson.OrNull(schema))
	w.Bool("strict", false)
	return w.End().Bytes()
}

func (a *mcpAccess) has(name string) bool {
	return slices.ContainsFunc(a.tools, func(tool mcpTool) bool { return tool.name == name })
}

func (a *mcpAccess) call(ctx context.Context, s *Server, call functionCall) (toolOutput, error) {
	result, err := a.wire.result(func() error {
		_, err := a.session.CallTool(ctx, &mcp.CallToolParams{Name: call.name, Arguments: json.RawMessage(call.arguments)})
		return err
	})
	if err != nil && ctx.Err() != nil {
		a.wire.abandon()
	}
	var answered *jsonrpc.Error
	switch {
	case errors.As(err, &answered):
		return refused("mcp_protocol_error", "%s", answered.Message), nil
	case errors.Is(err, errReplyTooLong):
		return tooLong(call, s.config.MaxOutputBytes), nil
	case err != nil:
		return toolOutput{}, unanswered(call, err)
	}
	output := readResult(result)
	if int64(len(output.text)) > s.config.MaxOutputBytes {
		return tooLong(call, s.config.MaxOutputBytes), nil
	}
	return output, nil
}

// readResult reads the result of a tools/call: its texts, or its structured
// content when it has none. Other content is only named.
func readResult(result rawjson.Object) toolOutput {
	var parts []string
	hasText := false
	for _, element := range elementsOf(result, "content") {
		content, err := rawjson.ParseObject(element)
		switch {
		case err != nil:
		case content.Text("type") == "text":
			parts, hasText = append(parts, content.Text("text")), true
		default:
			parts = append(parts, noteOf(content))
		}
	}
	structured, _ := result.Get("structuredContent")
	if !hasText && len(structured) > 0 && !rawjson.IsNull(structured) {
		parts = append(parts, compact(structured))
	}
	output := toolOutput{text: strings.Join(parts, "\n")}
	if isError, _ := result.Get("isError"); string(isError) == "true" {
		output.problem = "mcp_error"
	}
	return output
}

// noteOf stands for content that is no text.
func noteOf(content rawjson.Object) string {
	var w rawjson.ObjectWriter
	w.Text("type", content.Text("type"))
	if mimeType := content.Text("mimeType"); mimeType != "" {
		w.Text("mimeType", mimeType)
	}
	w.Text("note", "left out: this agent reads texts only")
	return string(w.End().Bytes())
}

func compact(value []byte) string {
	var out bytes.Buffer
	_ = json.Compact(&out, value) // it is JSON: it was a member of an object
	return out.String()
}

func elementsOf(object rawjson.Object, name string) [][]byte {
	value, _ := object.Get(name)
	if !rawjson.IsArray(value) {
		return nil
	}
	return rawjson.Elements(value)
}

// close gives the MCP session up.
func (a *mcpAccess) close(ctx context.Context) {
	if a.session == nil {
		return
	}
	a.wire.end(ctx, a.session)
	a.session, a.tools = nil, nil
}
