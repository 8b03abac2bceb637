package agentclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/agentclient"
	"example.com/turn/failures"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
	"example.com/turn/retry"
)

const id = "agent-session-00112233445566778899aabbccddeeff"

var task = protocol.TaskID{Taskset: "weather", TaskID: "task/1 <é>"}

// newSession makes a session with a server that follows a script, on a pool of its
// own that is emptied when the test ends.
func newSession(t *testing.T, servers *scripted.Servers, episode protocol.EpisodeID, config agentclient.Config) *agentclient.Session {
	t.Helper()
	transport := pool.New()
	t.Cleanup(transport.CloseIdleConnections)
	config.URL, config.Transport = servers.AgentURL, transport
	config.Resend = retry.Resend{Pause: time.Millisecond}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	return agentclient.New(config).Session(id, episode, &failures.Secrets{})
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A sent call is what of a call the contract speaks of.
type sent struct{ Path, Query, Cookie, ContentType, Body string }

func sentCalls(servers *scripted.Servers) []sent {
	var calls []sent
	for _, c := range servers.Calls() {
		calls = append(calls, sent{c.Path, c.Query, c.Header.Get("Cookie"), c.Header.Get("Content-Type"), string(c.Body)})
	}
	return calls
}

func TestCallsAreTheContracts(t *testing.T) {
	// Numbers, escapes, repeated keys and white space that a decoder would change.
	const params = ` {"input": [{"role":"user","content":"<&>\u2028\ud800"}], "n":9007199254740993, "n":1.0e0 } `
	const sandbox = `{"connection":{"kind":"direct","provider_config_ref":"e2b","descriptor":{"id":1.0}},"workdir":"/w <&>"}`
	tools := []protocol.ToolAccess{
		protocol.NewDirectHTTPAccess("weather", "http://127.0.0.1:9001", []protocol.Pair{{Name: "res", Value: `a "b"`}}),
		protocol.MCPAccess{Name: "weather-mcp", URL: "http://127.0.0.1:9001/mcp", Headers: []protocol.Pair{{Name: "Authorization", Value: "Bearer x"}}},
	}
	const toolsWire = `[{"kind":"direct_http","name":"weather.direct_http","required":true,"base_url":"http://127.0.0.1:9001/","cookies":{"res":"a \"b\""},"headers":{}},` +
		`{"kind":"mcp","name":"weather-mcp","required":true,"connection":{"transport":"streamable_http","url":"http://127.0.0.1:9001/mcp","headers":{"Authorization":"Bearer x"}}}]`
	for _, test := range []struct {
		name    string
		config  agentclient.Config
		episode protocol.EpisodeID
		tools   []protocol.ToolAccess
		sandbox []byte
		want    [3]string // the wire's episode id, tool_accesses, sandbox_access
		path    string    // of call 4
	}{
		{"plain", agentclient.Config{}, protocol.EpisodeID{RolloutID: "3-0"}, nil, nil,
			[3]string{`{"rollout_id":"3-0","attempt":0}`, `[]`, `null`}, "/ng-rollout/3-0/v1/responses"},
		{"with tools and a sandbox", agentclient.Config{}, protocol.EpisodeID{RolloutID: "3-0"}, tools, []byte(sandbox),
			[3]string{`{"rollout_id":"3-0","attempt":0}`, toolsWire, sandbox}, "/ng-rollout/3-0/v1/responses"},
		{"second attempt", agentclient.Config{}, protocol.EpisodeID{RolloutID: "3-0", Attempt: 1}, nil, nil,
			[3]string{`{"rollout_id":"3-0","attempt":1}`, `[]`, `null`}, "/ng-rollout/3-0-a1/v1/responses"},
		{"token capture", agentclient.Config{TokenCapture: true}, protocol.EpisodeID{RolloutID: "3-0"}, nil, nil,
			[3]string{`{"rollout_id":"3-0","attempt":0}`, `[]`, `null`}, "/ng-rollout/3-0/training-token-capture/v1/responses"},
		{"token capture, second attempt", agentclient.Config{TokenCapture: true}, protocol.EpisodeID{RolloutID: "3-0", Attempt: 1}, nil, nil,
			[3]string{`{"rollout_id":"3-0","attempt":1}`, `[]`, `null`}, "/ng-rollout/3-0-a1/training-token-capture/v1/responses"},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{scripted.Responses: {{Raw: new(`{"output": [ ],"n":1.0}`), SetCookie: []string{"agent_session=2", "shard=b"}}}})
			session := newSession(t, servers, test.episode, test.config)
			ctx := within(t)
			if err := session.Open(ctx, task, test.tools, test.sandbox); err != nil {
				t.Fatal(err)
			}
			response, err := session.Respond(ctx, []byte(params))
			if err != nil || string(response) != `{"output": [ ],"n":1.0}` {
				t.Fatalf("response %s, %v", response, err)
			}
			if _, err := session.Close(ctx); err != nil {
				t.Fatal(err)
			}
			want := []sent{
				{"/v1/agent_sessions", "", "", "application/json",
					`{"agent_session_id":"` + id + `","episode_id":` + test.want[0] + `,"task_id":{"taskset":"weather","task_id":"task/1 <é>"},"tool_accesses":` + test.want[1] + `,"sandbox_access":` + test.want[2] + `}`},
				{test.path, "", "agent_session=agent-cookie-1", "application/json", params},
				{"/v1/agent_sessions/close", "", "agent_session=2; shard=b", "application/json", `{"agent_session_id":"` + id + `","episode_id":` + test.want[0] + `}`},
			}
			if diff := cmp.Diff(want, sentCalls(servers)); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// calls are the three calls, in order of the contract.
var calls = []struct {
	route scripted.Route
	what  string
	stage failures.Stage
	make  func(context.Context, *agentclient.Session) error
}{
	{scripted.AgentSeed, "POST /v1/agent_sessions", failures.StageAgent, func(ctx context.Context, s *agentclient.Session) error {
		return s.Open(ctx, task, nil, nil)
	}},
	{scripted.Responses, "POST /v1/responses", failures.StageAgent, func(ctx context.Context, s *agentclient.Session) error {
		_, err := s.Respond(ctx, []byte(`{}`))
		return err
	}},
	{scripted.AgentClose, "POST /v1/agent_sessions/close", failures.StageCleanup, func(ctx context.Context, s *agentclient.Session) error {
		_, err := s.Close(ctx)
		return err
	}},
}

func TestRepliesAreChecked(t *testing.T) {
	for _, call := range calls {
		key := "agent_session_id"
		if call.route == scripted.Responses {
			key = "output"
		}
		tests := []struct{ name, reply, want string }{
			{"nothing", ``, "not JSON"},
			{"text", `done`, "not JSON"},
			{"NaN", `{"` + key + `":NaN}`, "not JSON"},
			{"not UTF-8", "{\"x\":\"\xff\"}", "not JSON: text that is not UTF-8"},
			{"cut", `{"` + key + `":`, "not JSON: the text ends"},
			{"too deep", `{"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, "not JSON: nesting deeper"},
			{"HTML", `<html><body>welcome</body></html>`, "not JSON"},
			{"list", `[]`, "want an object, got an array"},
			{"null", `null`, "want an object, got null"},
			{"number", `1`, "want an object, got a number"},
			{"missing", `{"x":1}`, "it lacks " + key},
			{"in another case", `{"` + strings.ToUpper(key) + `":[]}`, "it lacks " + key},
		}
		if call.route == scripted.Responses {
			for value, kind := range map[string]string{`null`: "null", `{}`: "an object", `"[]"`: "a string", `7`: "a number", `false`: "a boolean"} {
				tests = append(tests, struct{ name, reply, want string }{"output " + value, `{"output":` + value + `}`, "output: want an array, got " + kind})
			}
			tests = append(tests, struct{ name, reply, want string }{"the last output counts", `{"output":[],"output":null}`, "output: want an array, got null"})
		} else {
			for _, value := range []string{`"agent-session-0"`, `7`, `null`, `["{{id}}"]`, `" {{id}}"`} {
				tests = append(tests, struct{ name, reply, want string }{"id " + value, `{"agent_session_id":` + value + `}`, "agent_session_id is not the " + id})
			}
		}
		for _, test := range tests {
			t.Run(call.what+" "+test.name, func(t *testing.T) {
				servers := scripted.New(t)
				servers.Play(scripted.Script{call.route: {{Raw: &test.reply}}})
				err := call.make(within(t), newSession(t, servers, protocol.EpisodeID{RolloutID: "r", Attempt: 2}, agentclient.Config{Name: "simple_agent"}))
				checkViolation(t, err, call.stage, "the reply of agent server simple_agent to "+call.what+": ", test.want)
				if n := len(servers.Calls()); n != 1 {
					t.Errorf("sent %d times", n)
				}
			})
		}
	}
}

// checkViolation checks the failure of a reply that is not what the contract says.
func checkViolation(t *testing.T, err error, stage failures.Stage, prefix, want string) {
	t.Helper()
	var got *failures.Failure
	if !errors.As(err, &got) {
		t.Fatalf("got %v, want a failure", err)
	}
	if !got.Terminal || got.Stage != stage || got.Kind != "" || got.Status != 0 {
		t.Errorf("terminal %v, stage %q, kind %q, status %d", got.Terminal, got.Stage, got.Kind, got.Status)
	}
	if !strings.HasPrefix(got.Reason, prefix) || !strings.Contains(got.Reason, want) {
		t.Errorf("reason %q, want %q and %q in it", got.Reason, prefix, want)
	}
}

// The agent's reply is judged by the verifier; only its output is looked at here.
func TestAnyObjectWithOutputIsAResponse(t *testing.T) {
	for _, reply := range []string{
		`{"output":[]}`,
		`{"output":[null,{"type":"unheard of"}],"status":"failed"}`,
		`{"output":null,"output":[],"status":"incomplete"}`,
		" \n{ \"x\" : 1e400, \"\\u006futput\" : [ ] } \n",
	} {
		servers := scripted.New(t)
		servers.Play(scripted.Script{scripted.Responses: {{Raw: &reply}}})
		got, err := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, agentclient.Config{}).Respond(within(t), []byte(`{}`))
		if err != nil || string(got) != reply {
			t.Errorf("%s: got %s, %v", reply, got, err)
		}
	}
}

func TestReceiptIsRead(t *testing.T) {
	for _, test := range []struct {
		name, fields string
		want         agentclient.Receipt
		violation    string
	}{
		{"nothing", ``, agentclient.Receipt{}, ""},
		{"nulls", `,"agent_observations":null,"agent_trajectory":null,"partial_response":null,"resources_cookies":null`, agentclient.Receipt{}, ""},
		{"an empty trajectory", `,"agent_trajectory":{ }`, agentclient.Receipt{}, ""},
		{"a trajectory without turns", `,"agent_trajectory":[]`, agentclient.Receipt{}, ""},
		{"all", `,"agent_observations":{"n": 1.0},"agent_trajectory":[ "<" ],"partial_response":{"output": []},"resources_cookies":{"res":"1","shard":"b c","res":"2"}`, agentclient.Receipt{
			Observations:    []byte(`{"n": 1.0}`),
			Trajectory:      []byte(`[ "<" ]`),
			PartialResponse: []byte(`{"output": []}`),
			Cookies:         []protocol.Pair{{Name: "res", Value: "2"}, {Name: "shard", Value: "b c"}},
		}, ""},
		{"no cookies", `,"resources_cookies":{}`, agentclient.Receipt{Cookies: []protocol.Pair{}}, ""},
		{"observations of any kind", `,"agent_observations":false`, agentclient.Receipt{Observations: []byte(`false`)}, ""},
		{"a partial response that none could verify", `,"partial_response":{"output":null}`, agentclient.Receipt{}, ""},
		{"a partial response that is text", `,"partial_response":"output"`, agentclient.Receipt{}, ""},
		{"cookies as a list", `,"resources_cookies":[]`, agentclient.Receipt{}, "resources_cookies: want an object, got an array"},
		{"cookies as text", `,"resources_cookies":"a=1"`, agentclient.Receipt{}, "resources_cookies: want an object, got a string"},
		{"a cookie that is a number", `,"resources_cookies":{"a":"x","b":1}`, agentclient.Receipt{}, `resources_cookies: want a string as the value of "b", got a number`},
		{"a cookie that is null", `,"resources_cookies":{"b":null}`, agentclient.Receipt{}, `resources_cookies: want a string as the value of "b", got null`},
		{"a cookie without a name", `,"resources_cookies":{"":"1"}`, agentclient.Receipt{}, `"" is not a cookie name`},
		{"a name that no header carries", `,"resources_cookies":{"a;b":"1"}`, agentclient.Receipt{}, `"a;b" is not a cookie name`},
		{"a name that ends the header", `,"resources_cookies":{"a\r\nX-Injected":"1"}`, agentclient.Receipt{}, `is not a cookie name`},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{scripted.AgentClose: {{Raw: new(`{"agent_session_id":"{{id}}"` + test.fields + `}`)}}})
			got, err := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, agentclient.Config{}).Close(within(t))
			if test.violation != "" {
				checkViolation(t, err, failures.StageCleanup, "the reply of agent server to POST /v1/agent_sessions/close: ", test.violation)
			} else if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("receipt (-want +got):\n%s", diff)
			}
		})
	}
}

// The refusals of each call have its stage and the kind of section 4; only the
// close is sent again.
func TestRefusalsHaveTheirStage(t *testing.T) {
	for _, call := range calls {
		for _, status := range []int{400, 409, 422, 408, 425, 429, 500, 502, 503, 504} {
			t.Run(call.what+" "+strconv.Itoa(status), func(t *testing.T) {
				servers := scripted.New(t)
				servers.Play(scripted.Script{call.route: {{Status: status, JSON: json.RawMessage(`{"detail":"its own words"}`), Headers: [][2]string{{"Retry-After", "0.001"}}}}})
				err := call.make(within(t), newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, agentclient.Config{TokenCapture: true}))
				var got *failures.Failure
				if !errors.As(err, &got) {
					t.Fatalf("got %v", err)
				}
				want := &failures.Failure{
					Stage: call.stage, Terminal: true, Status: status, RetryAfter: time.Millisecond,
					Reason: "agent server refused " + call.what + " with " + strconv.Itoa(status) + " " + http.StatusText(status) + ": its own words",
				}
				sends := 1
				if passing := status == 408 || status == 425 || status == 429 || status >= 500; passing {
					want.Terminal = false
					switch {
					case call.route == scripted.AgentClose:
						want.Kind, sends = failures.SessionReleaseFailed, 4
					case status == 429 || status == 502 || status == 503 || status == 504:
						want.Kind = failures.AgentRequestFailed
					default:
						want.Kind = failures.AgentRunError
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("failure (-want +got):\n%s", diff)
				}
				if n := len(servers.Calls()); n != sends {
					t.Errorf("sent %d times, want %d", n, sends)
				}
			})
		}
	}
}

// What broke a connection decides whether the agent may have run: its seed and its
// close come again, its answer never.
func TestOnlyTheAnswerIsNotAskedForAgain(t *testing.T) {
	for _, drop := range []scripted.Drop{scripted.BeforeRead, scripted.AfterRead, scripted.Garbage, scripted.MidHeaders, scripted.MidBody} {
		for _, call := range calls {
			t.Run(call.what+" "+string(drop), func(t *testing.T) {
				servers := scripted.New(t)
				servers.Play(scripted.Script{call.route: {{Drop: drop}, {Drop: drop}, {Default: true}}})
				err := call.make(within(t), newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, agentclient.Config{}))
				for _, c := range servers.Calls() {
					if cookie := c.Header.Get("Cookie"); c.Route == scripted.AgentSeed && cookie != "" {
						t.Errorf("a seed carries %q", cookie)
					}
				}
				if call.route != scripted.Responses {
					if n := len(servers.Calls()); err != nil || n != 3 {
						t.Errorf("%v after %d calls, want success at the third", err, n)
					}
					return
				}
				var got *failures.Failure
				if !errors.As(err, &got) || got.Kind != failures.TransportPeerDrop || got.Terminal || got.Stage != failures.StageAgent {
					t.Errorf("got %#v", err)
				}
				if n := len(servers.Calls()); n != 1 {
					t.Errorf("delivered %d times", n)
				}
			})
		}
	}
}

// A close that was refused or lost at first and then succeeds has its receipt.
func TestCloseThatSucceedsLaterHasItsReceipt(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.AgentClose: {{Status: 503}, {Drop: scripted.AfterRead}, {Status: 429}, {Raw: new(`{"agent_session_id":"{{id}}","agent_observations":{"n":1}}`)}}})
	got, err := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, agentclient.Config{}).Close(within(t))
	if err != nil || string(got.Observations) != `{"n":1}` || len(servers.Calls()) != 4 {
		t.Errorf("got %+v, %v after %d calls", got, err, len(servers.Calls()))
	}
}

// A session whose seed reply was lost is closed by its id alone.
func TestCloseNeedsNoCookie(t *testing.T) {
	servers := scripted.New(t)
	session := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, agentclient.Config{})
	if _, err := session.Close(within(t)); err != nil {
		t.Error(err)
	}
	if got := sentCalls(servers); len(got) != 1 || got[0].Cookie != "" || session.ID() != id {
		t.Errorf("calls %+v", got)
	}
}

// An agent server that needs no cookies may set none.
func TestAgentMayHaveNoCookies(t *testing.T) {
	servers := scripted.New(t)
	none := []scripted.Action{{SetCookie: []string{}}}
	servers.Play(scripted.Script{scripted.AgentSeed: none, scripted.Responses: none, scripted.AgentClose: none})
	session := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, agentclient.Config{})
	for _, call := range calls {
		if err := call.make(within(t), session); err != nil {
			t.Errorf("%s: %v", call.what, err)
		}
	}
	for _, call := range sentCalls(servers) {
		if call.Cookie != "" {
			t.Errorf("%s carries %q", call.Path, call.Cookie)
		}
	}
}

func TestNameAndURL(t *testing.T) {
	client := agentclient.New(agentclient.Config{URL: "http://127.0.0.1:9002/"})
	if client.Name() != "agent" || client.URL() != "http://127.0.0.1:9002" {
		t.Errorf("name %q, URL %q", client.Name(), client.URL())
	}
	if err := (agentclient.Config{URL: "127.0.0.1", Name: "simple_agent"}).Validate(); err == nil || !strings.HasPrefix(err.Error(), "agent server simple_agent: ") {
		t.Errorf("got %v", err)
	}
}
