package episode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
	"example.com/turn/retry"
)

// whole is an episode in which nothing goes wrong.
var whole = []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.Verify, scripted.CloseSession}

func text(s string) *string { return &s }

func TestAnEpisodeIsTheTableOfTheProtocol(t *testing.T) {
	servers := scripted.New(t)
	d := newDriver(t, configFor(servers))
	result := mustSucceed(t, d.Run(t.Context(), newRequest()))
	if result.Reward != 1 || result.Masked {
		t.Errorf("reward %v, masked %t; want 1, false", result.Reward, result.Masked)
	}
	if diff := cmp.Diff(whole, servers.Routes()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	calls := servers.Calls()
	rs, as := field(t, calls[0].Body, "resources_session_id"), field(t, calls[1].Body, "agent_session_id")
	want := []string{
		`{"resources_session_id":"` + rs + `","episode_id":{"rollout_id":"7-0","attempt":0},"task_id":{"taskset":"weather","task_id":"t-7"},"task_data":{"expected":"cold"}}`,
		`{"agent_session_id":"` + as + `","episode_id":{"rollout_id":"7-0","attempt":0},"task_id":{"taskset":"weather","task_id":"t-7"},"tool_accesses":[],"sandbox_access":null}`,
		`{"input":"how warm is it in Oslo?"}`,
		`{"agent_session_id":"` + as + `","episode_id":{"rollout_id":"7-0","attempt":0}}`,
		`{"expected":"cold","responses_create_params":{"input":"how warm is it in Oslo?"},"response":` + string(calls[2].Answer) + `}`,
		`{"resources_session_id":"` + rs + `","episode_id":{"rollout_id":"7-0","attempt":0}}`,
	}
	for i, call := range calls {
		if got := string(call.Body); got != want[i] {
			t.Errorf("body of %s is\n%s\nwant\n%s", call.Route, got, want[i])
		}
	}
}

// A seed whose reply is lost has made what only its close can free.
func TestALostSeedReplyIsClosedByIDWithoutACookie(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Seed: {{Drop: scripted.AfterRead}}})
	config := configFor(servers)
	config.Resources.Resend.Max = -1
	f := mustFail(t, newDriver(t, config).Run(t.Context(), newRequest()))
	if f.Stage != failures.StageSeed || f.Terminal {
		t.Errorf("stage %s, terminal %t; want seed, false", f.Stage, f.Terminal)
	}
	calls := servers.Calls()
	if diff := cmp.Diff([]scripted.Route{scripted.Seed, scripted.CloseSession}, servers.Routes()); diff != "" {
		t.Fatalf("calls (-want +got):\n%s", diff)
	}
	id := field(t, calls[0].Body, "resources_session_id")
	if want := `{"resources_session_id":"` + id + `","episode_id":{"rollout_id":"7-0","attempt":0}}`; string(calls[1].Body) != want {
		t.Errorf("the close says %s, want %s", calls[1].Body, want)
	}
	if cookie := calls[1].Header.Get("Cookie"); cookie != "" {
		t.Errorf("the close carries the cookie %q, which nobody set", cookie)
	}
}

