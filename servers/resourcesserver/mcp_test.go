package resourcesserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"example.com/turn/servers/resourcesserver"
)

// A listing is an environment with tools of every sort.
func listing(book *book) resourcesserver.TaskEnvironment[*ledger] {
	environment := book.environment()
	schema := json.RawMessage(`{"type":"object","properties":{"line":{"type":"string"}},"required":["line"]}`)
	environment.Tools = []resourcesserver.Tool[*ledger]{
		{Name: "add", Description: "Adds a line.", Parameters: schema, Call: book.add},
		{Name: "hidden", Call: book.add},
		{Name: "echo", Parameters: json.RawMessage(`{"type":"object"}`), Stateless: func(_ context.Context, arguments json.RawMessage) (any, error) {
			return arguments, nil
		}},
		{Name: "refuse", Parameters: schema, Call: refuse},
		{Name: "abort", Parameters: schema, Stateless: func(context.Context, json.RawMessage) (any, error) { panic(http.ErrAbortHandler) }},
		{Name: "panic", Parameters: schema, Stateless: func(context.Context, json.RawMessage) (any, error) { panic("a bug") }},
		{Name: "break", Parameters: schema, Call: func(context.Context, *ledger, json.RawMessage) (any, error) { return nil, errors.New("out of ink") }},
	}
	return environment
}

// newListing serves a listing.
func newListing(t *testing.T) *bench {
	t.Helper()
	book := &book{}
	server, err := resourcesserver.New(listing(book), resourcesserver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	b.book = book
	return b
}

// An offer is the resources_tools of a seed's reply.
type offer struct {
	ServerName string            `json:"server_name"`
	URLPath    string            `json:"url_path"`
	Transport  string            `json:"transport"`
	Headers    map[string]string `json:"headers"`
}

func (b *bench) seedForMCP(id string) (cookie string, tools offer) {
	b.Helper()
	got := b.post("/seed_session", "", seedBody(id, episode0, task0, annsData))
	var answer struct {
		Tools offer `json:"resources_tools"`
	}
	if err := json.Unmarshal([]byte(got.Body), &answer); err != nil {
		b.Fatal(err)
	}
	return got.Cookie, answer.Tools
}

// withHeaders sends headers with every request.
type withHeaders map[string]string

func (h withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h {
		r.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// connect opens an MCP session at a path.
func (b *bench) connect(path string, headers map[string]string) *mcp.ClientSession {
	b.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(b.Context(), &mcp.StreamableClientTransport{
		Endpoint:             b.url + path,
		HTTPClient:           &http.Client{Transport: withHeaders(headers)},
		DisableStandaloneSSE: true,
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = session.Close() })
	return session
}

func (b *bench) wantTool(session *mcp.ClientSession, name, arguments string, isError bool, text string) {
	b.Helper()
	result, err := session.CallTool(b.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(arguments)})
	if err != nil {
		b.Errorf("%s: %v", name, err)
		return
	}
	got := result.Content[0].(*mcp.TextContent).Text
	if got != text || result.IsError != isError {
		b.Errorf("%s %s: got %s (an error: %v), want %s (%v)", name, arguments, got, result.IsError, text, isError)
	}
}

func TestASeedOffersItsToolsOverMCP(t *testing.T) {
	b := newListing(t)
	_, tools := b.seedForMCP("a")
	if tools.ServerName != "ledger" || tools.URLPath != "/mcp" || tools.Transport != "http" || len(tools.Headers) != 1 {
		t.Errorf("the offer is %+v", tools)
	}
	_, again := b.seedForMCP("a")
	if diff := cmp.Diff(tools, again); diff != "" {
		t.Errorf("the repeated seed's offer (-first +second):\n%s", diff)
	}
	listed, err := b.connect("/mcp", tools.Headers).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range listed.Tools {
		names = append(names, tool.Name)
	}
	if want := []string{"abort", "add", "break", "echo", "panic", "refuse"}; !slices.Equal(names, want) {
		t.Errorf("the tools are %v, want %v", names, want)
	}
	schema, _ := json.Marshal(listed.Tools[1].InputSchema)
	if listed.Tools[1].Description != "Adds a line." || !strings.Contains(string(schema), `"required":["line"]`) {
		t.Errorf("the tool add is %+v", listed.Tools[1])
	}
}

func TestAToolOverMCPIsCalledWithItsSession(t *testing.T) {
	b := newListing(t)
	cookie, tools := b.seedForMCP("a")
	_, others := b.seedForMCP("b")
	session := b.connect("/ng-rollout/0-0/mcp", tools.Headers)
	b.wantTool(session, "add", `{"line":"<one>"}`, false, `{"last":"<one>","lines":1}`)
	b.wantTool(b.connect("/mcp", others.Headers), "add", `{"line":"x"}`, false, `{"last":"x","lines":1}`)
	b.want("a call by the path of the tool", b.post("/add", cookie, `{"line":"two"}`), 200, `{"last":"two","lines":2}`)
	b.wantTool(session, "add", `{}`, true, `{"detail":[{"type":"missing","loc":["body","line"],"msg":"Field required"}]}`)
	b.wantTool(session, "echo", `{"n":9007199254740993,"m":1.0}`, false, `{"n":9007199254740993,"m":1.0}`)
	b.wantTool(session, "refuse", `{}`, true, `{"detail":"not in this ledger","failure_kind":"agent_command_not_allowed"}`)
	b.wantTool(session, "break", `{}`, true, `{"detail":"out of ink"}`)
	b.wantTool(session, "echo", `[1]`, true, `{"detail":[{"type":"dict_type","loc":["body"],"msg":"Input should be a valid dictionary"}]}`)
	b.wantTool(session, "abort", `{}`, true, `{"detail":"a bug in this server: net/http: abort Handler"}`)
	b.wantTool(session, "panic", `{}`, true, `{"detail":"a bug in this server: a bug"}`)
	if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "hidden"}); err == nil {
		t.Error("a tool that is not offered was called")
	}
}

