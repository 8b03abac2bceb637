package episode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
)

// The calls of an episode whose failure is its outcome, with the stage of each.
var stages = []struct {
	route  scripted.Route
	stage  failures.Stage
	server string
	what   string
}{
	{scripted.Seed, failures.StageSeed, "resources server bench", "POST /seed_session"},
	{scripted.AgentSeed, failures.StageAgent, "agent server helper", "POST /v1/agent_sessions"},
	{scripted.Responses, failures.StageAgent, "agent server helper", "POST /v1/responses"},
	{scripted.AgentClose, failures.StageCleanup, "agent server helper", "POST /v1/agent_sessions/close"},
	{scripted.Verify, failures.StageVerification, "resources server bench", "POST /verify"},
}

// The rows of section 4 about a status, for each call.
func TestWhatAStatusMeans(t *testing.T) {
	const none = failures.Kind("")
	kinds := map[failures.Stage]func(status int) failures.Kind{
		failures.StageSeed: func(int) failures.Kind { return none },
		failures.StageAgent: func(status int) failures.Kind {
			switch status {
			case 429, 502, 503, 504:
				return failures.AgentRequestFailed
			}
			return failures.AgentRunError
		},
		failures.StageCleanup:      func(int) failures.Kind { return failures.SessionReleaseFailed },
		failures.StageVerification: func(int) failures.Kind { return failures.VerifierError },
	}
	servers := scripted.New(t)
	d := newDriver(t, configFor(servers))
	for _, status := range []int{300, 301, 302, 303, 304, 305, 307, 308, 400, 401, 403, 404, 408, 409, 410, 418, 422, 425, 429, 451, 499, 500, 501, 502, 503, 504, 507, 599} {
		transient := status == 408 || status == 425 || status == 429 || status >= 500
		for _, call := range stages {
			t.Run(fmt.Sprintf("%d from %s", status, call.route), func(t *testing.T) {
				servers.Play(scripted.Script{call.route: {{
					Status: status, JSON: []byte(`{"detail":"its own words"}`),
					Headers: [][2]string{{"Location", "http://elsewhere.invalid/"}},
				}}})
				f := mustFail(t, d.Run(t.Context(), newRequest()))
				kind := none
				if transient {
					kind = kinds[call.stage](status)
				}
				if f.Stage != call.stage || f.Terminal == transient || f.Kind != kind || f.Status != status {
					t.Errorf("got stage %s, terminal %t, kind %q, status %d; want %s, %t, %q, %d",
						f.Stage, f.Terminal, f.Kind, f.Status, call.stage, !transient, kind, status)
				}
				line := strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
				want := fmt.Sprintf("%s refused %s with %s", call.server, call.what, line)
				if status != http.StatusNotModified { // which has no body
					want += ": its own words"
				}
				if !strings.HasPrefix(f.Reason, want) {
					t.Errorf("reason %q, want %q", f.Reason, want)
				}
			})
		}
	}
}

// The kind that a reply names is taken over, at each call, and decides nothing.
func TestAKindThatTheReplyNames(t *testing.T) {
	servers := scripted.New(t)
	d := newDriver(t, configFor(servers))
	for _, call := range stages {
		for _, test := range []struct {
			status int
			body   string
		}{
			{503, `{"failure_kind":"provider_oom_killed"}`},
			{422, `{"detail":{"failure_kind":"provider_oom_killed"}}`},
			{400, `{"error":{"failure_kind":"provider_oom_killed","message":"x"}}`},
		} {
			servers.Play(scripted.Script{call.route: {{Status: test.status, JSON: []byte(test.body)}}})
			f := mustFail(t, d.Run(t.Context(), newRequest()))
			if f.Kind != failures.ProviderOOMKilled || f.Terminal != (test.status != 503) {
				t.Errorf("%s from %s: kind %q, terminal %t", test.body, call.route, f.Kind, f.Terminal)
			}
		}
	}
}

