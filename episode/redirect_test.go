package episode_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/scripted"
)

// redirectable are the calls of an episode, each with a later one to the same server.
var redirectable = []struct {
	route scripted.Route
	path  string
	later scripted.Route // "": there is no later call
}{
	{scripted.Seed, "/seed_session", scripted.Verify},
	{scripted.AgentSeed, "/v1/agent_sessions", scripted.Responses},
	{scripted.Responses, "/ng-rollout/7-0/v1/responses", scripted.AgentClose},
	{scripted.AgentClose, "/v1/agent_sessions/close", ""},
	{scripted.Verify, "/verify", scripted.CloseSession},
	{scripted.CloseSession, "/close_session", ""},
}

func redirectTo(status int, location string) scripted.Action {
	return scripted.Action{
		Status: status, JSON: []byte(`{"detail":"over there"}`),
		Headers: [][2]string{{"Location", location}}, SetCookie: []string{"shard=7; Path=/"},
	}
}

// A server may send any call on to another of its paths: the same method, the same
// body and the cookies of the jar go there, with the one that the redirect sets, and
// the episode goes on. Only the seeds carry none: they open their sessions.
func TestACallThatItsServerSendsOn(t *testing.T) {
	for _, status := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		for _, call := range redirectable {
			t.Run(fmt.Sprint(status, " ", call.route), func(t *testing.T) {
				servers := scripted.New(t)
				servers.Play(scripted.Script{call.route: {redirectTo(status, "/moved"+call.path), {Default: true}}})
				mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))

				var want []scripted.Route
				for _, route := range whole {
					if want = append(want, route); route == call.route {
						want = append(want, route)
					}
				}
				if diff := cmp.Diff(want, servers.Routes()); diff != "" {
					t.Fatalf("calls (-want +got):\n%s", diff)
				}
				legs := callsOn(servers, call.route)
				if legs[0].Path != call.path || legs[1].Path != "/moved"+call.path {
					t.Errorf("paths %s, %s; want %s and /moved%s", legs[0].Path, legs[1].Path, call.path, call.path)
				}
				if legs[1].Method != http.MethodPost || string(legs[1].Body) != string(legs[0].Body) {
					t.Errorf("sent on as %s %s, want POST %s", legs[1].Method, legs[1].Body, legs[0].Body)
				}
				first, second := legs[0].Header.Get("Cookie"), legs[1].Header.Get("Cookie")
				if opens := call.route == scripted.Seed || call.route == scripted.AgentSeed; opens {
					if first != "" || second != "" {
						t.Errorf("a seed carries the cookies %q, %q; want none", first, second)
					}
				} else if first == "" || second != first+"; shard=7" {
					t.Errorf("the first leg carries %q and the second %q, want that and shard=7", first, second)
				}
				if call.later == "" {
					return
				}
				if later := callsOn(servers, call.later)[0]; !strings.Contains(later.Header.Get("Cookie"), "shard=7") {
					t.Errorf("%s carries %q, want the redirect's cookie in it", call.later, later.Header.Get("Cookie"))
				}
			})
		}
	}
}

// A redirect to another server is not followed, for the episode's data and cookies
// are nobody else's: not a byte goes there. It is a terminal refusal, and the cookies
// that it sets count all the same.
func TestACallThatIsSentToAnotherServer(t *testing.T) {
	for _, call := range redirectable {
		t.Run(string(call.route), func(t *testing.T) {
			servers, elsewhere := scripted.New(t), scripted.New(t)
			target := elsewhere.ResourcesURL + call.path
			if call.route == scripted.AgentSeed || call.route == scripted.Responses || call.route == scripted.AgentClose {
				target = elsewhere.AgentURL + call.path
			}
			servers.Play(scripted.Script{call.route: {redirectTo(http.StatusTemporaryRedirect, target)}})
			var log strings.Builder
			config := configFor(servers)
			config.Logger = zerolog.New(&log)
			reply := newDriver(t, config).Run(t.Context(), newRequest())
			if calls := elsewhere.Routes(); len(calls) != 0 {
				t.Errorf("the other server saw %v", calls)
			}
			if n := len(callsOn(servers, call.route)); n != 1 {
				t.Errorf("the call was sent %d times, want once", n)
			}
			if n := len(callsOn(servers, scripted.CloseSession)); n != 1 {
				t.Errorf("the resources close was sent %d times, want once", n)
			}
			const words = "with 307 Temporary Redirect: over there"
			if call.route == scripted.CloseSession {
				mustSucceed(t, reply)
				if !strings.Contains(log.String(), words) {
					t.Errorf("the log does not tell of the close: %s", log.String())
				}
				return
			}
			f := mustFail(t, reply)
			if f.Stage != stageOf(call.route) || !f.Terminal || f.Status != http.StatusTemporaryRedirect || !strings.Contains(f.Reason, words) {
				t.Errorf("got %+v, want a terminal failure of stage %s %s", f, stageOf(call.route), words)
			}
			if call.route == scripted.Seed || call.route == scripted.Verify {
				if cookie := callsOn(servers, scripted.CloseSession)[0].Header.Get("Cookie"); !strings.Contains(cookie, "shard=7") {
					t.Errorf("the close carries %q, want the redirect's cookie in it", cookie)
				}
			}
			if call.route == scripted.AgentSeed || call.route == scripted.Responses {
				if cookie := callsOn(servers, scripted.AgentClose)[0].Header.Get("Cookie"); !strings.Contains(cookie, "shard=7") {
					t.Errorf("the agent close carries %q, want the redirect's cookie in it", cookie)
				}
			}
		})
	}
}

// A seed whose only cookie is its redirect's has set one.
func TestARedirectsCookieIsTheSeeds(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Seed: {redirectTo(http.StatusTemporaryRedirect, "/moved/seed_session"), {SetCookie: []string{}}}})
	mustSucceed(t, newDriver(t, configFor(servers)).Run(t.Context(), newRequest()))
	if cookie := callsOn(servers, scripted.Verify)[0].Header.Get("Cookie"); cookie != "shard=7" {
		t.Errorf("verify carries %q, want shard=7", cookie)
	}
}

// An endless chain is not followed to its end.
func TestACallIsSentOnThreeTimes(t *testing.T) {
	const n = 3
	servers := scripted.New(t)
	again := redirectTo(http.StatusPermanentRedirect, "verify")
	for _, test := range []struct {
		redirects int
		fails     bool
	}{{n, false}, {n + 1, true}} {
		script := make([]scripted.Action, test.redirects, test.redirects+1)
		for i := range script {
			script[i] = again
		}
		servers.Play(scripted.Script{scripted.Verify: append(script, scripted.Action{Default: true})})
		reply := newDriver(t, configFor(servers)).Run(t.Context(), newRequest())
		if test.fails {
			if f := mustFail(t, reply); !f.Terminal || f.Stage != failures.StageVerification || f.PartialResponse == nil {
				t.Errorf("got %+v, want a terminal failure of verify with the agent's response", f)
			}
		} else {
			mustSucceed(t, reply)
		}
		if got := len(callsOn(servers, scripted.Verify)); got != n+1 {
			t.Errorf("%d redirects: verify was called %d times, want %d", test.redirects, got, n+1)
		}
	}
}
