package agentserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
)

// An access is a way for a session to reach tools (section 2).
type access interface {
	// has reports whether a call of that tool belongs here.
	has(name string) bool
	// call calls a tool that it has. The error is of a call that got no answer,
	// which is nothing that the model could learn from.
	call(ctx context.Context, s *Server, call functionCall) (toolOutput, error)
}

// accesses are those of one session.
type accesses struct {
	inOrder []access      // as the seed has them
	direct  *directAccess // the one among them; nil when there is none
	mcp     []*mcpAccess  // those among them
}

// to is the access that a call of the tool goes to: the first that has it. It is
// nil when none does.
func (a accesses) to(name string) access {
	for _, access := range a.inOrder {
		if access.has(name) {
			return access
		}
	}
	return nil
}

// open opens the MCP accesses, which is what tells the session's tools. One that
// is not required is done without when it cannot be opened.
func (a accesses) open(ctx context.Context, s *Server) error {
	for _, access := range a.mcp {
		err := access.open(ctx, s)
		switch {
		case err == nil:
		case access.required || ctx.Err() != nil:
			return requests.RefuseAs(http.StatusBadGateway, failures.AgentRequestFailed,
				"the MCP access %s could not be opened: %w", access.name, err)
		default:
			s.config.Logger.Warn().Str("access", access.name).Err(err).Msg("an MCP access that is not required was left out")
		}
	}
	return nil
}

// close gives the MCP sessions up.
func (a accesses) close(ctx context.Context) {
	for _, access := range a.mcp {
		access.close(ctx)
	}
}

// offered are the create params of a turn with the tools that MCP servers list
// added to theirs. A tool that they name already stays as they have it; tools
// that are no list are left for the model to refuse.
func (a accesses) offered(params rawjson.Object) rawjson.Object {
	value, _ := params.Get("tools")
	if len(value) > 0 && !rawjson.IsNull(value) && !rawjson.IsArray(value) {
		return params
	}
	var tools [][]byte
	if rawjson.IsArray(value) {
		tools = rawjson.Elements(value)
	}
	named := namesOf(tools)
	before := len(tools)
	for _, access := range a.mcp {
		for _, tool := range access.tools {
			if !named[tool.name] {
				named[tool.name] = true
				tools = append(tools, tool.definition)
			}
		}
	}
	if len(tools) == before {
		return params
	}
	return with(params, "tools", array(tools))
}

func namesOf(tools [][]byte) map[string]bool {
	names := map[string]bool{}
	for _, element := range tools {
		if tool, err := rawjson.ParseObject(element); err == nil {
			names[tool.Text("name")] = true
		}
	}
	return names
}

// call calls a tool and returns the function_call_output for the conversation.
// The error is of a call that got no answer, which is nothing that the model
// could learn from.
func (t *turn) call(ctx context.Context, call functionCall) ([]byte, error) {
	began := t.server.config.Clock()
	output, err := t.outputOf(ctx, call)
	t.session.seen.toolCall(t.id, call, output, began, t.server.config.Clock(), err)
	if err != nil {
		return nil, err
	}
	var w rawjson.ObjectWriter
	w.Text("type", "function_call_output")
	w.Text("call_id", call.id)
	w.Text("output", output.text)
	return w.End().Bytes(), nil
}

// A toolOutput is what the model gets to read. problem says why it is not what
// was asked for; "" when it is.
type toolOutput struct{ text, problem string }

func refused(problem, format string, args ...any) toolOutput {
	var w rawjson.ObjectWriter
	w.Text("error", fmt.Sprintf(format, args...))
	return toolOutput{text: string(w.End().Bytes()), problem: problem}
}

func noSuchTool(call functionCall) toolOutput {
	return refused("no_such_tool", "There is no tool of the name %q", call.name)
}

func tooLong(call functionCall, limit int64) toolOutput {
	return refused("output_too_long", "The output of tool %s is longer than %d bytes", call.name, limit)
}

func (t *turn) outputOf(ctx context.Context, call functionCall) (toolOutput, error) {
	access := t.session.tools.to(call.name)
	switch {
	case !isToolName(call.name):
		return noSuchTool(call), nil
	case !rawjson.Valid([]byte(call.arguments)):
		return refused("invalid_arguments", "Invalid tool call arguments: %v", rawjson.Check([]byte(call.arguments))), nil
	case len(t.session.tools.inOrder) == 0:
		return toolOutput{}, requests.RefuseAs(http.StatusUnprocessableEntity, failures.AgentRunError,
			"the model called tool %s, but this agent session was given no tool access", call.name)
	case access == nil:
		return noSuchTool(call), nil
	}
	return access.call(ctx, t.server, call)
}

// isToolName reports whether a model may have that name called, by whatever
// access. It may become a path on the resources server: one that is no plain name
// could leave the base URL.
func isToolName(name string) bool {
	return !protocol.IsReserved(name) && protocol.CheckName(strings.TrimLeft(name, "_")) == nil
}