// The rows about connections that end.
func TestWhatABrokenConnectionMeans(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Resources.Resend.Max, config.Agent.Resend.Max = -1, -1
	d := newDriver(t, config)
	for _, drop := range []scripted.Drop{scripted.BeforeRead, scripted.AfterRead, scripted.Garbage, scripted.MidHeaders, scripted.MidBody} {
		for _, call := range stages {
			t.Run(fmt.Sprintf("%s by %s", drop, call.route), func(t *testing.T) {
				servers.Play(scripted.Script{call.route: {{Drop: drop}}})
				f := mustFail(t, d.Run(t.Context(), newRequest()))
				if f.Stage != call.stage || f.Terminal || f.Kind != failures.TransportPeerDrop {
					t.Errorf("got %+v; want stage %s, transport_peer_drop, not terminal", f, call.stage)
				}
				if !strings.Contains(f.Reason, call.server) || !strings.Contains(f.Reason, call.what) {
					t.Errorf("reason %q does not name server and call", f.Reason)
				}
			})
		}
	}
}

// The rows about connections that do not come to be.
func TestWhatAMissingConnectionMeans(t *testing.T) {
	for _, test := range []struct {
		name string
		dial func(context.Context, string, string) (net.Conn, error)
		kind failures.Kind
		has  string
	}{
		{"refused", func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, deadAddress(t))
		}, failures.TransportUnreachable, "connection refused"},
		{"no such host", func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "gone.invalid", IsNotFound: true}}
		}, failures.TransportUnreachable, "gone.invalid"},
		{"no descriptors", func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		}, failures.TransportLocalResource, "ulimit -n"},
		{"no ports", func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}
		}, failures.TransportLocalResource, "concurrency"},
		{"the peer's network is gone", func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ETIMEDOUT)}
		}, failures.TransportUnreachable, "timed out"},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			config := configFor(servers)
			transport := pool.New()
			transport.DialContext = test.dial
			config.Resources.Transport = transport
			f := mustFail(t, newDriver(t, config).Run(t.Context(), newRequest()))
			if f.Stage != failures.StageSeed || f.Terminal || f.Kind != test.kind || !strings.Contains(f.Reason, test.has) {
				t.Errorf("got stage %s, terminal %t, kind %q, reason %q; want seed, false, %q, …%s…", f.Stage, f.Terminal, f.Kind, f.Reason, test.kind, test.has)
			}
		})
	}
}

// verdict is a verify reply that has those fields.
func verdict(fields string) scripted.Action {
	return scripted.Action{Raw: text(`{"responses_create_params":{},"response":{},` + fields + `}`)}
}

