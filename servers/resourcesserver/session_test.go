package resourcesserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
	"example.com/turn/servers/resourcesserver"
)

func (b *bench) want(what string, got reply, status int, body string) {
	b.Helper()
	if diff := cmp.Diff(reply{status, body, ""}, got); diff != "" {
		b.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (b *bench) wantOpen(n int) {
	b.Helper()
	if got := b.server.Open(); got != n {
		b.Errorf("%d sessions are open, want %d", got, n)
	}
}

const answerA = `{"resources_session_id":"a"}`

func TestARepeatedSeedReturnsTheSessionAsItIs(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	cookie := b.seed("a")
	b.post("/add", cookie, `{"line":"one"}`)
	again := b.post("/seed_session", "", seedBody("a", episode0, task0, annsData))
	if again.Status != http.StatusOK || again.Body != answerA || again.Cookie != cookie {
		t.Errorf("the repeated seed got %+v, want the answer and cookie of the first", again)
	}
	b.want("a tool call after it", b.post("/add", again.Cookie, `{"line":"two"}`), 200, `{"last":"two","lines":2}`)
	if diff := cmp.Diff([]string{"Ann"}, b.book.built); diff != "" {
		t.Errorf("states built (-want +got):\n%s", diff)
	}
	b.wantOpen(1)
}

func TestASeedOfATakenIDIsRefusedWithoutACookie(t *testing.T) {
	for _, test := range []struct {
		name, seed, detail string
	}{
		{"another episode", seedBody("a", episode1, task0, annsData), "resources session a is bound to another episode"},
		{"another task", seedBody("a", episode0, task1, annsData), "resources session a is bound to another task"},
		{"other task data", seedBody("a", episode0, task0, `{"owner":"Bob"}`), "resources session a is bound to another task"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, resourcesserver.Config{})
			cookie := b.seed("a")
			b.post("/add", cookie, `{"line":"one"}`)
			b.want("the seed", b.post("/seed_session", "", test.seed), 409, `{"detail":"`+test.detail+`"}`)
			b.want("a tool call after it", b.post("/add", cookie, `{"line":"two"}`), 200, `{"last":"two","lines":2}`)
		})
	}
}

