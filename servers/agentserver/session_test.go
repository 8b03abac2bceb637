package agentserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/agentserver"
)

const nothingSeen = `{"agent_session_id":"a","agent_observations":null,"resources_cookies":null}`

func TestARepeatedSeedReplays(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", "")
	again := b.post("/v1/agent_sessions", "", seedBody("a", episode0, ""))
	if diff := cmp.Diff(reply{http.StatusOK, `{"agent_session_id":"a"}`, cookie}, again); diff != "" {
		t.Errorf("the repeated seed (-want +got):\n%s", diff)
	}
	if n := b.server.Open(); n != 1 {
		t.Errorf("%d sessions are open, want 1", n)
	}
}

func TestASeedOfATakenIDIsRefused(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	b.seed("a", "")
	const detail = `{"detail":"agent session a is bound to another seed"}`
	b.want("another episode", b.post("/v1/agent_sessions", "", seedBody("a", episode1, "")), 409, detail)
	b.want("other tools", b.post("/v1/agent_sessions", "", seedBody("a", episode0, b.access("{}"))), 409, detail)
	b.post("/v1/agent_sessions/close", "", closeBody("a", episode0))
	b.want("when it is closed", b.post("/v1/agent_sessions", "", seedBody("a", episode0, "")), 409, `{"detail":"agent session a is closed"}`)
}

func TestASeedThatCannotBeServedIsRefused(t *testing.T) {
	direct := func(name, more string) string {
		return `{"kind":"direct_http","name":"` + name + `","required":true,"base_url":"http://127.0.0.1:1/"` + more + `}`
	}
	mcp := func(name, required string) string {
		return `{"kind":"mcp","name":"` + name + `","required":` + required + `,"connection":{"transport":"streamable_http","url":"http://127.0.0.1:1/mcp","headers":{"token":"secret"}}}`
	}
	for _, test := range []struct {
		name, body string
		want       string // faults, "" when it is accepted
	}{
		{"no tools", seedBody("a", episode0, ""), ""},
		{"MCP and direct HTTP", seedBody("a", episode0, mcp("m", "true")+","+direct("d", "")+","+mcp("n", "false")), ""},
		{"optional MCP of a transport that it does not know", seedBody("a", episode0,
			`{"kind":"mcp","name":"m","required":false,"connection":{"transport":"stdio","command":"box"}}`), ""},
		{"required MCP of a transport that it does not know", seedBody("a", episode0,
			`{"kind":"mcp","name":"m","required":true,"connection":{"transport":"stdio","command":"box"}}`),
			"body.tool_accesses.0.connection.transport: this agent knows the MCP transport streamable_http"},
		{"MCP without a connection", seedBody("a", episode0, `{"kind":"mcp","name":"m","required":true}`),
			"body.tool_accesses.0.connection: Field required"},
		{"MCP at no http URL", seedBody("a", episode0, strings.Replace(mcp("m", "true"), "http://", "unix://", 1)),
			"body.tool_accesses.0.connection.url: Input should be a valid http or https URL"},
		{"MCP headers that are no texts", seedBody("a", episode0, strings.Replace(mcp("m", "true"), `"secret"`, `7654321`, 1)),
			`body.tool_accesses.0.connection.headers: Input should be a valid dictionary of strings: want a string as the value of "token", got a number`},
		{"MCP with more than there is", seedBody("a", episode0, strings.Replace(mcp("m", "true"), `"url"`, `"urls":[],"url"`, 1)),
			"body.tool_accesses.0.connection.urls: Extra inputs are not permitted"},
		{"a kind that nobody knows", seedBody("a", episode0, `{"kind":"grpc","name":"g","required":false}`),
			"body.tool_accesses.0.kind: this agent knows the tool access kinds direct_http and mcp"},
		{"two of one name", seedBody("a", episode0, direct("d", "")+","+mcp("d", "false")),
			"body.tool_accesses.1.name: tool access names must be unique within an agent session"},
		{"two direct ones", seedBody("a", episode0, direct("d", "")+","+direct("e", "")),
			"body.tool_accesses.1.kind: this agent supports at most one direct HTTP tool access per session"},
		{"two direct ones, of which one is optional", seedBody("a", episode0, direct("d", "")+","+strings.Replace(direct("e", ""), "true", "false", 1)), ""},
		{"a name that is none", seedBody("a", episode0, direct("-d", "")),
			"body.tool_accesses.0.name: String should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'"},
		{"no http URL", seedBody("a", episode0, `{"kind":"direct_http","name":"d","required":true,"base_url":"file:///etc"}`),
			"body.tool_accesses.0.base_url: Input should be a valid http or https URL"},
		{"cookies that are no texts", seedBody("a", episode0, direct("d", `,"cookies":{"s":7654321}`)),
			`body.tool_accesses.0.cookies: Input should be a valid dictionary of strings: want a string as the value of "s", got a number`},
		{"a sandbox", strings.Replace(seedBody("a", episode0, ""), `"sandbox_access":null`, `"sandbox_access":{"workdir":"/"}`, 1),
			"body.sandbox_access: this agent cannot use a sandbox"},
		{"an id that is too long", seedBody(strings.Repeat("x", 513), episode0, ""),
			"body.agent_session_id: String should have at most 512 bytes"},
		{"everything missing", `{}`, "body.agent_session_id: Field required; body.episode_id: Field required; body.task_id: Field required"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, agentserver.Config{})
			got := b.post("/v1/agent_sessions", "", test.body)
			if test.want == "" {
				if got.Status != http.StatusOK {
					t.Errorf("got %+v", got)
				}
				return
			}
			if got.Status != http.StatusUnprocessableEntity || got.Cookie != "" {
				t.Errorf("got %+v, want 422 without a cookie", got)
			}
			if diff := cmp.Diff(test.want, faults(t, got.Body)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if n := b.server.Open(); n != 0 {
				t.Errorf("%d sessions are open", n)
			}
		})
	}
}