// The row about replies that are not what the contract says.
func TestAReplyThatIsNotTheContracts(t *testing.T) {
	for _, test := range []struct {
		route scripted.Route
		name  string
		reply scripted.Action
		has   string
	}{
		{scripted.Seed, "not JSON", scripted.Action{Raw: text(`{"resources_session_id": `)}, "not JSON"},
		{scripted.Seed, "empty", scripted.Action{Raw: text(``)}, "not JSON"},
		{scripted.Seed, "a list", scripted.Action{JSON: []byte(`[]`)}, "want an object, got an array"},
		{scripted.Seed, "no id", scripted.Action{JSON: []byte(`{}`)}, "lacks resources_session_id"},
		{scripted.Seed, "another id", scripted.Action{JSON: []byte(`{"resources_session_id":"x"}`)}, "resources_session_id is not"},
		{scripted.Seed, "an id that is no text", scripted.Action{JSON: []byte(`{"resources_session_id":1}`)}, "resources_session_id is not"},
		{scripted.Seed, "no cookie", scripted.Action{SetCookie: []string{}}, "sets no cookie"},
		{scripted.Seed, "an expired cookie", scripted.Action{SetCookie: []string{"s=1; Max-Age=0"}}, "sets no cookie"},
		{scripted.Seed, "not UTF-8", scripted.Action{Raw: text("{\"resources_session_id\":\"{{id}}\",\"x\":\"\xff\"}")}, "not UTF-8"},
		{scripted.AgentSeed, "no id", scripted.Action{JSON: []byte(`{}`)}, "lacks agent_session_id"},
		{scripted.AgentSeed, "another id", scripted.Action{JSON: []byte(`{"agent_session_id":"x"}`)}, "agent_session_id is not"},
		{scripted.Responses, "not JSON", scripted.Action{Raw: text(`hello`)}, "not JSON"},
		{scripted.Responses, "text", scripted.Action{JSON: []byte(`"hello"`)}, "got a string"},
		{scripted.Responses, "no output", scripted.Action{JSON: []byte(`{"id":"r"}`)}, "lacks output"},
		{scripted.Responses, "output is no list", scripted.Action{JSON: []byte(`{"output":null}`)}, "output: want an array, got null"},
		{scripted.AgentClose, "another id", scripted.Action{JSON: []byte(`{"agent_session_id":"x"}`)}, "agent_session_id is not"},
		{scripted.AgentClose, "cookies that are none", scripted.Action{JSON: []byte(`{"agent_session_id":"{{id}}","resources_cookies":["a"]}`)}, "resources_cookies"},
		{scripted.AgentClose, "a cookie that is no text", scripted.Action{JSON: []byte(`{"agent_session_id":"{{id}}","resources_cookies":{"a":1}}`)}, "resources_cookies"},
		{scripted.AgentClose, "a cookie with a line break in its name", scripted.Action{JSON: []byte(`{"agent_session_id":"{{id}}","resources_cookies":{"a\r\nX: y":"1"}}`)}, "resources_cookies"},
		{scripted.Verify, "not JSON", scripted.Action{Raw: text(`{"reward":1,}`)}, "not JSON"},
		{scripted.Verify, "no reward", scripted.Action{JSON: []byte(`{"response":{},"responses_create_params":{}}`)}, "lacks reward"},
		{scripted.Verify, "no response", scripted.Action{JSON: []byte(`{"reward":1,"response":null,"responses_create_params":{}}`)}, "response: want an object, got null"},
		{scripted.Verify, "params that are none", scripted.Action{JSON: []byte(`{"reward":1,"response":{},"responses_create_params":"x"}`)}, "responses_create_params: want an object, got a string"},
		{scripted.Verify, "a reason that is no text", verdict(`"reward":1,"failure_reason":5`), "failure_reason: want text or null"},
		{scripted.Verify, "a reward beyond all", verdict(`"reward":1e400`), "reward: 1e400 is not a finite number"},
		{scripted.Verify, "a reward in text beyond all", verdict(`"reward":"1e400"`), `reward: "1e400" does not spell a finite number`},
		{scripted.Verify, "a reward in text that is none", verdict(`"reward":"-."`), `reward: "-." does not spell a finite number`},
		{scripted.Verify, "a reward in Go's text", verdict(`"reward":"0x1p-2"`), `reward: "0x1p-2" does not spell a finite number`},
		{scripted.Verify, "a long reward", verdict(`"reward":"` + strings.Repeat("é", 40) + `"`), `reward: "` + strings.Repeat("é", 29) + "… does not spell"},
		{scripted.Verify, "a mask that is a number", verdict(`"reward":1,"mask_sample":2`), "mask_sample: want a boolean, got 2"},
		{scripted.Verify, "a mask that is null", verdict(`"reward":1,"mask_sample":null`), "mask_sample: want a boolean, got null"},
		{scripted.Verify, "a mask in other text", verdict(`"reward":1,"mask_sample":"perhaps"`), `mask_sample: "perhaps" is not a boolean`},
		{scripted.Verify, "a kind that is no text", scripted.Action{JSON: []byte(`{"reward":1,"failure_kind":5,"response":{},"responses_create_params":{}}`)}, "failure_kind: want text or null"},
	} {
		t.Run(string(test.route)+" "+test.name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{test.route: {test.reply}})
			f := mustFail(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))
			if want := stageOf(test.route); f.Stage != want || !f.Terminal || f.Kind != "" {
				t.Errorf("got stage %s, terminal %t, kind %q; want %s, true, none", f.Stage, f.Terminal, f.Kind, want)
			}
			if !strings.Contains(f.Reason, test.has) || !strings.HasPrefix(f.Reason, "the reply of ") {
				t.Errorf("reason %q lacks %q", f.Reason, test.has)
			}
		})
	}
}

func stageOf(route scripted.Route) failures.Stage {
	for _, call := range stages {
		if call.route == route {
			return call.stage
		}
	}
	return ""
}