func TestASeedThatIsNotValidBindsNothing(t *testing.T) {
	for _, test := range []struct {
		name, body, detail string
	}{
		{"the environment's fault", seedBody("a", episode0, task0, `{"owner":5}`),
			`[{"type":"string_type","loc":["body","task_data","owner"],"msg":"Input should be a valid string","input":5}]`},
		{"no id", `{"episode_id":` + episode0 + `,"task_id":` + task0 + `,"task_data":{}}`,
			`[{"type":"missing","loc":["body","resources_session_id"],"msg":"Field required"}]`},
		{"everything missing but the id", `{"resources_session_id":"a"}`,
			`[{"type":"missing","loc":["body","episode_id"],"msg":"Field required"},` +
				`{"type":"missing","loc":["body","task_id"],"msg":"Field required"},` +
				`{"type":"missing","loc":["body","task_data"],"msg":"Field required"}]`},
		{"an id that is too long", seedBody(strings.Repeat("x", 513), episode0, task0, annsData),
			`[{"type":"string_too_long","loc":["body","resources_session_id"],"msg":"String should have at most 512 bytes"}]`},
		{"a rollout id that is too long", seedBody("a", `{"rollout_id":"`+strings.Repeat("x", 513)+`","attempt":0}`, task0, annsData),
			`[{"type":"string_too_long","loc":["body","episode_id","rollout_id"],"msg":"String should have at most 512 bytes"}]`},
		{"an id of the server's own", seedBody("agent-run-a", episode0, task0, annsData),
			`[{"type":"value_error","loc":["body","resources_session_id"],"msg":"ids that begin with agent-run- are the server's own"}]`},
		{"a close token that is no text", strings.Replace(seedBody("a", episode0, task0, annsData), "{", `{"close_token":7654321,`, 1),
			`[{"type":"string_type","loc":["body","close_token"],"msg":"Input should be a valid string"}]`},
		{"a close token that is none", strings.Replace(seedBody("a", episode0, task0, annsData), "{", `{"close_token":"",`, 1),
			`[{"type":"string_too_short","loc":["body","close_token"],"msg":"String should have at least 1 character"}]`},
		{"a stranger", `{"resources_session_id":"a","episode_id":` + episode0 + `,"task_id":` + task0 + `,"task_data":{"owner":"Ann"},"x":1}`,
			`[{"type":"extra_forbidden","loc":["body","x"],"msg":"Extra inputs are not permitted"}]`},
		{"an empty task id", seedBody("a", episode0, `{"taskset":"s","task_id":""}`, annsData),
			`[{"type":"string_too_short","loc":["body","task_id","task_id"],"msg":"String should have at least 1 character"}]`},
		{"data that is no object", seedBody("a", episode0, task0, `"Ann"`),
			`[{"type":"dict_type","loc":["body","task_data"],"msg":"Input should be a valid dictionary","input":"Ann"}]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, resourcesserver.Config{})
			b.want("the seed", b.post("/seed_session", "", test.body), 422, `{"detail":`+test.detail+`}`)
			b.wantOpen(0)
			got := b.post("/seed_session", "", seedBody("a", episode1, task1, annsData))
			if got.Status != http.StatusOK {
				t.Errorf("the id is still bound: %+v", got)
			}
		})
	}
}

func TestASeedWhoseProviderFailedBindsNothing(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want reply
	}{
		{"any error", errors.New("no paper"), reply{Status: 500, Body: `{"detail":"the session could not be built: no paper"}`}},
		{"a refusal", requests.RefuseAs(503, failures.ProviderUnavailable, "no paper"),
			reply{Status: 503, Body: `{"detail":"no paper","failure_kind":"provider_unavailable"}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, resourcesserver.Config{})
			b.book.seedErr = test.err
			b.want("the seed", b.post("/seed_session", "", seedBody("a", episode0, task0, annsData)), test.want.Status, test.want.Body)
			b.wantOpen(0)
			b.book.seedErr = nil
			b.seed("a")
		})
	}
}