func TestAToolOverMCPWhoseSessionIsGoneIsRefused(t *testing.T) {
	b := newListing(t)
	cookie, tools := b.seedForMCP("a")
	session := b.connect("/mcp", tools.Headers)
	b.post("/close_session", "", closeBody("a", episode0))
	b.wantTool(session, "add", `{"line":"x"}`, true, `{"detail":"resources session a is not held here any more","failure_kind":"session_lost"}`)
	b.wantTool(session, "echo", `{}`, false, `{}`)
	const unknown = `{"detail":"the request carries no session cookie that this server set: it may have been restarted","failure_kind":"session_lost"}`
	_, value, _ := strings.Cut(cookie, "=")
	for name, token := range map[string]string{"no token": "", "a cookie for a token": value, "nonsense": "a"} {
		t.Run(name, func(t *testing.T) {
			b.wantTool(b.connect("/mcp", map[string]string{"X-NeMo-Gym-Session-Token": token}), "add", `{"line":"x"}`, true, unknown)
		})
	}
}

func TestAToolThatFailsOverMCPIsLoggedWithoutItsToken(t *testing.T) {
	var log bytes.Buffer
	server, err := resourcesserver.New(listing(&book{}), resourcesserver.Config{Logger: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	_, tools := b.seedForMCP("a")
	b.wantTool(b.connect("/mcp", tools.Headers), "break", `{}`, true, `{"detail":"out of ink"}`)
	if !strings.Contains(log.String(), `"path":"/mcp break","error":"out of ink"`) {
		t.Errorf("the log does not say what failed:\n%s", log.String())
	}
	if strings.Contains(log.String(), tools.Headers["X-NeMo-Gym-Session-Token"]) {
		t.Errorf("the log shows the token:\n%s", log.String())
	}
}

func TestACallOverMCPNeedsNoArgumentsAndHasItsLimit(t *testing.T) {
	server, err := resourcesserver.New(listing(&book{}), resourcesserver.Config{MaxRequestBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		params string
		status int
		want   string // a piece of the answer
	}{
		{`{"name":"echo"}`, 200, `"text":"{}"`},
		{`{"name":"echo","arguments":{"x":1.0}}`, 200, `"text":"{\"x\":1.0}"`},
		{`{"name":"echo","arguments":{"x":"` + strings.Repeat("x", 1000) + `"}}`, 413, ""},
	} {
		request := newRequest(t.Context(), "/mcp", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+test.params+`}`)
		request.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		server.ServeHTTP(w, request)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%.60s got %d %.200s, want %d and a piece %s", test.params, w.Code, w.Body, test.status, test.want)
		}
	}
}

func TestACallOverMCPEndsWithItsCaller(t *testing.T) {
	running, ended := make(chan struct{}), make(chan struct{})
	environment := (&book{}).environment()
	environment.Tools = []resourcesserver.Tool[*ledger]{{
		Name: "hang", Parameters: json.RawMessage(`{"type":"object"}`),
		Call: func(ctx context.Context, _ *ledger, _ json.RawMessage) (any, error) {
			close(running)
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		},
	}}
	server, err := resourcesserver.New(environment, resourcesserver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	_, tools := b.seedForMCP("a")
	session := b.connect("/mcp", tools.Headers)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var call sync.WaitGroup
	call.Go(func() { _, _ = session.CallTool(ctx, &mcp.CallToolParams{Name: "hang"}) })
	<-running
	leave()
	<-ended // never, unless the call is told: the test would time out
	call.Wait()
}

// Whoever has a tool's token, the model's harness, cannot score or close with it.
func TestAnMCPTokenIsNoCookie(t *testing.T) {
	b := newListing(t)
	_, tools := b.seedForMCP("a")
	got := b.post("/verify", "resources_session="+tools.Headers["X-NeMo-Gym-Session-Token"], verifyBody)
	if !strings.Contains(got.Body, `"failure_kind":"session_lost"`) {
		t.Errorf("the verify got %+v", got)
	}
}

func TestAServerWithoutListedToolsHasNoMCP(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	if got := b.post("/mcp", "", `{}`); got.Status != 404 {
		t.Errorf("got %+v", got)
	}
}

func TestAStatelessToolNeedsNoSession(t *testing.T) {
	b := newListing(t)
	cookie := b.seed("a")
	b.post("/close_session", "", closeBody("a", episode0))
	for name, cookie := range map[string]string{"with the cookie of a closed session": cookie, "without a cookie": ""} {
		b.want(name, b.post("/echo", cookie, `{"x":1}`), 200, `{"x":1}`)
	}
	b.want("one with state", b.post("/add", cookie, `{"line":"x"}`), 404,
		`{"detail":"resources session a is not held here any more","failure_kind":"session_lost"}`)
}