// The statuses that succeed, and the replies that look wrong and are not.
func TestAReplyThatIsFine(t *testing.T) {
	for name, script := range map[string]scripted.Script{
		"201 and 202":             {scripted.Seed: {{Status: 201}}, scripted.Verify: {{Status: 202}}, scripted.AgentClose: {{Status: 299}}},
		"an incomplete response":  {scripted.Responses: {{JSON: []byte(`{"status":"incomplete","output":[]}`)}}},
		"a failed response":       {scripted.Responses: {{JSON: []byte(`{"status":"failed","output":[]}`)}}},
		"fields nobody knows":     {scripted.Seed: {{JSON: []byte(`{"resources_session_id":"{{id}}","x":1}`)}}, scripted.AgentSeed: {{JSON: []byte(`{"agent_session_id":"{{id}}","y":[]}`)}}},
		"cookies are null":        {scripted.AgentClose: {{JSON: []byte(`{"agent_session_id":"{{id}}","resources_cookies":null}`)}}},
		"the close reply is text": {scripted.CloseSession: {{Raw: text(`closed`)}}},
		"a byte order of members": {scripted.Verify: {{JSON: []byte(` {"response": {}, "reward" : true, "mask_sample": "no", "responses_create_params": {}} `)}}},
	} {
		t.Run(name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(script)
			if result := mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest())); result.Reward != 1 || result.Masked {
				t.Errorf("reward %v, masked %t; want 1, false", result.Reward, result.Masked)
			}
		})
	}
}

// When both the agent's part and its close fail, the first is the failure and the
// second stands beside it.
func TestACleanupErrorStandsBesideTheFailure(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{
		scripted.Responses:  {{Status: 500, JSON: []byte(`{"detail":"model broke"}`)}},
		scripted.AgentClose: {{Status: 409, JSON: []byte(`{"detail":"not yours"}`)}},
	})
	reply := newDriver(t, configFor(servers)).Run(t.Context(), newRequest())
	f := mustFail(t, reply)
	if f.Stage != failures.StageAgent || !strings.Contains(f.Reason, "model broke") || !strings.Contains(f.CleanupError, "not yours") {
		t.Errorf("got stage %s, reason %q, cleanup error %q", f.Stage, f.Reason, f.CleanupError)
	}
	if body := string(reply.Body(nil).Bytes()); strings.Contains(body, "cleanup_error") {
		t.Errorf("0.7.0 would refuse %s", body)
	}
	if body := string(reply.Body((*failures.Failure).MainBody).Bytes()); !strings.Contains(body, `"cleanup_error":"agent server helper refused`) {
		t.Errorf("later main is not told: %s", body)
	}
}

// The parts of a secret that a server may quote alone are secrets too.
func TestNoPartOfASecretReachesAReason(t *testing.T) {
	for _, test := range []struct{ name, tools, words, want string }{
		{"a query's value", `"url_path":"/mcp?a=1&token=tok.en12345"`, "bad token tok.en12345", "bad token ***"},
		{"as it is meant", `"url_path":"/mcp?token=tok%2Een12345"`, "bad token tok.en12345 (tok%2Een12345)", "bad token *** (***)"},
		{"a header's parameter", `"headers":{"Authorization":"Token  token=\"tok.en12345\""}`, "bad token tok.en12345", "bad token ***"},
		{"a header of cookies", `"headers":{"Cookie":"x=tok.en12345; y=2"}`, "bad cookie tok.en12345", "bad cookie ***"},
		{"what follows a scheme and spaces", `"headers":{"Authorization":"Bearer  tok.en12345"}`, "Bearer tok.en12345 is bad", "Bearer *** is bad"},
		{"a scheme is none", `"headers":{"Authorization":"Bearer tok.en12345"}`, "Bearer is missing", "Bearer is missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			words, err := json.Marshal(map[string]string{"detail": test.words})
			if err != nil {
				t.Fatal(err)
			}
			servers.Play(scripted.Script{
				scripted.Seed:      {{JSON: []byte(`{"resources_session_id":"{{id}}","resources_tools":{"server_name":"w",` + test.tools + `}}`)}},
				scripted.AgentSeed: {{Status: 422, JSON: words}},
			})
			config := configFor(servers)
			config.ToolTransports = []protocol.ToolTransport{protocol.MCP}
			f := mustFail(t, newDriver(t, config).Run(t.Context(), newRequest()))
			if want := "agent server helper refused POST /v1/agent_sessions with 422 Unprocessable Entity: " + test.want; f.Reason != want {
				t.Errorf("reason %q, want %q", f.Reason, want)
			}
		})
	}
}