func TestACloseThatIsNotValidClosesNothing(t *testing.T) {
	for _, test := range []struct {
		name, body, detail string
	}{
		{"a stranger", `{"x":1,"resources_session_id":"a","episode_id":` + episode0 + `}`,
			`[{"type":"extra_forbidden","loc":["body","x"],"msg":"Extra inputs are not permitted"}]`},
		{"no episode", `{"resources_session_id":"a"}`, `[{"type":"missing","loc":["body","episode_id"],"msg":"Field required"}]`},
		{"no id", `{"episode_id":` + episode0 + `}`, `[{"type":"missing","loc":["body","resources_session_id"],"msg":"Field required"}]`},
		{"a close token that is no text", `{"close_token":7654321,"resources_session_id":"a","episode_id":` + episode0 + `}`,
			`[{"type":"string_type","loc":["body","close_token"],"msg":"Input should be a valid string"}]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, resourcesserver.Config{})
			b.seed("a")
			b.want("the close", b.post("/close_session", "", test.body), 422, `{"detail":`+test.detail+`}`)
			b.wantOpen(1)
		})
	}
}

func TestACloseNeedsTheIDAlone(t *testing.T) {
	for name, withCookie := range map[string]bool{"with the cookie": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, resourcesserver.Config{})
			cookie := b.seed("a")
			if !withCookie {
				cookie = ""
			}
			b.want("the close", b.post("/close_session", cookie, closeBody("a", episode0)), 200, answerA)
			b.wantOpen(0)
			if diff := cmp.Diff([]string{"Ann"}, b.book.released); diff != "" {
				t.Errorf("released (-want +got):\n%s", diff)
			}
			b.want("a late seed", b.post("/seed_session", "", seedBody("a", episode0, task0, annsData)), 409, `{"detail":"resources session a is closed"}`)
		})
	}
}

func TestClosesOfClosedAndUnknownIDsLookTheSame(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	b.seed("a")
	for _, what := range []string{"the first close", "the second", "the third"} {
		b.want(what, b.post("/close_session", "", closeBody("a", episode0)), 200, answerA)
	}
	b.want("a close of an id that was never seeded", b.post("/close_session", "", closeBody("b", episode0)), 200, `{"resources_session_id":"b"}`)
	b.want("the seed that comes too late", b.post("/seed_session", "", seedBody("b", episode0, task0, annsData)), 409, `{"detail":"resources session b is closed"}`)
	if diff := cmp.Diff([]string{"Ann"}, b.book.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
}

// A closed id is remembered, so that not any may be.
func TestACloseOfALongIDIsRefused(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	const detail = `{"detail":[{"type":"string_too_long","loc":["body","resources_session_id"],"msg":"String should have at most 512 bytes"}]}`
	b.want("513 bytes", b.post("/close_session", "", closeBody(strings.Repeat("x", 513), episode0)), 422, detail)
	if got := b.post("/close_session", "", closeBody(strings.Repeat("x", 512), episode0)); got.Status != 200 {
		t.Errorf("512 bytes got %+v", got)
	}
}

func TestACloseForAnotherEpisodeIsRefused(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	b.seed("a")
	const detail = `{"detail":"resources session a does not belong to episode 0-0-a1"}`
	b.want("while it is open", b.post("/close_session", "", closeBody("a", episode1)), 409, detail)
	b.wantOpen(1)
	b.post("/close_session", "", closeBody("a", episode0))
	b.want("when it is closed", b.post("/close_session", "", closeBody("a", episode1)), 409, detail)
}

func TestAnIDIsFencedForTheWindow(t *testing.T) {
	for name, test := range map[string]struct{ configured, window time.Duration }{
		"by default":    {0, 300 * time.Second},
		"as configured": {time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			b := newBench(t, resourcesserver.Config{Clock: clock.Now, CloseRetryWindow: test.configured})
			b.post("/close_session", "", closeBody("a", episode0))
			clock.advance(test.window - time.Second)
			b.post("/close_session", "", closeBody("a", episode0)) // does not renew it
			if got := b.post("/seed_session", "", seedBody("a", episode0, task0, annsData)); got.Status != http.StatusConflict {
				t.Errorf("a seed in the window got %+v", got)
			}
			clock.advance(time.Second)
			b.seed("a")
		})
	}
}

func TestAFailedReleaseKeepsTheSession(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		fail         func(*book)
	}{
		{"an error", "the book is stuck", func(b *book) { b.releaseErr = errors.New("the book is stuck") }},
		{"a panic", "a bug in the environment's Release: no page", func(b *book) { b.releaseBug = "no page" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			b := newBench(t, resourcesserver.Config{Logger: zerolog.New(&log)})
			cookie := b.seed("a")
			test.fail(b.book)
			b.want("the close", b.post("/close_session", cookie, closeBody("a", episode0)), 503,
				`{"detail":"resources session a could not be released: `+test.reason+`","failure_kind":"session_release_failed"}`)
			b.wantOpen(1)
			if want := `"error":"` + test.reason + `","message":"a session could not be released and is kept"`; !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %s:\n%s", want, log.String())
			}
			b.want("a tool call after it", b.post("/add", cookie, `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
			b.book.releaseErr, b.book.releaseBug = nil, nil
			b.want("the next close", b.post("/close_session", "", closeBody("a", episode0)), 200, answerA)
			b.wantOpen(0)
		})
	}
}