// Every call may fail; whatever was opened before is closed, last opened first,
// and once.
func TestEveryExitClosesWhatWasOpened(t *testing.T) {
	refused := scripted.Action{Status: http.StatusInternalServerError, JSON: []byte(`{"detail":"broken"}`)}
	for _, test := range []struct {
		fails scripted.Route
		want  []scripted.Route
	}{
		{scripted.Seed, []scripted.Route{scripted.Seed, scripted.CloseSession}},
		{scripted.AgentSeed, []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.AgentClose, scripted.CloseSession}},
		{scripted.Responses, []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.CloseSession}},
		{scripted.Verify, whole},
	} {
		t.Run(string(test.fails), func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{test.fails: {refused}})
			mustFail(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))
			if diff := cmp.Diff(test.want, servers.Routes()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// When the caller gives up, the call under way is cut, and the closes still run:
// with each call in turn pending.
func TestACancelledEpisodeIsStillClosed(t *testing.T) {
	for _, test := range []struct {
		pending scripted.Route
		stage   failures.Stage
		want    []scripted.Route
	}{
		{scripted.Seed, failures.StageSeed, []scripted.Route{scripted.Seed, scripted.CloseSession}},
		{scripted.AgentSeed, failures.StageAgent, []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.AgentClose, scripted.CloseSession}},
		{scripted.Responses, failures.StageAgent, []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.CloseSession}},
		{scripted.Verify, failures.StageVerification, whole},
	} {
		t.Run(string(test.pending), func(t *testing.T) {
			servers := scripted.New(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			gone := &failures.Stop{Kind: failures.Cancelled, Reason: "the caller went away"}
			servers.Play(scripted.Script{test.pending: {{Hang: true, Do: func(scripted.Call) { cancel(gone) }}}})
			f := mustFail(t, newDriver(t, configFor(servers)).Run(ctx, newRequest()))
			if f.Stage != test.stage || f.Kind != failures.Cancelled || f.Terminal || !errors.Is(f, gone) {
				t.Errorf("got %+v; want stage %s, kind cancelled, not terminal", f, test.stage)
			}
			if diff := cmp.Diff(test.want, servers.Routes()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			for attempt := range episode.Attempts(ctx, newDriver(t, configFor(servers)), newRequest(), retry.Policy{}) {
				if attempt.Again {
					t.Error("an episode that was given up is to be tried again")
				}
			}
			if err := servers.Idle(soon(t), 0); err != nil {
				t.Errorf("the call that was cut is still under way: %v", err)
			}
		})
	}
}

// A resources server may refuse a close while the agent's session is attached: in
// no normal run does it see one.
func TestTheAgentSessionIsClosedBeforeTheResourcesSession(t *testing.T) {
	servers := scripted.New(t)
	attached := newSet()
	servers.Play(scripted.Script{
		scripted.AgentSeed:  {{Do: func(c scripted.Call) { attached.add(rolloutOf(t, c)) }}},
		scripted.AgentClose: {{Do: func(c scripted.Call) { attached.remove(rolloutOf(t, c)) }}},
		scripted.CloseSession: {{Do: func(c scripted.Call) {
			if rollout := rolloutOf(t, c); attached.has(rollout) {
				t.Errorf("the resources session of %s is closed while its agent session is open", rollout)
			}
		}}},
	})
	d := newDriver(t, configFor(servers))
	requests := func(yield func(*episode.Request) bool) {
		for i := range 50 {
			r := newRequest()
			r.EpisodeID.RolloutID = fmt.Sprintf("%d-0", i)
			if !yield(r) {
				return
			}
		}
	}
	ended := 0
	for outcome := range episode.All(t.Context(), d, requests, episode.Options{Concurrency: 50}) {
		mustSucceed(t, outcome.Reply)
		ended++
	}
	if ended != 50 {
		t.Errorf("%d episodes ended, want 50", ended)
	}
}

// A close that is refused is told of, with the id by which a person finds the
// session.
func TestARefusedCloseIsLoggedWithItsSession(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.CloseSession: {{Status: http.StatusConflict, JSON: []byte(`{"detail":"still attached"}`)}}})
	var log strings.Builder
	config := configFor(servers)
	config.Logger = zerolog.New(&log)
	mustSucceed(t, newDriver(t, config).Run(t.Context(), newRequest()))
	id := field(t, callsOn(servers, scripted.CloseSession)[0].Body, "resources_session_id")
	for _, want := range []string{id, "still attached", "409", `"level":"warn"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, log.String())
		}
	}
}

// An agent close that is refused for a while is repeated, and the episode goes on
// to verify.
func TestAnAgentCloseThatSucceedsLaterGoesOnToVerify(t *testing.T) {
	for _, status := range []int{408, 425, 429, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			servers := scripted.New(t)
			busy := scripted.Action{Status: status}
			servers.Play(scripted.Script{scripted.AgentClose: {busy, {Drop: scripted.AfterRead}, busy, {Default: true}}})
			mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))
			if got := len(callsOn(servers, scripted.AgentClose)); got != 4 {
				t.Errorf("the agent close was sent %d times, want 4", got)
			}
		})
	}
}

// A connection that breaks is no reason for an agent to run twice: a dropped turn
// ends the attempt, and the next one has ids of its own.
func TestADroppedTurnIsANewAttempt(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Drop: scripted.AfterRead}, {Default: true}}})
	d := newDriver(t, configFor(servers))
	mustSucceed(t, episode.Redispatch(t.Context(), d, newRequest(), retry.Policy{Backoff: time.Millisecond}))

	first := []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.CloseSession}
	if diff := cmp.Diff(append(first, whole...), servers.Routes()); diff != "" {
		t.Fatalf("calls (-want +got):\n%s", diff)
	}
	var turns []string
	for _, call := range callsOn(servers, scripted.Responses) {
		turns = append(turns, call.Path)
	}
	if diff := cmp.Diff([]string{"/ng-rollout/7-0/v1/responses", "/ng-rollout/7-0-a1/v1/responses"}, turns); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	for route, name := range map[scripted.Route]string{scripted.Seed: "resources_session_id", scripted.AgentSeed: "agent_session_id"} {
		seeds := callsOn(servers, route)
		if a, b := field(t, seeds[0].Body, name), field(t, seeds[1].Body, name); a == b {
			t.Errorf("both attempts have the %s %s", name, a)
		}
	}
}

// Redispatch is the only loop: a server that refuses sees one call an attempt.
func TestRefusalsAreCountedOnceAnAttempt(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		want   int
	}{{"that may pass", 503, 3}, {"that is final", 422, 1}} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{scripted.Seed: {{Status: test.status, JSON: []byte(`{"detail":"no"}`)}}})
			var log strings.Builder
			config := configFor(servers)
			config.Logger = zerolog.New(&log)
			policy := retry.Policy{MaxAttempts: 3, Backoff: time.Millisecond}
			mustFail(t, episode.Redispatch(t.Context(), newDriver(t, config), newRequest(), policy))
			if got := len(callsOn(servers, scripted.Seed)); got != test.want {
				t.Errorf("%d seed calls, want %d", got, test.want)
			}
			if got := strings.Count(log.String(), "an episode failed"); got != test.want {
				t.Errorf("the log tells of %d attempts, want %d:\n%s", got, test.want, log.String())
			}
		})
	}
}

// What the server said outlives the retries, in the project's own words and not in
// a library's.
func TestTheLastRefusalsWordsSurviveTheRetries(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Seed: {{
		Status: http.StatusTooManyRequests, JSON: []byte(`{"detail":"quota for team"}`), Headers: [][2]string{{"Retry-After", "1"}},
	}}})
	policy := retry.Policy{MaxAttempts: 2, Backoff: time.Millisecond}
	f := mustFail(t, episode.Redispatch(t.Context(), newDriver(t, configFor(servers)), newRequest(), policy))
	want := "resources server bench refused POST /seed_session with 429 Too Many Requests: quota for team"
	if f.Reason != want {
		t.Errorf("reason %q, want %q", f.Reason, want)
	}
}

// Those that were told to come back in a second come neither earlier nor together.
func TestRetryAfterIsAFloorAndSpreads(t *testing.T) {
	servers := scripted.New(t)
	const n = 50
	refused := scripted.Action{Status: http.StatusServiceUnavailable, Headers: [][2]string{{"Retry-After", "1"}}}
	script := make([]scripted.Action, n, n+1)
	for i := range script {
		script[i] = refused
	}
	servers.Play(scripted.Script{scripted.Seed: append(script, scripted.Action{Default: true})})
	requests := func(yield func(*episode.Request) bool) {
		for i := range n {
			r := newRequest()
			r.EpisodeID.RolloutID = fmt.Sprintf("%d-0", i)
			if !yield(r) {
				return
			}
		}
	}
	options := episode.Options{Concurrency: n, Policy: retry.Policy{Backoff: 10 * time.Millisecond}}
	for outcome := range episode.All(t.Context(), newDriver(t, configFor(servers)), requests, options) {
		mustSucceed(t, outcome.Reply)
	}
	refusedAt := map[string]time.Time{}
	var earliest, latest time.Duration
	for _, call := range callsOn(servers, scripted.Seed) {
		rollout := rolloutOf(t, call)
		first, again := refusedAt[rollout]
		if !again {
			refusedAt[rollout] = call.Ended
			continue
		}
		wait := call.Arrived.Sub(first)
		if earliest == 0 || wait < earliest {
			earliest = wait
		}
		latest = max(latest, wait)
	}
	// The refusal ends on the server a moment after its headers have left it.
	if earliest < 990*time.Millisecond {
		t.Errorf("one came back after %s, want at least 1s", earliest)
	}
	if spread := latest - earliest; spread < 200*time.Millisecond {
		t.Errorf("all came back within %s of each other, want at least 200ms", spread)
	}
}

// Nobody listens: the failure comes in a bounded time, the first try is told of at
// once, and the place is free for the next episode.
func TestAServerThatIsNotThere(t *testing.T) {
	servers := scripted.New(t)
	var log strings.Builder
	config := configFor(servers)
	config.Resources.URL = "http://" + deadAddress(t)
	config.Resources.Logger = zerolog.New(&log)
	config.Concurrency, config.QueueTimeout = 1, eventually
	d := newDriver(t, config)
	f := mustFail(t, d.Run(t.Context(), newRequest()))
	if f.Kind != failures.TransportUnreachable || f.Terminal || f.Stage != failures.StageSeed {
		t.Errorf("got %+v, want transport_unreachable, stage seed, not terminal", f)
	}
	if !strings.Contains(f.Reason, "resources server bench") || !strings.Contains(f.Reason, "POST /seed_session") {
		t.Errorf("reason %q does not name the server and the call", f.Reason)
	}
	if got := strings.Count(log.String(), `"level":"warn"`); got != 1 {
		t.Errorf("%d warnings, want one:\n%s", got, log.String())
	}
	if f := mustFail(t, d.Run(t.Context(), newRequest())); f.Stage == failures.StageAdmission {
		t.Errorf("the place was not given back: %v", f)
	}
}

func TestAnAgentThatNeverStartedGivesNoReward(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.AgentSeed: {{Status: 422, JSON: []byte(`{"detail":"needs a sandbox"}`)}}})
	reply := newDriver(t, configFor(servers)).Run(t.Context(), newRequest())
	f := mustFail(t, reply)
	if !f.Terminal || f.Stage != failures.StageAgent {
		t.Errorf("got %+v, want terminal, stage agent", f)
	}
	for _, want := range []string{"needs a sandbox", "agent server helper"} {
		if !strings.Contains(f.Reason, want) {
			t.Errorf("reason %q lacks %q", f.Reason, want)
		}
	}
	if body := string(reply.Body(nil).Bytes()); strings.Contains(body, "reward") {
		t.Errorf("the reply has a reward: %s", body)
	}
}

// A body without a success status is no verdict, and neither is a success without
// the body.
func TestAnUnsuccessfulVerifyIsNoResult(t *testing.T) {
	for _, test := range []struct {
		name   string
		action scripted.Action
	}{
		{"500 with a reward", scripted.Action{Status: 500, JSON: []byte(`{"reward":1.0}`)}},
		{"200 with a page", scripted.Action{Raw: text("<html>hello</html>"), ContentType: "text/html"}},
		{"200 with nothing in it", scripted.Action{JSON: []byte(`{}`)}},
		{"200 with a list", scripted.Action{JSON: []byte(`[1]`)}},
		{"200 without the response", scripted.Action{JSON: []byte(`{"reward":1,"responses_create_params":{}}`)}},
		{"200 with a mask that is none", scripted.Action{JSON: []byte(`{"reward":1,"mask_sample":"perhaps","responses_create_params":{},"response":{}}`)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{scripted.Verify: {test.action}})
			f := mustFail(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))
			if f.Stage != failures.StageVerification || f.Terminal != (test.action.Status == 0) {
				t.Errorf("got %+v, want stage verification", f)
			}
			if want := callsOn(servers, scripted.Responses)[0].Answer; string(f.PartialResponse) != string(want) {
				t.Errorf("partial response %s, want the agent's", f.PartialResponse)
			}
		})
	}
}

// A number that is not finite makes no score, however it is spelled, and also in a
// field that nobody reads it is no JSON: the failure says what it was, and what comes
// out is JSON to the strictest reader.
func TestANumberThatIsNotFinite(t *testing.T) {
	const rest = `,"response":{},"responses_create_params":{}}`
	for _, test := range []struct{ name, verdict, has string }{
		{"a reward of NaN", `{"reward": NaN` + rest, `not JSON: "NaN" where a value should be at byte 11`},
		{"a reward without an end", `{"reward":Infinity` + rest, `not JSON: "Infinity" where a value should be at byte 10`},
		{"a reward below all others", `{"reward":-Infinity` + rest, `not JSON: "Infinity" where a digit should be at byte 11`},
		{"a reward too large", `{"reward":1e400` + rest, "reward: 1e400 is not a finite number"},
		{"a reward too small", `{"reward":-1e400` + rest, "reward: -1e400 is not a finite number"},
		{"NaN in quotes", `{"reward":"NaN"` + rest, `reward: "NaN" does not spell a finite number`},
		{"an infinity in quotes", `{"reward":"-inf"` + rest, `reward: "-inf" does not spell a finite number`},
		{"too large in quotes", `{"reward":"1e400"` + rest, `reward: "1e400" does not spell a finite number`},
		{"what orjson makes of NaN", `{"reward":null` + rest, "reward: want a number, got null"},
		{"another field", `{"reward":1,"score":Infinity` + rest, `not JSON: "Infinity" where a value should be at byte 20`},
		{"deep in another field", `{"reward":1,"scores":[{"of":[0.5,NaN]}]` + rest, `not JSON: "NaN" where a value should be at byte 33`},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(scripted.Script{scripted.Verify: {{Raw: text(test.verdict)}}})
			reply := newDriver(t, configFor(servers)).Run(t.Context(), newRequest())
			f := mustFail(t, reply)
			want := "the reply of resources server bench to POST /verify: " + test.has
			if f.Reason != want || !f.Terminal || f.Stage != failures.StageVerification || f.PartialResponse == nil {
				t.Errorf("got %+v, want a terminal failure of verify: %q", f, want)
			}
			if servers.Routes()[len(whole)-1] != scripted.CloseSession {
				t.Errorf("calls %v, want the close at the end", servers.Routes())
			}
			for name, body := range map[string]episode.Body{
				"0.7": reply.Body(nil), "main": reply.Body((*failures.Failure).MainBody), "a flat row": reply.LegacyBody("helper"),
			} {
				var fields map[string]any
				if err := json.Unmarshal(body.Bytes(), &fields); err != nil {
					t.Errorf("%s: %v in %s", name, err, body.Bytes())
				}
				if strings.Contains(string(body.Bytes()), `"reward"`) {
					t.Errorf("%s has a reward: %s", name, body.Bytes())
				}
			}
		})
	}
}

// A server sends its cookie once only, or twice in one reply, or never again.
func TestCookiesAreKeptAndTheLastOneWins(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{
		scripted.Seed:      {{SetCookie: []string{"s=first; Path=/", "s=last", `route="a b"; HttpOnly`}}},
		scripted.Verify:    {{SetCookie: []string{}}},
		scripted.AgentSeed: {{SetCookie: []string{"agent=one"}}},
		scripted.Responses: {{SetCookie: []string{}}},
	})
	mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))
	want := []string{"", "", "agent=one", "agent=one", `s=last; route="a b"`, `s=last; route="a b"`}
	var got []string
	for _, call := range servers.Calls() {
		got = append(got, call.Header.Get("Cookie"))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cookies (-want +got):\n%s", diff)
	}
}

// The cookies that an agent's tool calls changed come back with its close, and are
// carried by verify and by the resources close, also when the turn failed.
func TestCookiesThatTheAgentBringsBack(t *testing.T) {
	receipt := scripted.Action{JSON: []byte(`{"agent_session_id":"{{id}}","resources_cookies":{"res_session":"res-cookie-1","route":"node b"}}`)}
	for name, script := range map[string]scripted.Script{
		"after an answer":         {scripted.AgentClose: {receipt}, scripted.Verify: {{SetCookie: []string{}}}},
		"after a turn that fails": {scripted.AgentClose: {receipt}, scripted.Responses: {{Status: 500}}},
	} {
		t.Run(name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(script)
			newDriver(t, configFor(servers)).Run(t.Context(), newRequest())
			for _, route := range []scripted.Route{scripted.Verify, scripted.CloseSession} {
				for _, call := range callsOn(servers, route) {
					if got, want := call.Header.Get("Cookie"), `res_session=res-cookie-1; route="node b"`; got != want {
						t.Errorf("%s carries %q, want %q", route, got, want)
					}
				}
			}
			if len(callsOn(servers, scripted.CloseSession)) != 1 {
				t.Error("the resources session was not closed")
			}
		})
	}
}

// Numbers, text and escapes of what is passed through stay as they were written.
func TestBodiesPassThroughUntouched(t *testing.T) {
	const data = `{"a":9007199254740993,"b":18446744073709551616,"c":1.0,"d":1e-7,"e":12345678.0,"t":"<b> & >","u":"` + "\u2028\u2029" + `","v":"\u003c\ud83d\ude00\ud800","A":1}`
	const params = `{ "input" : "<i>&" , "temperature":1.0, "seed":18446744073709551616 }`
	const response = `{"output": [ {"t":"<&>` + "\u2028" + `"} ],"n":1.10,"status":"failed"}`
	servers := scripted.New(t)
	servers.Play(scripted.Script{
		scripted.Responses: {{Raw: text(response)}},
		scripted.Verify:    {{Raw: text(`{"reward":1.50,"responses_create_params":"{{params}}","response":"{{response}}","big":18446744073709551616,"html":"<&>"}`)}},
	})
	request := newRequest()
	request.TaskData, request.Params = []byte(data), []byte(params)
	reply := newDriver(t, configFor(servers)).Run(t.Context(), request)
	result := mustSucceed(t, reply)

	calls := servers.Calls()
	inner := strings.TrimSuffix(strings.TrimPrefix(data, "{"), "}")
	for i, want := range map[int]string{
		0: `"task_data":` + data + `}`,
		2: params,
		4: `{` + inner + `,"responses_create_params":` + params + `,"response":` + response + `}`,
	} {
		if got := string(calls[i].Body); !strings.HasSuffix(got, want) {
			t.Errorf("body of %s is\n%s\nwant\n%s", calls[i].Route, got, want)
		}
	}
	want := `{"reward":1.50,"responses_create_params":` + params + `,"response":` + response + `,"big":18446744073709551616,"html":"<&>","ng_agent_observations":null}`
	if got := string(result.Body().Bytes()); got != want {
		t.Errorf("result is\n%s\nwant\n%s", got, want)
	}
}

// A task's field may have the name of one of ours, which wins, and no name is there
// twice.
func TestATaskFieldNamedLikeOneOfOurs(t *testing.T) {
	servers := scripted.New(t)
	request := newRequest()
	request.TaskData = []byte(`{"response":"mine","a":1,"\u0072esponses_create_params":"mine","a":2}`)
	mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), request))
	response := string(callsOn(servers, scripted.Responses)[0].Answer)
	want := `{"a":2,"responses_create_params":` + string(request.Params) + `,"response":` + response + `}`
	if got := string(callsOn(servers, scripted.Verify)[0].Body); got != want {
		t.Errorf("verify body\n%s\nwant\n%s", got, want)
	}
}

// Reward and mask are read as pydantic reads them, and printed as what they are.
func TestASpellingOfRewardAndMask(t *testing.T) {
	for _, test := range []struct{ reward, mask, want string }{
		{"true", `"yes"`, `{"reward":1.0,"mask_sample":true`},
		{"false", `0`, `{"reward":0.0,"mask_sample":false`},
		{`" 0.50 "`, `1.0`, `{"reward":0.5,"mask_sample":true`},
		{`"1e3"`, `"OFF"`, `{"reward":1000,"mask_sample":false`},
		{"-0.0", "true", `{"reward":-0.0,"mask_sample":true`},
		{"1", `"1"`, `{"reward":1,"mask_sample":true`},
		{"1", `"True"`, `{"reward":1,"mask_sample":true`},
		{"1", `"t"`, `{"reward":1,"mask_sample":true`},
		{"1", `"Y"`, `{"reward":1,"mask_sample":true`},
		{"1", `"on"`, `{"reward":1,"mask_sample":true`},
		{"1", `"0"`, `{"reward":1,"mask_sample":false`},
		{"1", `"FALSE"`, `{"reward":1,"mask_sample":false`},
		{"1", `"f"`, `{"reward":1,"mask_sample":false`},
		{"1", `"no"`, `{"reward":1,"mask_sample":false`},
		{"1", `"n"`, `{"reward":1,"mask_sample":false`},
		{"12345678901234567890123", "false", `{"reward":12345678901234567890123,"mask_sample":false`},
	} {
		servers := scripted.New(t)
		servers.Play(scripted.Script{scripted.Verify: {{Raw: text(`{"reward":` + test.reward + `,"mask_sample":` + test.mask + `,"response":{},"responses_create_params":{}}`)}}})
		result := mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))
		if got := string(result.Body().Bytes()); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s, %s: got %s, want %s…", test.reward, test.mask, got, test.want)
		}
		if result.Masked != strings.Contains(test.want, `"mask_sample":true`) {
			t.Errorf("%s: masked is %t", test.mask, result.Masked)
		}
	}
}

// What is a bug of ours ends one episode, and its sessions are closed all the same.
func TestAPanicIsThatEpisodesFailure(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Agent.Transport = panicking{on: protocol.PathResponses, next: http.DefaultTransport}
	d := newDriver(t, config)
	f := mustFail(t, d.Run(t.Context(), newRequest()))
	if !f.Terminal || !strings.HasPrefix(f.Reason, "Unhandled environment server error: ") {
		t.Errorf("got %+v, want a terminal unhandled error", f)
	}
	want := []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.AgentClose, scripted.CloseSession}
	if diff := cmp.Diff(want, servers.Routes()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// A bug in the last call, or in what is told of its failure, costs no verdict.
func TestAPanicInTheResourcesCloseCostsNoVerdict(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.CloseSession: {{Status: http.StatusConflict}}})
	broken, told := configFor(servers), configFor(servers)
	broken.Resources.Transport = panicking{on: protocol.PathCloseSession, next: http.DefaultTransport}
	told.Observer = toldOfCloses{tell: func(episode.Server) { panic("a bug") }}
	for name, config := range map[string]episode.Config{"in the call": broken, "in the callback": told} {
		if result := mustSucceed(t, newDriver(t, config).Run(t.Context(), newRequest())); result.Reward != 1 {
			t.Errorf("%s: reward %v, want 1", name, result.Reward)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// toldOfCloses is told of the closes that fail.
type toldOfCloses struct {
	episode.Unobserved
	tell func(episode.Server)
}

func (o toldOfCloses) CloseFailed(server episode.Server) { o.tell(server) }

// panicking panics on one call.
type panicking struct {
	on   string
	next http.RoundTripper
}

func (p panicking) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, p.on) {
		panic("a bug")
	}
	return p.next.RoundTrip(r)
}
