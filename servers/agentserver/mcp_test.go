package agentserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"example.com/turn/servers/agentserver"
)

func TestToolsOfAnMCPServerAreOfferedAndCalled(t *testing.T) {
	for name, options := range map[string]*mcp.StreamableHTTPOptions{
		"stateful, events":  {},
		"stateful, JSON":    {JSONResponse: true},
		"stateless, events": {Stateless: true},
		"stateless, JSON":   {Stateless: true, JSONResponse: true},
	} {
		t.Run(name, func(t *testing.T) {
			b, box := newBench(t, agentserver.Config{}), newMCPBox(t, options, nil)
			const schema = `{"type":"object","properties":{"z":{"maximum":9007199254740993},"a":{"pattern":"<.>"}}}`
			box.add("look", schema, telling("a <door>\n"))
			cookie := b.seed("a", box.access("m", true))
			b.model.replies = []string{calls("look", `{}`), says("done")}
			got := b.post("/v1/responses", cookie, `{"input":[],"seed":1}`)

			look := functionCall("call_0", "look", `{}`)
			said := output("call_0", "a <door>\n")
			offered := `,"seed":1,"tools":[` + definition("look", schema) + `]}`
			if diff := cmp.Diff([]string{`{"input":[]` + offered, `{"input":[` + look + `,` + said + `]` + offered}, b.model.seen()); diff != "" {
				t.Errorf("the model was asked (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{look, said, message("done")}, outputOf(t, got.Body)); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			b.model.replies = []string{says("again")}
			b.post("/v1/responses", cookie, `{"input":[]}`)
			receipt := b.post("/v1/agent_sessions/close", cookie, closeBody("a", episode0)).Body
			for _, want := range []string{`"tool_name":"look",`, `"status":"completed"}`, `"resources_cookies":null}`} {
				if !strings.Contains(receipt, want) {
					t.Errorf("the receipt %s has no %s", receipt, want)
				}
			}
			checkConversation(t, box, options.Stateless)
		})
	}
}

// checkConversation: one session for all turns, the token on every request, the
// agreed version on all but the first, and a farewell where there is a session to
// end.
func checkConversation(t *testing.T, box *mcpBox, stateless bool) {
	t.Helper()
	want := []mcpRequest{
		{Verb: "POST", Method: "initialize"}, {Verb: "POST", Method: "notifications/initialized"},
		{Verb: "POST", Method: "tools/list"}, {Verb: "POST", Method: "tools/call"},
	}
	if !stateless {
		want = append(want, mcpRequest{Verb: "DELETE"})
	}
	got := box.seen()
	for i := range want {
		want[i].Token = token
		if i > 0 {
			want[i].Version = "2025-11-25"
		}
	}
	for i := range got {
		got[i].Body = ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the MCP server was sent (-want +got):\n%s", diff)
	}
}

func TestToolsAreAddedToThoseOfTheParams(t *testing.T) {
	look, take := definition("look", noArguments), definition("take", noArguments)
	const mine = `{"type":"function","name":"look","parameters":{"b": 1,"a":1.0}}`
	for _, test := range []struct{ name, params, want string }{
		{"none", `{"input":[]}`, `{"input":[],"tools":[` + look + `,` + take + `]}`},
		{"null", `{"tools":null,"input":[]}`, `{"tools":[` + look + `,` + take + `],"input":[]}`},
		{"an empty list", `{"tools":[],"input":[]}`, `{"tools":[` + look + `,` + take + `],"input":[]}`},
		{"one of the same name", `{"tools":[` + mine + `],"input":[],"x": 1e2}`, `{"tools":[` + mine + `,` + take + `],"input":[],"x":1e2}`},
		{"all of them", `{"tools":[` + take + ` , ` + mine + `],"input":[]}`, `{"tools":[` + take + ` , ` + mine + `],"input":[]}`},
		{"others", `{"tools":[{"type":"web_search"},7],"input":[]}`, `{"tools":[{"type":"web_search"},7,` + look + `,` + take + `],"input":[]}`},
		{"no list", `{"tools":{},"input":[]}`, `{"tools":{},"input":[]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, first, second := newBench(t, agentserver.Config{}), newMCPBox(t, nil, nil), newMCPBox(t, nil, nil)
			first.add("look", noArguments, telling("it"))
			second.add("look", `{"type":"object","title":"another"}`, telling("it"))
			second.add("take", noArguments, telling("it"))
			b.post("/v1/responses", b.seed("a", first.access("m", true)+","+second.access("n", true)), test.params)
			if diff := cmp.Diff([]string{test.want}, b.model.seen()); diff != "" {
				t.Errorf("the model was asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoMCPServerCanOfferWhatAModelMayNotCall(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	names := []string{"seed_session", "verify", "close_session", "aggregate_metrics", "mcp", "../look", "", "look"}
	var tools []string
	for _, name := range names {
		tools = append(tools, fmt.Sprintf(`{"name":%q,"description":"to %s","inputSchema":%s}`, name, name, noArguments))
	}
	box := newFakeMCPBox(t, map[string]string{
		"initialize": initialized, "tools/call": `{"content":[]}`, "tools/list": `{"tools":[7,` + strings.Join(tools, ",") + `]}`,
	})
	b.model.replies = []string{calls("close_session", `{}`), says("done")}
	got := b.post("/v1/responses", b.seed("a", box.access("m", true)), `{"input":[]}`)
	if want := `{"input":[],"tools":[` + definition("look", noArguments) + `]}`; b.model.seen()[0] != want {
		t.Errorf("the model was asked %s, want %s", b.model.seen()[0], want)
	}
	want := output("call_0", `{"error":"There is no tool of the name \"close_session\""}`)
	if items := outputOf(t, got.Body); len(items) != 3 || items[1] != want || box.sent("tools/call") != 0 {
		t.Errorf("got %+v after %d calls, want %s and none", got, box.sent("tools/call"), want)
	}
}

func TestAllPagesOfToolsAreRead(t *testing.T) {
	b, box := newBench(t, agentserver.Config{}), newMCPBox(t, nil, &mcp.ServerOptions{PageSize: 2})
	var want []string
	for i := range 5 {
		name := fmt.Sprint("tool", i)
		box.add(name, noArguments, telling("it"))
		want = append(want, definition(name, noArguments))
	}
	b.post("/v1/responses", b.seed("a", box.access("m", true)), `{"input":[]}`)
	if diff := cmp.Diff([]string{`{"input":[],"tools":[` + strings.Join(want, ",") + `]}`}, b.model.seen()); diff != "" {
		t.Errorf("the model was asked (-want +got):\n%s", diff)
	}
	if n := box.sent("tools/list"); n != 3 {
		t.Errorf("%d pages were asked for, want 3", n)
	}
}

func TestArgumentsReachTheMCPServerAsTheyAre(t *testing.T) {
	b, box := newBench(t, agentserver.Config{}), newMCPBox(t, nil, nil)
	const arguments = `{"z":9007199254740993,"a":"<&>","k":1.0,"a":2}`
	received := make(chan string, 1)
	box.add("look", noArguments, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		received <- string(r.Params.Arguments)
		return &mcp.CallToolResult{}, nil
	})
	b.model.replies = []string{calls("look", arguments), says("done")}
	b.post("/v1/responses", b.seed("a", box.access("m", true)), `{"input":[]}`)
	if got := <-received; got != arguments {
		t.Errorf("the tool got %s, want %s", got, arguments)
	}
}

// What a model reads of an MCP result, and what is observed of it.
func TestMCPResults(t *testing.T) {
	for _, test := range []struct{ name, result, want, problem string }{
		{"a text", `{"content":[{"type":"text","text":"<it>"}],"structuredContent":{"result":"<it>"}}`, `<it>`, ""},
		{"texts", `{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}`, "one\ntwo", ""},
		{"structured only", `{"content":[],"structuredContent":{"z": 9007199254740993, "a": "<"}}`, `{"z":9007199254740993,"a":"<"}`, ""},
		{"an image", `{"content":[{"type":"text","text":"look:"},{"type":"image","mimeType":"image/png","data":"AAAA"}]}`,
			"look:\n" + `{"type":"image","mimeType":"image/png","note":"left out: this agent reads texts only"}`, ""},
		{"a resource and structured content", `{"content":[{"type":"resource","resource":{"uri":"x:y","blob":"AAAA"}}],"structuredContent":[1]}`,
			`{"type":"resource","note":"left out: this agent reads texts only"}` + "\n[1]", ""},
		{"what nobody knows yet", `{"content":[{"type":"hologram"}]}`, `{"type":"hologram","note":"left out: this agent reads texts only"}`, ""},
		{"nothing", `{"content":[]}`, ``, ""},
		{"a tool's error", `{"content":[{"type":"text","text":"no hands"}],"isError":true}`, `no hands`, "mcp_error"},
		{"too much", `{"content":[{"type":"text","text":"01234567890123456789012345678901234567890"}]}`,
			`{"error":"The output of tool look is longer than 40 bytes"}`, "output_too_long"},
		{"far too much", `{"content":[{"type":"text","text":"` + strings.Repeat("x", 2<<20) + `"}]}`,
			`{"error":"The output of tool look is longer than 40 bytes"}`, "output_too_long"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, agentserver.Config{MaxOutputBytes: 40})
			if test.problem == "" || test.problem == "mcp_error" {
				b = newBench(t, agentserver.Config{})
			}
			box := newFakeMCPBox(t, map[string]string{
				"initialize": initialized, "tools/list": `{"tools":[{"name":"look"}]}`, "tools/call": test.result,
			})
			want := []string{test.want, test.want}
			cookie := b.seed("a", box.access("m", true))
			b.model.replies = []string{calls("look", `{}`, "look", `{}`), says("done")}
			got := b.post("/v1/responses", cookie, `{"input":[]}`)
			if diff := cmp.Diff(want, outputTexts(t, got.Body)); diff != "" {
				t.Errorf("outputs (-want +got):\n%s", diff)
			}
			b.wantProblem(cookie, test.problem)
		})
	}
}

// outputTexts are what the model read of its calls.
func outputTexts(t *testing.T, body string) []string {
	t.Helper()
	var response struct {
		Output []struct{ Type, Output string }
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	var texts []string
	for _, item := range response.Output {
		if item.Type == "function_call_output" {
			texts = append(texts, item.Output)
		}
	}
	return texts
}

// wantProblem closes the session and checks how its tool calls were observed.
func (b *bench) wantProblem(cookie, problem string) {
	b.Helper()
	want := `"timing_source":"executor","status":"completed"}`
	if problem != "" {
		want = `"timing_source":"executor","status":"failed","error_type":"` + problem + `"}`
	}
	if receipt := b.post("/v1/agent_sessions/close", cookie, closeBody("a", episode0)).Body; !strings.Contains(receipt, want) {
		b.Errorf("the receipt %s has no %s", receipt, want)
	}
}

// A reply in events that is too long, and one call that an MCP server refuses, are
// no reason to end the session.
func TestAnMCPSessionOutlivesACallThatFailed(t *testing.T) {
	for _, options := range []*mcp.StreamableHTTPOptions{{}, {JSONResponse: true}} {
		t.Run(fmt.Sprint("JSON ", options.JSONResponse), func(t *testing.T) {
			b, box := newBench(t, agentserver.Config{MaxOutputBytes: 60}), newMCPBox(t, options, nil)
			box.add("long", noArguments, telling(strings.Repeat("x", 2<<20)))
			box.add("gone", noArguments, telling("it"))
			box.add("look", noArguments, telling("it"))
			cookie := b.seed("a", box.access("m", true))
			b.model.respond = func(context.Context) (json.RawMessage, error) {
				if len(b.model.asked) > 1 {
					return json.RawMessage(says("done")), nil
				}
				box.server.RemoveTools("gone")
				return json.RawMessage(calls("long", `{}`, "gone", `{}`, "look", `{}`)), nil
			}
			got := b.post("/v1/responses", cookie, `{"input":[]}`)
			want := []string{`{"error":"The output of tool long is longer than 60 bytes"}`, `{"error":"unknown tool \"gone\""}`, `it`}
			if diff := cmp.Diff(want, outputTexts(t, got.Body)); diff != "" {
				t.Errorf("outputs (-want +got):\n%s", diff)
			}
			b.wantProblem(cookie, "mcp_protocol_error")
			if n := box.sent("tools/call"); n != 3 {
				t.Errorf("%d calls were sent, want 3", n)
			}
		})
	}
}

// A call goes to the first access that has the tool.
func TestACallGoesToTheFirstAccessThatHasTheTool(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	first, second := newMCPBox(t, nil, nil), newMCPBox(t, nil, nil)
	first.add("look", noArguments, telling("first"))
	second.add("look", noArguments, telling("second"))
	second.add("take", noArguments, telling("second"))
	m, n, direct := first.access("m", true), second.access("n", true), b.access(`{"res":"1"}`)
	for _, test := range []struct{ name, accesses, want, cookies string }{
		{"MCP before direct HTTP", m + "," + direct, `first {"ok":true} {"ok":true}`, `{"res":"1"}`},
		{"direct HTTP before MCP", direct + "," + m, `{"ok":true} {"ok":true} {"ok":true}`, `{"res":"1"}`},
		{"MCP servers", m + "," + n, `first second {"error":"There is no tool of the name \"drop\""}`, `null`},
		{"direct HTTP after both", n + "," + m + "," + direct, `second second {"ok":true}`, `{"res":"1"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b.model.asked, b.model.replies = nil, []string{calls("look", `{}`, "take", `{}`, "drop", `{}`), says("done")}
			cookie := b.seed(test.name, test.accesses)
			got := b.post("/v1/responses", cookie, `{"input":[]}`)
			if texts := strings.Join(outputTexts(t, got.Body), " "); texts != test.want {
				t.Errorf("got %s, want %s", texts, test.want)
			}
			receipt := b.post("/v1/agent_sessions/close", "", closeBody(test.name, episode0)).Body
			if !strings.HasSuffix(receipt, `"resources_cookies":`+test.cookies+`}`) {
				t.Errorf("the receipt %s does not end in the cookies %s", receipt, test.cookies)
			}
		})
	}
}

