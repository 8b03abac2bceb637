package resourcesclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/rawjson"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
)

const id = "resources-session-00112233445566778899aabbccddeeff"

var task = protocol.TaskID{Taskset: "weather", TaskID: "task/1 <é>"}

// newSession makes a session with a server that follows a script, on a pool of its
// own that is emptied when the test ends.
func newSession(t *testing.T, servers *scripted.Servers, episode protocol.EpisodeID, config resourcesclient.Config) *resourcesclient.Session {
	t.Helper()
	transport := pool.New()
	t.Cleanup(transport.CloseIdleConnections)
	config.URL, config.Transport = servers.ResourcesURL, transport
	config.Resend = retry.Resend{Pause: time.Millisecond}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	return resourcesclient.New(config).Session(id, episode, &failures.Secrets{})
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
	const data = `{"a": 9007199254740993, "b":1.0,"b":2e0 , "c":"<&>\u2028\ud800", "d":null}`
	for _, test := range []struct {
		name    string
		config  resourcesclient.Config
		episode protocol.EpisodeID
		prefix  string
		wire    string // the episode id
	}{
		{"plain", resourcesclient.Config{}, protocol.EpisodeID{RolloutID: "3-0"}, "", `{"rollout_id":"3-0","attempt":0}`},
		{"second attempt", resourcesclient.Config{}, protocol.EpisodeID{RolloutID: "3-0", Attempt: 1}, "", `{"rollout_id":"3-0","attempt":1}`},
		{"observability", resourcesclient.Config{Observability: true}, protocol.EpisodeID{RolloutID: "3-0"}, "/ng-rollout/3-0", `{"rollout_id":"3-0","attempt":0}`},
		{"observability, second attempt", resourcesclient.Config{Observability: true}, protocol.EpisodeID{RolloutID: "3-0", Attempt: 1}, "/ng-rollout/3-0-a1", `{"rollout_id":"3-0","attempt":1}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			session := newSession(t, servers, test.episode, test.config)
			ctx := within(t)
			if _, err := session.Seed(ctx, task, []byte(data)); err != nil {
				t.Fatal(err)
			}
			session.MergeCookies([]protocol.Pair{{Name: "shard", Value: "b c"}})
			if diff := cmp.Diff([]protocol.Pair{{Name: "res_session", Value: "res-cookie-1"}, {Name: "shard", Value: "b c"}}, session.Cookies()); diff != "" {
				t.Errorf("cookies (-want +got):\n%s", diff)
			}
			verdict, err := session.Verify(ctx, rawjson.Body{[]byte(`{"response":`), []byte(`1.0,"responses_create_params":{}}`)})
			if want := `{"responses_create_params":{},"response":1.0,"reward":1.0,"mask_sample":false,"failure_kind":null,"failure_reason":null}`; err != nil || string(verdict) != want {
				t.Fatalf("verdict %s, %v", verdict, err)
			}
			if err := session.Close(ctx); err != nil {
				t.Fatal(err)
			}
			want := []sent{
				{test.prefix + "/seed_session", "", "", "application/json",
					`{"resources_session_id":"` + id + `","episode_id":` + test.wire + `,"task_id":{"taskset":"weather","task_id":"task/1 <é>"},"task_data":` + data + `}`},
				{test.prefix + "/verify", "", `res_session=res-cookie-1; shard="b c"`, "application/json", `{"response":1.0,"responses_create_params":{}}`},
				{test.prefix + "/close_session", "", `res_session=res-cookie-8; shard="b c"`, "application/json",
					`{"resources_session_id":"` + id + `","episode_id":` + test.wire + `}`},
			}
			if diff := cmp.Diff(want, sentCalls(servers)); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// A seed whose reply was lost, and with it the cookie, is closed by its id alone.
func TestCloseNeedsNoCookie(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Seed: {{Drop: scripted.AfterRead}}})
	session := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, resourcesclient.Config{})
	_, err := session.Seed(within(t), task, []byte(`{}`))
	var failure *failures.Failure
	if !errors.As(err, &failure) || failure.Terminal || failure.Stage != failures.StageSeed || failure.Kind != failures.TransportPeerDrop {
		t.Errorf("got %#v", err)
	}
	if err := session.Close(within(t)); err != nil {
		t.Error(err)
	}
	calls := sentCalls(servers)
	last := calls[len(calls)-1]
	if len(calls) != 5 || last.Path != "/close_session" || last.Cookie != "" || !strings.Contains(last.Body, id) {
		t.Errorf("calls %+v", calls)
	}
}

func TestSeedReplyIsChecked(t *testing.T) {
	raw := func(body string) scripted.Action { return scripted.Action{Raw: &body} }
	for _, test := range []struct {
		name  string
		reply scripted.Action
		want  string // in the reason; "": accepted
	}{
		{"as the contract has it", raw(`{"resources_session_id":"{{id}}"}`), ""},
		{"unknown fields", raw(`{"x":[],"resources_session_id":"{{id}}"}`), ""},
		{"created", scripted.Action{Status: 201}, ""},
		{"the id last of two", raw(`{"resources_session_id":"other","resources_session_id":"{{id}}"}`), ""},
		{"the id escaped", raw(`{"resources\u005fsession_id":"\u0072` + id[1:] + `"}`), ""},
		{"nothing", raw(``), "not JSON"},
		{"no content", scripted.Action{Status: 204, Raw: new("")}, "not JSON"},
		{"text", raw(`seeded`), "not JSON"},
		{"two values", raw(`{} {}`), "not JSON"},
		{"NaN", raw(`{"resources_session_id":"{{id}}","x":NaN}`), "not JSON"},
		{"not UTF-8", raw("{\"resources_session_id\":\"{{id}}\",\"x\":\"\xff\"}"), "not JSON"},
		{"byte order mark", raw("\uFEFF{\"resources_session_id\":\"{{id}}\"}"), "not JSON"},
		{"too deep", raw(`{"resources_session_id":"{{id}}","x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`), "not JSON: nesting deeper"},
		{"HTML", scripted.Action{Raw: new("<html><body>welcome</body></html>"), ContentType: "text/html"}, "not JSON"},
		{"list", raw(`[]`), "want an object, got an array"},
		{"null", raw(`null`), "want an object, got null"},
		{"string", raw(`"{{id}}"`), "want an object, got a string"},
		{"no id", raw(`{}`), "it lacks resources_session_id"},
		{"another case", raw(`{"Resources_Session_Id":"{{id}}"}`), "it lacks resources_session_id"},
		{"wrong id", raw(`{"resources_session_id":"resources-session-0"}`), "resources_session_id is not the " + id},
		{"id that is no string", raw(`{"resources_session_id":7}`), "resources_session_id is not the " + id},
		{"id null", raw(`{"resources_session_id":null}`), "resources_session_id is not the " + id},
		{"no cookie", scripted.Action{SetCookie: []string{}}, "it sets no cookie"},
		{"a cookie that has expired", scripted.Action{SetCookie: []string{"res_session=x; Max-Age=0"}}, "it sets no cookie"},
		{"what is no cookie", scripted.Action{SetCookie: []string{"res_session"}}, "it sets no cookie"},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{scripted.Seed: {test.reply}})
			session := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, resourcesclient.Config{Name: "weather"})
			_, err := session.Seed(within(t), task, []byte(`{}`))
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			checkViolation(t, err, failures.StageSeed, "the reply of resources server weather to POST /seed_session: ", test.want)
			if n := len(servers.Calls()); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
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

// What the seed says of tools and sandbox is passed on as it came.
func TestSeedReplyIsNotLookedInto(t *testing.T) {
	for _, test := range []struct{ reply, tools, sandbox string }{
		{`{"resources_session_id":"{{id}}"}`, "", ""},
		{`{"resources_session_id":"{{id}}","resources_tools":null,"sandbox_access":null}`, "", ""},
		{`{"resources_session_id":"{{id}}","resources_tools":{ "a":1.0 },"sandbox_access":{"workdir":"<&>","n":1e2}}`, `{ "a":1.0 }`, `{"workdir":"<&>","n":1e2}`},
		{`{"resources_session_id":"{{id}}","resources_tools":7,"sandbox_access":[false]}`, `7`, `[false]`},
	} {
		servers := scripted.New(t)
		servers.Play(scripted.Script{scripted.Seed: {{Raw: &test.reply}}})
		got, err := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, resourcesclient.Config{}).Seed(within(t), task, []byte(`{}`))
		if err != nil || string(got.Tools) != test.tools || string(got.Sandbox) != test.sandbox {
			t.Errorf("%s: got %q, %q, %v", test.reply, got.Tools, got.Sandbox, err)
		}
	}
}

// The refusals of each call have its stage and the kind of section 4.
func TestRefusalsHaveTheirStage(t *testing.T) {
	calls := map[scripted.Route]func(context.Context, *resourcesclient.Session) error{
		scripted.Seed: func(ctx context.Context, s *resourcesclient.Session) error {
			_, err := s.Seed(ctx, task, []byte(`{}`))
			return err
		},
		scripted.Verify: func(ctx context.Context, s *resourcesclient.Session) error {
			_, err := s.Verify(ctx, rawjson.Body{[]byte(`{}`)})
			return err
		},
		scripted.CloseSession: func(ctx context.Context, s *resourcesclient.Session) error { return s.Close(ctx) },
	}
	for _, test := range []struct {
		route    scripted.Route
		status   int
		stage    failures.Stage
		kind     failures.Kind
		terminal bool
		sends    int
		what     string
	}{
		{scripted.Seed, 503, failures.StageSeed, "", false, 1, "POST /seed_session"},
		{scripted.Seed, 422, failures.StageSeed, "", true, 1, "POST /seed_session"},
		{scripted.Seed, 429, failures.StageSeed, "", false, 1, "POST /seed_session"},
		{scripted.Verify, 500, failures.StageVerification, failures.VerifierError, false, 1, "POST /verify"},
		{scripted.Verify, 404, failures.StageVerification, "", true, 1, "POST /verify"},
		{scripted.CloseSession, 503, failures.StageCleanup, failures.SessionReleaseFailed, false, 4, "POST /close_session"},
		{scripted.CloseSession, 409, failures.StageCleanup, "", true, 1, "POST /close_session"},
	} {
		servers := scripted.New(t)
		servers.Play(scripted.Script{test.route: {{Status: test.status, JSON: json.RawMessage(`{"detail":"its own words"}`)}}})
		session := newSession(t, servers, protocol.EpisodeID{RolloutID: "r", Attempt: 3}, resourcesclient.Config{Observability: true})
		err := calls[test.route](within(t), session)
		var got *failures.Failure
		if !errors.As(err, &got) {
			t.Fatalf("%s %d: got %v", test.route, test.status, err)
		}
		got.Reason, got.Status = strings.TrimSuffix(got.Reason, "its own words"), 0
		want := &failures.Failure{Stage: test.stage, Kind: test.kind, Terminal: test.terminal,
			Reason: "resources server refused " + test.what + " with " + statusLine(test.status) + ": "}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %d (-want +got):\n%s", test.route, test.status, diff)
		}
		if n := len(servers.Calls()); n != test.sends {
			t.Errorf("%s %d: sent %d times, want %d", test.route, test.status, n, test.sends)
		}
	}
}

