package agentserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/agentserver"
)

// A model answers its rounds with the replies that it is given, and keeps what
// it was asked.
type model struct {
	mu      sync.Mutex
	replies []string // the last one is repeated
	asked   []string
	respond func(ctx context.Context) (json.RawMessage, error) // instead of the replies
}

func (m *model) Respond(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, string(params))
	if m.respond != nil {
		return m.respond(ctx)
	}
	return json.RawMessage(m.replies[min(len(m.asked), len(m.replies))-1]), nil
}

// seen is what the model was asked so far.
func (m *model) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.asked)
}

// A toolbox is a resources server's tools, as far as an agent sees them.
type toolbox struct {
	mu    sync.Mutex
	calls []toolCall
	serve http.HandlerFunc
}

type toolCall struct{ Path, Body, Cookie, Header string }

func (b *toolbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	b.calls = append(b.calls, toolCall{r.URL.Path, string(body), r.Header.Get("Cookie"), r.Header.Get("X-Access")})
	b.mu.Unlock()
	if b.serve != nil {
		b.serve(w, r)
		return
	}
	_, _ = io.WriteString(w, `{"ok":true}`)
}

// seen is the calls so far.
func (b *toolbox) seen() []toolCall {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// A bench is an agent server and a toolbox on real sockets. Its clock goes on by
// a second whenever it is looked at.
type bench struct {
	*testing.T
	model    *model
	tools    *toolbox
	toolsURL string
	server   *agentserver.Server
	url      string
	now      time.Time
	clock    sync.Mutex
}

func newBench(t *testing.T, config agentserver.Config) *bench {
	t.Helper()
	b := &bench{T: t, model: &model{replies: []string{says("done")}}, tools: &toolbox{}, now: time.Unix(1_800_000_000, 0)}
	tools := httptest.NewServer(b.tools)
	t.Cleanup(tools.Close)
	if config.Model == nil {
		config.Model = b.model
	}
	config.Clock = b.tick
	server, err := agentserver.New(config)
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	t.Cleanup(func() {
		if err := server.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	b.toolsURL, b.server, b.url = tools.URL, server, listener.URL
	return b
}

func (b *bench) tick() time.Time {
	b.clock.Lock()
	defer b.clock.Unlock()
	b.now = b.now.Add(time.Second)
	return b.now
}

func (b *bench) pass(d time.Duration) {
	b.clock.Lock()
	defer b.clock.Unlock()
	b.now = b.now.Add(d)
}

type reply struct {
	Status int
	Body   string
	Cookie string // "name=value" of the cookie it sets, "" for none
}

func (b *bench) post(path, cookie, body string) reply {
	b.Helper()
	got, err := b.try(b.Context(), path, cookie, body)
	if err != nil {
		b.Fatal(err)
	}
	return got
}

func (b *bench) try(ctx context.Context, path, cookie, body string) (reply, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	if cookie != "" {
		request.Header.Set("Cookie", cookie)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	set, _, _ := strings.Cut(response.Header.Get("Set-Cookie"), ";")
	return reply{response.StatusCode, string(text), set}, err
}

func (b *bench) want(what string, got reply, status int, body string) {
	b.Helper()
	if diff := cmp.Diff(reply{status, body, ""}, got); diff != "" {
		b.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

const (
	episode0 = `{"rollout_id":"0-0","attempt":0}`
	episode1 = `{"rollout_id":"0-0","attempt":1}`
	task0    = `{"taskset":"s","task_id":"0"}`
)

func seedBody(id, episode, accesses string) string {
	return fmt.Sprintf(`{"agent_session_id":%q,"episode_id":%s,"task_id":%s,"tool_accesses":[%s],"sandbox_access":null}`, id, episode, task0, accesses)
}

func closeBody(id, episode string) string {
	return fmt.Sprintf(`{"agent_session_id":%q,"episode_id":%s}`, id, episode)
}

// access is the session's tool access to the toolbox.
func (b *bench) access(cookies string) string {
	return fmt.Sprintf(`{"kind":"direct_http","name":"box.direct_http","required":true,"base_url":"%s/base/","cookies":%s,"headers":{"X-Access":"granted"}}`,
		b.toolsURL, cookies)
}

// seed opens a session and returns its cookie.
func (b *bench) seed(id, accesses string) (cookie string) {
	b.Helper()
	got := b.post("/v1/agent_sessions", "", seedBody(id, episode0, accesses))
	if got.Status != http.StatusOK || got.Cookie == "" {
		b.Fatalf("the seed got %+v", got)
	}
	return got.Cookie
}

// says is a Responses object in which the model says something.
func says(text string) string { return responding(message(text)) }

// calls is a Responses object in which the model calls tools: names and
// arguments by turns.
func calls(namesAndArguments ...string) string {
	var items []string
	for i := 0; i < len(namesAndArguments); i += 2 {
		items = append(items, functionCall(fmt.Sprint("call_", i/2), namesAndArguments[i], namesAndArguments[i+1]))
	}
	return responding(items...)
}

func responding(items ...string) string {
	return `{"id":"r","created_at":1,"model":"m","object":"response","output":[` + strings.Join(items, ",") + `],` +
		`"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"status":"completed",` +
		`"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":1},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":15}}`
}

func message(text string) string {
	return fmt.Sprintf(`{"type":"message","role":"assistant","content":[{"type":"output_text","text":%q}]}`, text)
}

func functionCall(id, name, arguments string) string {
	return fmt.Sprintf(`{"type":"function_call","call_id":%q,"name":%q,"arguments":%q}`, id, name, arguments)
}

func output(id, text string) string {
	return fmt.Sprintf(`{"type":"function_call_output","call_id":%q,"output":%q}`, id, text)
}

// outputOf is the items of a Responses object, as they came.
func outputOf(t *testing.T, body string) []string {
	t.Helper()
	var response struct{ Output []json.RawMessage }
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	items := make([]string, len(response.Output))
	for i, item := range response.Output {
		items[i] = string(item)
	}
	return items
}