// A server that is mounted at "/mcp" by Starlette answers with the way to "/mcp/".
func TestAnMCPServerMaySendARequestOnToItself(t *testing.T) {
	box := newMCPBox(t, &mcp.StreamableHTTPOptions{Stateless: true}, nil)
	box.add("look", noArguments, telling("a view"))
	box.interfere = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/mcp" {
			http.Redirect(w, r, "/mcp/?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
		}
	}
	b := newBench(t, agentserver.Config{})
	b.model.replies = []string{calls("look", `{"at":"<x>"}`), says("done")}
	got := b.post("/v1/responses", b.seed("a", box.access("m", true)), `{"input":[]}`)
	if texts := strings.Join(outputTexts(t, got.Body), " "); texts != "a view" {
		t.Errorf("got %s from %+v", texts, got)
	}
	for _, request := range box.seen() {
		if request.Token != token {
			t.Errorf("a request came without its token: %+v", request)
		}
	}
	if n := box.sent("tools/call"); n != 2 { // once to each path
		t.Errorf("the call was sent %d times", n)
	}
	box.interfere = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/mcp?"+r.URL.RawQuery, http.StatusPermanentRedirect)
	}
	before := len(box.seen())
	got = b.post("/v1/responses", b.seed("b", box.access("m", true)), `{"input":[]}`)
	if sent := len(box.seen()) - before; got.Status != http.StatusBadGateway || sent != 4 {
		t.Errorf("a server that sends on in a circle was sent %d requests: %+v", sent, got)
	}
}