func statusLine(status int) string {
	return strings.TrimSpace(jsonNumber(status) + " " + http.StatusText(status))
}

func jsonNumber(n int) string {
	text, _ := json.Marshal(n)
	return string(text)
}

// A seed and verify whose connection failed come again, with the same ids; the
// close comes again after a refusal that may pass as well.
func TestBrokenCallsAreSentAgain(t *testing.T) {
	for _, drop := range []scripted.Drop{scripted.BeforeRead, scripted.AfterRead, scripted.Garbage, scripted.MidHeaders, scripted.MidBody} {
		t.Run(string(drop), func(t *testing.T) {
			servers := scripted.New(t)
			lost := []scripted.Action{{Drop: drop}, {Drop: drop}, {Drop: drop}, {Default: true}}
			servers.Play(scripted.Script{scripted.Seed: lost, scripted.Verify: lost, scripted.CloseSession: {{Drop: drop}, {Status: 503}, {Status: 408}, {Default: true}}})
			session := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, resourcesclient.Config{})
			if _, err := session.Seed(within(t), task, []byte(`{}`)); err != nil {
				t.Error(err)
			}
			if _, err := session.Verify(within(t), rawjson.Body{[]byte(`{}`)}); err != nil {
				t.Error(err)
			}
			if err := session.Close(within(t)); err != nil {
				t.Error(err)
			}
			bodies := map[scripted.Route]map[string]bool{}
			for _, c := range servers.Calls() {
				// A seed opens the session: the cookie of a reply that was cut off
				// is none of its own.
				if cookie := c.Header.Get("Cookie"); c.Route == scripted.Seed && cookie != "" {
					t.Errorf("a seed carries %q", cookie)
				}
				if bodies[c.Route] == nil {
					bodies[c.Route] = map[string]bool{}
				}
				if drop != scripted.BeforeRead { // with it, bodies are not read
					bodies[c.Route][string(c.Body)] = true
				}
			}
			for route, different := range bodies {
				if len(different) > 1 {
					t.Errorf("%s was sent with different bodies: %v", route, different)
				}
			}
			if n := len(servers.Calls()); n != 12 {
				t.Errorf("%d calls, want 4 of each", n)
			}
		})
	}
}