// faults is the detail of a 422, as a person reads it.
func faults(t *testing.T, body string) string {
	t.Helper()
	var answer struct {
		Detail []struct {
			Loc []any
			Msg string
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	var texts []string
	for _, fault := range answer.Detail {
		loc, _ := json.Marshal(fault.Loc)
		path := strings.NewReplacer(`"`, "", "[", "", "]", "", ",", ".").Replace(string(loc))
		texts = append(texts, path+": "+fault.Msg)
	}
	return strings.Join(texts, "; ")
}

func TestACloseOfAnUnknownIDFencesIt(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	for range 2 {
		b.want("the close", b.post("/v1/agent_sessions/close", "", closeBody("a", episode0)), 200, nothingSeen)
	}
	b.want("a late seed", b.post("/v1/agent_sessions", "", seedBody("a", episode0, "")), 409, `{"detail":"agent session a is closed"}`)
	b.want("another episode", b.post("/v1/agent_sessions/close", "", closeBody("a", episode1)), 409,
		`{"detail":"agent session a does not belong to episode 0-0-a1"}`)
	b.pass(agentserverWindow)
	b.seed("a", "")
}

const agentserverWindow = 300 * time.Second

// The session of a driver that has died ends by itself, with the turn that runs.
func TestASessionEndsByItself(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", "")
	running := make(chan struct{})
	b.model.respond = func(ctx context.Context) (json.RawMessage, error) {
		close(running)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var got reply
	var turn sync.WaitGroup
	turn.Go(func() { got = b.post("/v1/responses", cookie, `{"input":"hi"}`) })
	<-running
	b.pass(agentserver.DefaultLifetime)
	b.want("a late seed", b.post("/v1/agent_sessions", "", seedBody("a", episode0, "")), 409, `{"detail":"agent session a is closed"}`)
	turn.Wait()
	b.want("the turn", got, 409, `{"detail":"agent session a is not open"}`)
	closed := b.post("/v1/agent_sessions/close", "", closeBody("a", episode0))
	if closed.Status != http.StatusOK || !strings.Contains(closed.Body, `"kind":"agent_invocation"`) {
		t.Errorf("the close got %+v, want what was observed", closed)
	}
	if n := b.server.Open(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
}

func TestACloseForAnotherEpisodeIsRefused(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	cookie := b.seed("a", "")
	b.want("the close", b.post("/v1/agent_sessions/close", cookie, closeBody("a", episode1)), 409,
		`{"detail":"agent session a does not belong to episode 0-0-a1"}`)
	if n := b.server.Open(); n != 1 {
		t.Errorf("%d sessions are open, want 1", n)
	}
}

func TestACloseBodyIsChecked(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	got := b.post("/v1/agent_sessions/close", "", `{"agent_session_id":""}`)
	if want := "body.agent_session_id: String should have at least 1 character; body.episode_id: Field required"; faults(t, got.Body) != want {
		t.Errorf("got %+v, want %q", got, want)
	}
}

func TestARepeatedCloseReplaysTheReceipt(t *testing.T) {
	b := newBench(t, agentserver.Config{Name: "tester"})
	cookie := b.seed("a", b.access(`{"res":"plain","gone":"soon"}`))
	b.model.replies = []string{calls("look", `{}`, "look", `[]`), says("done")}
	statuses := []int{http.StatusOK, http.StatusTeapot}
	b.tools.serve = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", `res="needs\054 quotes"; Path=/`)
		w.Header().Add("Set-Cookie", "gone=; Max-Age=0")
		w.Header().Add("Set-Cookie", "new=1")
		w.WriteHeader(statuses[0])
		statuses = statuses[1:]
	}
	if got := b.post("/v1/responses", cookie, `{"input":"hi"}`); got.Status != http.StatusOK {
		t.Fatalf("the turn got %+v", got)
	}
	const receipt = `{"agent_session_id":"a","agent_observations":{"source":"tester","records":[` +
		`{"kind":"tool_call","invocation_id":"root","tool_call_id":"call_0","tool_name":"look","started_at":1800000006,"completed_at":1800000008,"duration_ms":2000,"timing_source":"executor","status":"completed"},` +
		`{"kind":"tool_call","invocation_id":"root","tool_call_id":"call_1","tool_name":"look","started_at":1800000009,"completed_at":1800000011,"duration_ms":2000,"timing_source":"executor","status":"failed","error_type":"http_418"},` +
		`{"kind":"agent_invocation","invocation_id":"root","status":"completed","duration_ms":8000}],"gaps":[]},` +
		`"resources_cookies":{"res":"needs, quotes","new":"1"}}`
	b.want("the close", b.post("/v1/agent_sessions/close", cookie, closeBody("a", episode0)), 200, receipt)
	b.want("the repeated close", b.post("/v1/agent_sessions/close", "", closeBody("a", episode0)), 200, receipt)
	b.pass(agentserverWindow)
	b.want("a close when the receipt is gone", b.post("/v1/agent_sessions/close", "", closeBody("a", episode0)), 200, nothingSeen)
}

func TestTheConfigIsCheckedAsAWhole(t *testing.T) {
	_, err := agentserver.New(agentserver.Config{MaxRounds: -1, MaxOutputBytes: -1, MaxRequestBytes: -1, CloseRetryWindow: -1, Lifetime: -1})
	want := "agent server: there is no model\nMaxRounds is negative\nMaxOutputBytes is negative\nMaxRequestBytes is negative\nCloseRetryWindow is negative\nLifetime is negative"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want\n%s", err, want)
	}
}

func TestHealth(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	for _, path := range []string{"/", "/health"} {
		response, err := http.Get(b.url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("GET %s: %s", path, response.Status)
		}
	}
}

// However many things are wrong with a seed, it is refused in a few words.
func TestASeedOfNothingButFaultsIsRefusedInFewWords(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	const entries = 200_000
	got := b.post("/v1/agent_sessions", "", seedBody("a", episode0, "{}"+strings.Repeat(",{}", entries-1)))
	if got.Status != http.StatusUnprocessableEntity || len(got.Body) > 20_000 {
		t.Errorf("status %d and %d bytes, want 422 and no more than 20,000: %.300s", got.Status, len(got.Body), got.Body)
	}
	// An empty entry lacks a name, a kind and whether it is required.
	if want := fmt.Sprintf(`{"type":"value_error","loc":["body"],"msg":"left out: %d more"}]}`, 3*entries-100); !strings.HasSuffix(got.Body, want) {
		t.Errorf("it ends in %s, want %s", got.Body[len(got.Body)-200:], want)
	}
}