func TestAnMCPAccessThatCannotBeOpened(t *testing.T) {
	elsewhere := newMCPBox(t, nil, nil)
	const nobody = "http://127.0.0.1:1" // a port that nobody is given, unlike one that was given back
	endless := newFakeMCPBox(t, map[string]string{"initialize": initialized, "tools/list": `{"tools":[],"nextCursor":"on"}`})
	refusing := newFakeMCPBox(t, nil)
	long := newFakeMCPBox(t, map[string]string{"initialize": initialized, "tools/list": `{"tools":[{"name":"` + strings.Repeat("x", 2<<20) + `"}]}`})
	answering := func(status int) *mcpBox {
		box := newMCPBox(t, nil, nil)
		box.interfere = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", elsewhere.url)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"who is ` + token + `?"}}`))
		}
		return box
	}
	html := newMCPBox(t, nil, nil)
	html.interfere = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }
	for _, test := range []struct{ name, url, want string }{
		{"nobody there", nobody + "/mcp?key=" + token, "dial tcp 127.0.0.1:1: connect: connection refused"},
		{"unknown token", answering(http.StatusUnauthorized).url, "the MCP endpoint answered 401 Unauthorized"},
		{"lost session", answering(http.StatusNotFound).url, "the MCP endpoint answered 404 Not Found"},
		{"broken", answering(http.StatusInternalServerError).url, "the MCP endpoint answered 500 Internal Server Error"},
		{"a redirect to another host", answering(http.StatusTemporaryRedirect).url, "the MCP endpoint answered 307 Temporary Redirect"},
		{"no MCP", html.url, "what came back is no MCP answer"},
		{"a JSON-RPC error", refusing.url, "the MCP server answered with error -32601"},
		{"endless tools", endless.url, "the MCP server lists its tools in more than 100 pages"},
		{"a long list of tools", long.url, "the MCP reply is too long"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			b := newBench(t, agentserver.Config{Logger: zerolog.New(&log), MaxOutputBytes: 1000})
			b.want("the turn that needs it", b.post("/v1/responses", b.seed("a", mcpAccess("m", true, test.url)), `{"input":[]}`), 502,
				`{"detail":"the MCP access m could not be opened: `+test.want+`","failure_kind":"agent_request_failed"}`)
			if n := len(b.model.seen()); n != 0 {
				t.Errorf("the model was asked %d times", n)
			}
			b.want("the turn that does not", b.post("/v1/responses", b.seed("b", mcpAccess("m", false, test.url)), `{"input":[]}`), 200, says("done"))
			if want := `"access":"m","error":"` + test.want + `"`; !strings.Contains(log.String(), want) || strings.Contains(log.String(), token) {
				t.Errorf("the log is %s, want %s and no token", log.String(), want)
			}
		})
	}
	if seen := elsewhere.seen(); len(seen) != 0 {
		t.Errorf("the other host was sent %+v", seen)
	}
}