// The body of a close reply that succeeded is nobody's business.
func TestCloseReplyIsIgnored(t *testing.T) {
	for _, body := range []string{"", "closed", "[]", `{"resources_session_id":"another"}`} {
		servers := scripted.New(t)
		servers.Play(scripted.Script{scripted.CloseSession: {{Raw: &body}}})
		if err := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, resourcesclient.Config{}).Close(within(t)); err != nil {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestFailuresAboutTheSession(t *testing.T) {
	servers := scripted.New(t)
	session := newSession(t, servers, protocol.EpisodeID{RolloutID: "r"}, resourcesclient.Config{Name: "weather"})
	checkViolation(t, session.NotVerdict("it lacks reward"), failures.StageVerification, "the reply of resources server weather to POST /verify: ", "it lacks reward")
	checkViolation(t, session.ToolsUnusable("no MCP metadata"), failures.StageSeed, "the reply of resources server weather to POST /seed_session: ", "no MCP metadata")
	limit := &failures.EpisodeLimit{After: time.Minute}
	got := session.Unverified(limit)
	if got.Terminal || got.Stage != failures.StageVerification || got.Kind != failures.TransportTimeout || got.Reason != "Episode timed out after 1m0s in POST /verify to resources server weather" || !errors.Is(got, limit) {
		t.Errorf("unverified: %+v", got)
	}
	if session.ID() != id || len(servers.Calls()) != 0 {
		t.Errorf("id %s after %d calls", session.ID(), len(servers.Calls()))
	}
}

func TestAggregateMetricsIsForwardedUnread(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Metrics: {{Default: true}, {Status: 422, Raw: new("not JSON"), ContentType: "text/plain"}}})
	transport := pool.New()
	t.Cleanup(transport.CloseIdleConnections)
	client := resourcesclient.New(resourcesclient.Config{URL: servers.ResourcesURL + "/", Transport: transport, Observability: true})
	reply, err := client.ForwardMetrics(within(t), []byte(`{"any": NaN`))
	if err != nil || reply.Status != 200 || !json.Valid(reply.Body) {
		t.Errorf("got %+v, %v", reply, err)
	}
	reply, err = client.ForwardMetrics(within(t), nil)
	if err != nil || reply.Status != 422 || string(reply.Body) != "not JSON" || reply.ContentType != "text/plain" {
		t.Errorf("got %+v, %v", reply, err)
	}
	want := []sent{{"/aggregate_metrics", "", "", "application/json", `{"any": NaN`}, {"/aggregate_metrics", "", "", "application/json", ""}}
	if diff := cmp.Diff(want, sentCalls(servers)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestNameAndURL(t *testing.T) {
	client := resourcesclient.New(resourcesclient.Config{URL: "http://127.0.0.1:9001/"})
	if client.Name() != "resources" || client.URL() != "http://127.0.0.1:9001" {
		t.Errorf("name %q, URL %q", client.Name(), client.URL())
	}
	if err := (resourcesclient.Config{URL: "127.0.0.1", Name: "weather"}).Validate(); err == nil || !strings.HasPrefix(err.Error(), "resources server weather: ") {
		t.Errorf("got %v", err)
	}
}

// Sessions of one client have jars of their own.
func TestSessionsShareNoCookies(t *testing.T) {
	servers := scripted.New(t)
	transport := pool.New()
	t.Cleanup(transport.CloseIdleConnections)
	client := resourcesclient.New(resourcesclient.Config{URL: servers.ResourcesURL, Transport: transport})
	one := client.Session("resources-session-1", protocol.EpisodeID{RolloutID: "r"}, nil)
	other := client.Session("resources-session-2", protocol.EpisodeID{RolloutID: "r"}, nil)
	if _, err := one.Seed(within(t), task, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if calls := sentCalls(servers); calls[1].Cookie != "" {
		t.Errorf("the other session carries %q", calls[1].Cookie)
	}
}
