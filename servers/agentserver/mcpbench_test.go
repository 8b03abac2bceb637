package agentserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// token is what every MCP request must carry, and no error, log or model see.
const token = "mcp-token-9f3a"

// An mcpBox is an MCP server on a real socket that keeps what it was sent.
type mcpBox struct {
	server    *mcp.Server
	listener  *httptest.Server
	url       string
	mu        sync.Mutex
	requests  []mcpRequest
	interfere http.HandlerFunc // is asked first; what it writes is the answer
}

// An mcpRequest is an HTTP request to an MCP server, as far as it matters.
type mcpRequest struct{ Verb, Method, Token, Version, Body string }

// newMCPBox serves an MCP server, which has no tools yet.
func newMCPBox(t *testing.T, options *mcp.StreamableHTTPOptions, serverOptions *mcp.ServerOptions) *mcpBox {
	t.Helper()
	b := &mcpBox{server: mcp.NewServer(&mcp.Implementation{Name: "box", Version: "1"}, serverOptions)}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return b.server }, options)
	b.serve(t, handler)
	t.Cleanup(func() { // those that nobody ended
		for session := range b.server.Sessions() {
			_ = session.Close()
		}
	})
	return b
}

// newFakeMCPBox serves results that no MCP server of the SDK's would give: one a
// JSON-RPC method, in JSON.
func newFakeMCPBox(t *testing.T, results map[string]string) *mcpBox {
	t.Helper()
	b := &mcpBox{}
	b.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			ID     *int
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&request)
		result, known := results[request.Method]
		switch {
		case request.ID == nil:
			w.WriteHeader(http.StatusAccepted)
		case known:
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"result":%s}`, *request.ID, result)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"nothing here for %s"}}`, *request.ID, token)
		}
	}))
	return b
}

const initialized = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`

func (b *mcpBox) serve(t *testing.T, handler http.Handler) {
	b.listener = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.note(r)
		if b.interfere != nil {
			answer := &firstWrite{ResponseWriter: w}
			if b.interfere(answer, r); answer.written {
				return
			}
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(b.listener.Close)
	b.url = b.listener.URL + "/mcp?key=" + token
}

// A firstWrite knows whether anything was answered.
type firstWrite struct {
	http.ResponseWriter
	written bool
}

func (w *firstWrite) WriteHeader(status int) {
	w.written = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *firstWrite) Write(p []byte) (int, error) {
	w.written = true
	return w.ResponseWriter.Write(p)
}

func (w *firstWrite) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (b *mcpBox) note(r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var message struct{ Method string }
	_ = json.Unmarshal(body, &message)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, mcpRequest{
		Verb: r.Method, Method: message.Method, Token: r.Header.Get("X-Session-Token"),
		Version: r.Header.Get("Mcp-Protocol-Version"), Body: string(body),
	})
}

// seen is what was sent so far.
func (b *mcpBox) seen() []mcpRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// sent is how often a JSON-RPC method was sent.
func (b *mcpBox) sent(method string) int {
	count := 0
	for _, request := range b.seen() {
		if request.Method == method {
			count++
		}
	}
	return count
}

// lastMethod is the JSON-RPC method of the last request.
func (b *mcpBox) lastMethod() string {
	seen := b.seen()
	return seen[len(seen)-1].Method
}

const noArguments = `{"type":"object"}`

// add adds a tool.
func (b *mcpBox) add(name, schema string, handler mcp.ToolHandler) {
	b.server.AddTool(&mcp.Tool{Name: name, Description: "to " + name, InputSchema: json.RawMessage(schema)}, handler)
}

// telling is a tool that says something.
func telling(text string) mcp.ToolHandler {
	return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
	}
}

// definition is a tool of an MCP server as the model is told of it.
func definition(name, schema string) string {
	return fmt.Sprintf(`{"type":"function","name":%q,"description":"to %s","parameters":%s,"strict":false}`, name, name, schema)
}

// access is a session's access to the box.
func (b *mcpBox) access(name string, required bool) string {
	return mcpAccess(name, required, b.url)
}

func mcpAccess(name string, required bool, url string) string {
	return fmt.Sprintf(`{"kind":"mcp","name":%q,"required":%t,"connection":{"transport":"streamable_http","url":%q,"headers":{"X-Session-Token":%q,"Accept":"nothing"}}}`,
		name, required, url, token)
}