func TestAnMCPServerThatDoesNotAnswerFailsTheTurn(t *testing.T) {
	for _, test := range []struct {
		name  string
		serve http.HandlerFunc
		want  string
	}{
		{"before the reply", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		{"inside JSON", halfOf("application/json", `{"jsonrpc":`), "unexpected EOF"},
		{"inside events", halfOf("text/event-stream", "data: {"), "unexpected EOF"},
		{"inside events that can be resumed", halfOf("text/event-stream", "id: 7\ndata:\n\nevent: "), "unexpected EOF"},
		{"without an event", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
		}, "what came back is no MCP answer"},
		{"but has lost the session", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, token, http.StatusNotFound) }, "the MCP endpoint answered 404 Not Found"},
		{"but is overloaded", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
			"the MCP endpoint answered 503 Service Unavailable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, box := newBench(t, agentserver.Config{}), newMCPBox(t, nil, nil)
			box.add("look", noArguments, telling("it"))
			box.interfere = func(w http.ResponseWriter, r *http.Request) {
				if box.lastMethod() == "tools/call" {
					test.serve(w, r)
				}
			}
			b.model.replies = []string{calls("look", `{}`)}
			cookie := b.seed("a", box.access("m", true))
			b.want("the turn", b.post("/v1/responses", cookie, `{"input":[]}`), 502,
				`{"detail":"tool look did not answer: `+test.want+`","failure_kind":"agent_request_failed"}`)
			b.wantProblem(cookie, "agent_request_failed")
			if n := box.sent("tools/call"); n != 1 {
				t.Errorf("the call was sent %d times", n)
			}
			for _, request := range box.seen() {
				if request.Verb == http.MethodGet {
					t.Errorf("the reply was asked for again: %+v", request)
				}
			}
		})
	}
}