// Secrets of ours stay out of the reason, also when a server repeats them.
func TestNoSecretReachesAReason(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{
		scripted.Seed: {{
			SetCookie: []string{`session="quoted secret"; Path=/`, "other=plain-secret"},
			JSON:      []byte(`{"resources_session_id":"{{id}}","resources_tools":{"server_name":"w","url_path":"/mcp?key=query-secret","headers":{"X-Token":"header-secret","Authorization":"Bearer bearer-secret"}}}`),
		}},
		scripted.Responses: {{Status: 500, JSON: []byte(`{"detail":"quoted secret plain-secret header-secret agent-cookie-1 token bearer-secret ?key=query-secret short"}`)}},
	})
	config := configFor(servers)
	config.ToolTransports = append(config.ToolTransports, "mcp", "direct_http")
	f := mustFail(t, newDriver(t, config).Run(t.Context(), newRequest()))
	want := "agent server helper refused POST /v1/responses with 500 Internal Server Error: *** *** *** *** token *** ?*** short"
	if f.Reason != want {
		t.Errorf("reason %q, want %q", f.Reason, want)
	}
}

// What the agent observed of an episode that failed is logged, for 0.7.0 has no
// place for it in a reply; without the secrets that the agent was given.
func TestWhatWasObservedIsLoggedWithoutSecrets(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{
		scripted.Seed:       {{SetCookie: []string{"session=secret-cookie"}}},
		scripted.AgentClose: {{JSON: []byte(`{"agent_session_id":"{{id}}","agent_observations":{"sent": "Cookie: session=secret-cookie"}}`)}},
		scripted.Verify:     {{Status: 500}},
	})
	var log strings.Builder
	config := configFor(servers)
	config.Logger = zerolog.New(&log)
	mustFail(t, newDriver(t, config).Run(t.Context(), newRequest()))
	if strings.Contains(log.String(), "secret-cookie") || !strings.Contains(log.String(), "Cookie: session=***") {
		t.Errorf("the log is %s", log.String())
	}
}

// A body that is made of faults is refused with no more than a few of them.
func TestFaultsAreBounded(t *testing.T) {
	var body strings.Builder
	body.WriteString(`{"x":0`)
	for i := range 100_000 {
		fmt.Fprintf(&body, `,"x%d":0`, i)
	}
	body.WriteString("}")
	_, err := episode.ParseRequest([]byte(body.String()))
	var invalid *episode.InvalidRequest
	if !errors.As(err, &invalid) || len(invalid.Faults) != 201 {
		t.Fatalf("got %T with %d faults, want 200 and what is left out", err, len(invalid.Faults))
	}
	// What is missing goes before what is too much.
	for at, want := range map[int]string{0: "Field required", 1: "Field required", 2: "Extra inputs are not permitted", 200: "left out: 99803 more"} {
		if got := invalid.Faults[at].Msg; got != want {
			t.Errorf("fault %d is %q, want %q", at, got, want)
		}
	}
	_, err = episode.ParseRequest([]byte(`{"` + strings.Repeat("é", 1_000_000) + `":1}`))
	if !errors.As(err, &invalid) || len(err.Error()) > 1000 {
		t.Errorf("a long name is refused in %d bytes", len(err.Error()))
	}
}

func TestARequestThatIsNotValidMakesNoCall(t *testing.T) {
	servers := scripted.New(t)
	d := newDriver(t, configFor(servers))
	request := newRequest()
	request.EpisodeID.RolloutID, request.TaskData, request.Params = "a/b", []byte(`{`), nil
	f := mustFail(t, d.Run(t.Context(), request))
	var invalid *episode.InvalidRequest
	if !errors.As(f, &invalid) || len(invalid.Faults) != 3 || !f.Terminal {
		t.Errorf("got %v, want a terminal failure that names three faults", f)
	}
	if calls := servers.Calls(); len(calls) != 0 {
		t.Errorf("%d calls, want none", len(calls))
	}
}