func TestConcurrentClosersReleaseOnce(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	b.seed("a")
	var closers sync.WaitGroup
	for range 10 {
		closers.Go(func() { b.want("a close", b.post("/close_session", "", closeBody("a", episode0)), 200, answerA) })
	}
	closers.Wait()
	if diff := cmp.Diff([]string{"Ann"}, b.book.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
}

func TestAToolIsCalledWithItsSession(t *testing.T) {
	b := newBench(t, resourcesserver.Config{MaxRequestBytes: 200})
	cookie := b.seed("a")
	for _, test := range []struct {
		name, path, body string
		status           int
		want             string
	}{
		{"a call", "/add", `{"line":"<one>"}`, 200, `{"last":"<one>","lines":1}`},
		{"behind a capture key", protocol.RolloutPath("0-0", "/add"), `{"line":"two"}`, 200, `{"last":"two","lines":2}`},
		{"with faults", "/add", `{}`, 422, `{"detail":[{"type":"missing","loc":["body","line"],"msg":"Field required"}]}`},
		{"refused", "/refuse", `{}`, 403, `{"detail":"not in this ledger","failure_kind":"agent_command_not_allowed"}`},
		{"that fails", "/break", `{}`, 500, `{"detail":"out of ink"}`},
		{"that is not there", "/subtract", `{}`, 404, `{"detail":"Not Found: there is no POST /subtract here"}`},
		{"too long", "/add", `{"line":"` + string(make([]byte, 300)) + `"}`, 413, `{"detail":"the request's body is longer than 200 bytes"}`},
	} {
		b.want(test.name, b.post(test.path, cookie, test.body), test.status, test.want)
	}
}

func TestAToolCallOfALostSessionIsRefused(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	cookie := b.seed("a")
	b.post("/close_session", "", closeBody("a", episode0))
	b.want("after the close", b.post("/add", cookie, `{"line":"one"}`), 404,
		`{"detail":"resources session a is not held here any more","failure_kind":"session_lost"}`)
	for name, other := range map[string]string{
		"without a cookie":              "",
		"with a cookie that is made up": "resources_session=a",
		"with another server's":         newBench(t, resourcesserver.Config{}).seed("a"),
	} {
		b.want(name, b.post("/add", other, `{"line":"one"}`), 404,
			`{"detail":"the request carries no session cookie that this server set: it may have been restarted","failure_kind":"session_lost"}`)
	}
}

func TestCallsOfOneSessionRunOneAfterAnother(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	cookie := b.seed("a")
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() { b.post("/add", cookie, `{"line":"x"}`) }) // the race detector would see two in the ledger
	}
	calls.Wait()
	b.want("the ninth", b.post("/add", cookie, `{"line":"x"}`), 200, `{"last":"x","lines":9}`)
}

// An encoding is a result that does something when it is encoded.
type encoding func()

func (e encoding) MarshalJSON() ([]byte, error) { e(); return []byte("{}"), nil }

// A result may be a part of the session's state, which the next call changes.
func TestAResultIsEncodedBeforeTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var call func()
		server, err := resourcesserver.New(resourcesserver.TaskEnvironment[nothing]{
			Name: "counting",
			Tools: []resourcesserver.Tool[nothing]{{Name: "count", Call: func(context.Context, nothing, json.RawMessage) (any, error) {
				calls++
				if calls > 1 {
					return nil, nil
				}
				return encoding(func() {
					go call()
					synctest.Wait()
					if calls > 1 {
						t.Error("the next call ran before the result was encoded")
					}
				}), nil
			}}},
			Verify: func(context.Context, nothing, resourcesserver.Answer) (resourcesserver.Verdict, error) {
				return resourcesserver.Verdict{}, nil
			},
		}, resourcesserver.Config{})
		if err != nil {
			t.Fatal(err)
		}
		seeded := ask(t, server, "/seed_session", "", seedBody("a", episode0, task0, `{}`))
		call = func() { ask(t, server, "/count", seeded.Cookie, `{}`) }
		call()
		synctest.Wait()
		if err := server.Close(t.Context()); err != nil || calls != 2 {
			t.Errorf("%d calls ran: %v", calls, err)
		}
	})
}

func TestCloseReleasesWhatIsOpen(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	b.seed("a")
	b.seed("b")
	if err := b.server.Close(t.Context()); err != nil {
		t.Error(err)
	}
	b.wantOpen(0)
	if diff := cmp.Diff([]string{"Ann", "Ann"}, b.book.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	b.want("a seed after it", b.post("/seed_session", "", seedBody("c", episode0, task0, annsData)), 503,
		`{"detail":"the server is shutting down","failure_kind":"shutdown"}`)
}

func TestCloseNamesWhatCouldNotBeReleased(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	b.seed("a")
	b.book.releaseErr = errors.New("the book is stuck")
	err := b.server.Close(t.Context())
	if err == nil || err.Error() != "closing ledger: session a: the book is stuck" {
		t.Errorf("got %v", err)
	}
}

func TestHealth(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
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
