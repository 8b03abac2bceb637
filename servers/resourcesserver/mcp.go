package resourcesserver

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
)

// headerMCPSession carries the token by which a call over MCP finds its session. The
// name is NeMo Gym's.
const headerMCPSession = "X-NeMo-Gym-Session-Token"

// newMCP serves over MCP the tools that have parameters; nil when there are none.
// It keeps no MCP sessions, so that there is nothing to leak: the token that comes
// with each call names the resources session.
func (s *Server) newMCP() http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: s.environment.name, Version: "1"}, nil)
	offered := false
	for _, tool := range s.environment.tools {
		if tool.parameters == nil {
			continue
		}
		offered = true
		server.AddTool(&mcp.Tool{
			Name:        tool.name,
			Description: tool.description,
			InputSchema: tool.parameters,
		}, s.mcpTool(tool))
	}
	if !offered {
		return nil
	}
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
		Stateless:                    true,
		JSONResponse:                 true,
		MaxRequestBodyBytes:          s.limit,
		PropagateRequestCancellation: true,
		// It would refuse callers that reach a server on loopback by another name,
		// through a tunnel or a sidecar. What a web page could do here it could do by
		// the tools' own routes.
		DisableLocalhostProtection: true,
	})
}

// mcpTool is a tool as MCP calls it. What its route would answer is the text of the
// result, a refusal too.
func (s *Server) mcpTool(t tool) mcp.ToolHandler {
	return func(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		body, err := jsonapi.Guarded(func() (rawjson.Body, error) {
			arguments := request.Params.Arguments
			if len(arguments) == 0 {
				arguments = json.RawMessage("{}")
			}
			if err := jsonapi.CheckObject(arguments, "body"); err != nil {
				return nil, err
			}
			return s.call(ctx, t, s.tokenPass(request.Extra.Header.Get(headerMCPSession)), arguments)
		})
		if err != nil {
			s.router.Log(ctx, protocol.PathMCP+" "+t.name, err)
			body = jsonapi.ErrorBody(err)
		}
		return &mcp.CallToolResult{
			Content: []mcp.Content{&mcp.TextContent{Text: string(body.Bytes())}},
			IsError: err != nil,
		}, nil
	}
}

// appendMCPTools appends the resources_tools of a seed's reply.
func (s *Server) appendMCPTools(id string) func([]byte) []byte {
	return func(dst []byte) []byte {
		var w, headers rawjson.ObjectWriter
		headers.Text(headerMCPSession, s.tokens.Value(id))
		w.Text("server_name", s.environment.name)
		w.Text("url_path", protocol.PathMCP)
		w.Text("transport", "http")
		w.Body("headers", headers.End())
		return append(dst, w.End().Bytes()...)
	}
}