// What a program changes of a request after it was parsed is what counts.
func TestARequestThatWasParsedAndChanged(t *testing.T) {
	servers := scripted.New(t)
	d := newDriver(t, configFor(servers))
	request, err := episode.ParseRequest([]byte(`{"episode_id":{"rollout_id":"1-0"},"task":{"task_id":{"taskset":"a","task_id":"b"},"task_input":{"responses_create_params":{"input":"x"},"task_data":{"city":"Oslo"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	request.TaskData = []byte(`{"city":"Lima"}`)
	mustSucceed(t, d.Run(t.Context(), request))
	for _, route := range []scripted.Route{scripted.Seed, scripted.Verify} {
		if body := string(callsOn(servers, route)[0].Body); !strings.Contains(body, "Lima") || strings.Contains(body, "Oslo") {
			t.Errorf("%s says %s, want Lima", route, body)
		}
	}
	request.EpisodeID.RolloutID = "../../etc"
	mustFail(t, d.Run(t.Context(), request))
	request.EpisodeID.RolloutID, request.TaskData = "1-0", []byte(`{`)
	if request.Validate() == nil {
		t.Error("task data that is not JSON is found valid")
	}
	if f := mustFail(t, d.Run(t.Context(), nil)); !f.Terminal {
		t.Errorf("no request at all: %+v, want a terminal failure", f)
	}
}

// Each of the two bodies is looked at again when it is another one, and a request
// that a program made when it was not looked at yet.
func TestAChangedBodyIsCheckedAgain(t *testing.T) {
	const body = `{"episode_id":{"rollout_id":"1-0"},"task":{"task_id":{"taskset":"a","task_id":"b"},"task_input":{"responses_create_params":{"input":"x"},"task_data":{"city":"Oslo"}}}}`
	const params, data = "responses_create_params", "task_data"
	servers := scripted.New(t)
	d := newDriver(t, configFor(servers))
	for _, test := range []struct {
		name   string
		change func(*episode.Request)
		fault  string // "": it is still valid
		is     string // what call 4 and the end of verify's body then say
	}{
		{"not at all", func(*episode.Request) {}, "", `{"input":"x"}`},
		{"params that are no JSON", func(r *episode.Request) { r.Params = []byte(`{"input":`) }, params, ""},
		{"params that are no object", func(r *episode.Request) { r.Params = []byte(`["x"]`) }, params, ""},
		{"params that ask for a stream", func(r *episode.Request) { r.Params = []byte(`{"stream":true}`) }, params + ".stream", ""},
		{"params of the same length", func(r *episode.Request) { r.Params = []byte(`{"input":"x"]`) }, params, ""},
		{"no params", func(r *episode.Request) { r.Params = nil }, params, ""},
		{"fewer of the same bytes", func(r *episode.Request) { r.Params = r.Params[:len(r.Params)-1] }, params, ""},
		{"params in white space", func(r *episode.Request) { r.Params = []byte("\n {\"input\":\"y\"} \n") }, "", `{"input":"y"}`},
		{"task data that is no JSON", func(r *episode.Request) { r.TaskData = []byte(`{"city":`) }, data, ""},
		{"task data of the same length", func(r *episode.Request) { r.TaskData = []byte(`{"city":"Oslo"]`) }, data, ""},
		{"a request without bodies", func(r *episode.Request) {
			*r = episode.Request{EpisodeID: r.EpisodeID, TaskID: r.TaskID}
		}, params, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers.Play(nil)
			request, err := episode.ParseRequest([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			test.change(request)
			reply := d.Run(t.Context(), request)
			if test.fault == "" {
				mustSucceed(t, reply)
				if got := string(callsOn(servers, scripted.Responses)[0].Body); got != test.is {
					t.Errorf("the agent is asked %q, want %q", got, test.is)
				}
				if got, want := string(callsOn(servers, scripted.Verify)[0].Body), `,"responses_create_params":`+test.is+`,"response":`; !strings.Contains(got, want) {
					t.Errorf("verify says %s, want %s in it", got, want)
				}
				return
			}
			f := mustFail(t, reply)
			var invalid *episode.InvalidRequest
			if !errors.As(f, &invalid) || len(invalid.Faults) != 1 || strings.Join(invalid.Faults[0].Path, ".") != test.fault {
				t.Errorf("got %v, want one fault, in %s", f, test.fault)
			}
			if calls := servers.Routes(); len(calls) != 0 {
				t.Errorf("calls %v, want none", calls)
			}
		})
	}
}

// What a program checks beforehand is what an episode would find.
func TestParamsAreCheckedAsAnEpisodeChecksThem(t *testing.T) {
	for _, params := range []string{`{"input":"x"}`, " \n{}\t", ``, ` `, `null`, `[]`, `{`, `{} {}`, ` {"stream": true } `, `{"stream":false}`, `{"stream":1}`} {
		request := newRequest()
		request.Params = []byte(params)
		if diff := cmp.Diff(request.Validate(), episode.CheckParams([]byte(params))); diff != "" {
			t.Errorf("%q is checked differently (-episode +before):\n%s", params, diff)
		}
	}
}

func TestANameThatCannotNameItsToolAccess(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Resources.Name = "my server"
	newDriver(t, config)
	config.ToolTransports = append(config.ToolTransports, "direct_http")
	if _, err := episode.NewDriver(config); err == nil || !strings.Contains(err.Error(), `"my server.direct_http"`) {
		t.Errorf("got %v, want an error that shows the name", err)
	}
}

func TestAReplyLargerThanTheLimit(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Raw: text(`{"output":["{{repeat}}"]}`), Repeat: 1000, RepeatText: "x"}}})
	config := configFor(servers)
	config.Agent.MaxReplyBytes = 500
	f := mustFail(t, newDriver(t, config).Run(t.Context(), newRequest()))
	if !f.Terminal || f.Stage != failures.StageAgent || !strings.Contains(f.Reason, "larger than the limit of 500 bytes") {
		t.Errorf("got %+v", f)
	}
}

func TestFieldsOfCollectorsAreLeftOutOfAResult(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{
		scripted.Verify:     {{JSON: []byte(`{"reward":1,"_ng_x":1,"ng_trajectory":{},"ng_model_call_capture":1,"ng_perf":2,"ng_other":3,"ng_agent_observations":"the verifier's","response":{},"responses_create_params":{}}`)}},
		scripted.AgentClose: {{JSON: []byte(`{"agent_session_id":"{{id}}","agent_observations":{"a":1.0},"agent_trajectory":[2]}`)}},
	})
	result := mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))
	want := `{"reward":1,"ng_other":3,"response":{},"responses_create_params":{},"ng_agent_observations":{"a":1.0},"ng_trajectory":[2]}`
	if got := string(result.Body().Bytes()); got != want {
		t.Errorf("result %s, want %s", got, want)
	}
}

// allClosed checks that what was seeded was closed. A close may be there for a seed
// that was given up before it was sent.
func allClosed(t *testing.T, servers *scripted.Servers) {
	t.Helper()
	closed := map[string]bool{}
	for _, call := range callsOn(servers, scripted.CloseSession) {
		closed[field(t, call.Body, "resources_session_id")] = true
	}
	for _, call := range callsOn(servers, scripted.Seed) {
		if len(call.Body) == 0 {
			continue // it was given up before it was whole, and opened nothing
		}
		if id := field(t, call.Body, "resources_session_id"); !closed[id] {
			t.Errorf("session %s was seeded and not closed", id)
		}
	}
}

// What servers send that is odd is told once, and not for each episode.
func TestOddKindsAndFieldsAreToldOnce(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Verify: {{JSON: []byte(`{"reward":1,"_ng_x":1,"ng_perf":2,"failure_kind":"Not A Kind","response":{},"responses_create_params":{}}`)}}})
	var log strings.Builder
	config := configFor(servers)
	config.Logger = zerolog.New(&log)
	d := newDriver(t, config)
	for range 3 {
		mustSucceed(t, d.Run(t.Context(), newRequest()))
	}
	servers.Play(scripted.Script{scripted.Seed: {{Status: 422, JSON: []byte(`{"failure_kind":"made_up"}`)}}})
	for range 2 {
		mustFail(t, d.Run(t.Context(), newRequest()))
	}
	for text, want := range map[string]int{`"field":"_ng_x"`: 1, `"field":"ng_perf"`: 1, `"failure_kind":"Not A Kind"`: 1, "neither registered nor namespaced": 2} {
		if got := strings.Count(log.String(), text); got != want {
			t.Errorf("the log has %s %d times, want %d:\n%s", text, got, want, log.String())
		}
	}
}

// One outcome comes for every request, whatever becomes of it.
func TestAllYieldsOneOutcomeForEveryRequest(t *testing.T) {
	requests := func(n int) func(func(*episode.Request) bool) {
		return func(yield func(*episode.Request) bool) {
			for i := range n {
				r := newRequest()
				r.EpisodeID.RolloutID = fmt.Sprintf("%d-0", i)
				if !yield(r) {
					return
				}
			}
		}
	}
	t.Run("when a server dies half-way", func(t *testing.T) {
		servers := scripted.New(t)
		served := []scripted.Action{{}, {}, {}, {}, {}, {}, {}, {}}
		servers.Play(scripted.Script{scripted.Responses: append(served, scripted.Action{Drop: scripted.AfterRead})})
		seen, results := map[string]int{}, 0
		options := episode.Options{Concurrency: 4}
		options.Policy.Backoff = time.Millisecond
		for outcome := range episode.All(t.Context(), newDriver(t, configFor(servers)), requests(16), options) {
			seen[outcome.Request.EpisodeID.RolloutID]++
			if outcome.Result != nil {
				results++
			}
		}
		if len(seen) != 16 || results != 8 {
			t.Errorf("%d outcomes with %d results, want 16 with 8", len(seen), results)
		}
	})
	t.Run("when the context ends", func(t *testing.T) {
		servers := scripted.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		servers.Play(scripted.Script{scripted.Responses: {{}, {}, {Hang: true, Do: func(scripted.Call) { cancel() }}}})
		outcomes := 0
		for range episode.All(ctx, newDriver(t, configFor(servers)), requests(16), episode.Options{Concurrency: 1}) {
			outcomes++
		}
		if got := len(callsOn(servers, scripted.Seed)); outcomes != 16 || got != 3 {
			t.Errorf("%d outcomes and %d seeds, want 16 and 3", outcomes, got)
		}
	})
	t.Run("until the loop is left", func(t *testing.T) {
		servers := scripted.New(t)
		taken := 0
		counted := func(yield func(*episode.Request) bool) {
			for r := range requests(1000) {
				taken++
				if !yield(r) {
					return
				}
			}
		}
		for range episode.All(t.Context(), newDriver(t, configFor(servers)), counted, episode.Options{Concurrency: 4}) {
			break
		}
		if taken > 10 {
			t.Errorf("%d requests were taken", taken)
		}
		allClosed(t, servers)
	})
	t.Run("when the loop's body panics", func(t *testing.T) {
		servers := scripted.New(t)
		defer func() {
			if got := recover(); got != "the caller's bug" {
				t.Errorf("recovered %v", got)
			}
			allClosed(t, servers)
		}()
		for range episode.All(t.Context(), newDriver(t, configFor(servers)), requests(16), episode.Options{Concurrency: 4}) {
			panic("the caller's bug")
		}
	})
	t.Run("when the requests panic", func(t *testing.T) {
		servers := scripted.New(t)
		broken := func(yield func(*episode.Request) bool) {
			for r := range requests(5) {
				yield(r)
			}
			panic("the source's bug")
		}
		outcomes := 0
		defer func() {
			if got := recover(); got != "the source's bug" || outcomes != 5 {
				t.Errorf("recovered %v after %d outcomes, want the bug after 5", got, outcomes)
			}
		}()
		for range episode.All(t.Context(), newDriver(t, configFor(servers)), broken, episode.Options{Concurrency: 2}) {
			outcomes++
		}
	})
}

// A request that its source gives after the loop was left begins nothing, though there
// is room for it: not even an episode that is cancelled at once, which a log would
// tell of. (Of two things that are ready Go picks either, hence the rounds.)
func TestARequestThatComesAfterTheLoopWasLeftIsNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{}
		var log strings.Builder
		d, stop := b.driver(t, func(c *episode.Config) { c.Logger = zerolog.New(&log).Level(zerolog.InfoLevel) })
		defer stop()
		const rounds = 40
		for range rounds {
			taken := 0
			late := func(yield func(*episode.Request) bool) {
				taken++
				if !yield(newRequest()) {
					return
				}
				synctest.Wait() // until all that is left to happen is what comes of this request
				taken++
				if yield(newRequest()) {
					t.Error("after the loop was left another request is asked for")
				}
			}
			for outcome := range episode.All(t.Context(), d, late, episode.Options{Concurrency: 1}) {
				mustSucceed(t, outcome.Reply)
				break
			}
			if taken != 2 {
				t.Fatalf("%d requests were taken, want 2", taken)
			}
		}
		if log.Len() != 0 {
			t.Errorf("an episode was begun: %s", log.String())
		}
		if got := len(b.paths()); got != rounds*len(whole) {
			t.Errorf("%d calls, want %d", got, rounds*len(whole))
		}
	})
}