// halfOf breaks a reply off.
func halfOf(contentType, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte(text))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestAnMCPServerThatDiesFailsTheTurn(t *testing.T) {
	b, box := newBench(t, agentserver.Config{}), newMCPBox(t, nil, nil)
	box.add("look", noArguments, telling("it"))
	cookie := b.seed("a", box.access("m", true))
	b.post("/v1/responses", cookie, `{"input":[]}`)
	box.listener.CloseClientConnections()
	box.listener.Close()
	b.model.replies = []string{calls("look", `{}`)}
	got := b.post("/v1/responses", cookie, `{"input":[]}`)
	if got.Status != http.StatusBadGateway || !strings.HasPrefix(got.Body, `{"detail":"tool look did not answer: `) || strings.Contains(got.Body, token) {
		t.Errorf("the turn got %+v", got)
	}
	if got := b.post("/v1/agent_sessions/close", "", closeBody("a", episode0)); got.Status != http.StatusOK {
		t.Errorf("the close got %+v", got)
	}
}

// However silent the server is from then on.
func TestACloseStopsTheMCPRequestThatRuns(t *testing.T) {
	for _, method := range []string{"initialize", "notifications/initialized", "tools/list"} {
		t.Run(method, func(t *testing.T) {
			b, box := newBench(t, agentserver.Config{}), newMCPBox(t, nil, nil)
			box.add("look", noArguments, telling("it"))
			reached := make(chan struct{})
			var hang sync.Once
			var hung atomic.Bool
			box.interfere = func(w http.ResponseWriter, r *http.Request) {
				if hung.Load() || box.lastMethod() == method {
					hung.Store(true)
					hang.Do(func() { close(reached) })
					<-r.Context().Done()
					w.WriteHeader(http.StatusGatewayTimeout)
				}
			}
			began := time.Now()
			b.wantClosedDuringTurn(reached, box.access("m", false))
			if took := time.Since(began); took > 4*time.Second { // the SDK would wait 5 s for its farewell
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestACloseStopsTheMCPToolThatRuns(t *testing.T) {
	for _, options := range []*mcp.StreamableHTTPOptions{{}, {JSONResponse: true}} {
		t.Run(fmt.Sprint("JSON ", options.JSONResponse), func(t *testing.T) {
			b, box := newBench(t, agentserver.Config{}), newMCPBox(t, options, nil)
			reached, stopped := make(chan struct{}), make(chan struct{})
			box.add("look", noArguments, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				close(reached)
				<-ctx.Done()
				close(stopped)
				return nil, ctx.Err()
			})
			b.model.replies = []string{calls("look", `{}`)}
			b.wantClosedDuringTurn(reached, box.access("m", true))
			<-stopped
		})
	}
}

// wantClosedDuringTurn closes a session when its turn has got somewhere.
func (b *bench) wantClosedDuringTurn(reached chan struct{}, access string) {
	b.Helper()
	cookie := b.seed("a", access)
	turn := make(chan reply)
	go func() {
		got, _ := b.try(context.Background(), "/v1/responses", cookie, `{"input":[]}`)
		turn <- got
	}()
	<-reached
	if closed := b.post("/v1/agent_sessions/close", "", closeBody("a", episode0)); !strings.Contains(closed.Body, `"status":"incomplete"`) {
		b.Errorf("the close got %+v", closed)
	}
	b.want("the turn", <-turn, 409, `{"detail":"the session was closed during its turn"}`)
}

func TestAnMCPSessionOutlivesACallerThatLeft(t *testing.T) {
	b, box := newBench(t, agentserver.Config{}), newMCPBox(t, nil, nil)
	reached := make(chan struct{})
	box.add("wait", noArguments, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		close(reached)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	box.add("look", noArguments, telling("it"))
	cookie := b.seed("a", box.access("m", true))
	b.model.replies = []string{calls("wait", `{}`), calls("look", `{}`), says("done")}
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-reached
		leave()
	}()
	if got, err := b.try(ctx, "/v1/responses", cookie, `{"input":[]}`); err == nil {
		t.Fatalf("the turn was answered: %+v", got)
	}
	got := b.post("/v1/responses", cookie, `{"input":[]}`)
	if diff := cmp.Diff([]string{"it"}, outputTexts(t, got.Body)); diff != "" {
		t.Errorf("outputs of the next turn (-want +got):\n%s", diff)
	}
	if n := box.sent("initialize"); n != 1 {
		t.Errorf("the session was opened %d times", n)
	}
}

func TestCloseEndsMCPSessions(t *testing.T) {
	b, box := newBench(t, agentserver.Config{}), newMCPBox(t, nil, nil)
	box.add("look", noArguments, telling("it"))
	b.post("/v1/responses", b.seed("a", box.access("m", true)), `{"input":[]}`)
	if err := b.server.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if seen := box.seen(); seen[len(seen)-1].Verb != http.MethodDelete {
		t.Errorf("the last request was %+v, want the end of the MCP session", seen[len(seen)-1])
	}
}
