package resourcesserver_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/resourcesserver"
)

// row is the body of an agent-run seed: a task's row, whose ids are no episode's.
const row = `{"owner":"Ann","task_id":7,"episode_id":"mine","responses_create_params":{"input":"q"}}`

func (b *bench) seedAgentRun(cookie string) (set string) {
	b.Helper()
	got := b.post("/seed_session", cookie, row)
	if got.Status != 200 || got.Body != "{}" || got.Cookie == "" {
		b.Fatalf("the agent-run seed got %+v, want {} and a cookie", got)
	}
	return got.Cookie
}

const scored = passedOn + `,"reward":0.5,"mask_sample":false,"failure_kind":null,"failure_reason":null,"asked":{"owner":"Ann"},"calls":1,"owner":"Ann"}`

func TestAVerifyEndsAnAgentsOwnSession(t *testing.T) {
	clock := newClock()
	b := newBench(t, resourcesserver.Config{Clock: clock.Now})
	cookie := b.seedAgentRun("")
	b.want("a tool call", b.post("/add", cookie, `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
	b.want("the verify", b.post("/verify", cookie, verifyBody), 200, scored)
	b.wantOpen(0)
	if diff := cmp.Diff([]string{"Ann"}, b.book.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	b.want("the repeated verify", b.post("/verify", cookie, verifyBody), 200, scored)
	if b.book.scored != 1 {
		t.Errorf("the answer was scored %d times", b.book.scored)
	}
	other := strings.Replace(verifyBody, `"id":"r"`, `"id":"s"`, 1)
	if got := b.post("/verify", cookie, other); !strings.Contains(got.Body, `"failure_kind":"session_lost"`) {
		t.Errorf("another answer, whose state is released, got %+v", got)
	}
	if got := b.post("/add", cookie, `{"line":"two"}`); got.Status != 404 {
		t.Errorf("a tool call after it got %+v", got)
	}
	clock.advance(300 * time.Second)
	if got := b.post("/verify", cookie, verifyBody); !strings.Contains(got.Body, `"failure_kind":"session_lost"`) {
		t.Errorf("when the window is over a verify got %+v", got)
	}
}

// What is kept of a released session for the window is its verdict.
func TestAReleasedStateIsNotKept(t *testing.T) {
	var state weak.Pointer[ledger]
	book := &book{}
	environment := book.environment()
	environment.Terms = func(l *ledger) resourcesserver.Terms { state = weak.Make(l); return resourcesserver.Terms{} }
	server, err := resourcesserver.New(environment, resourcesserver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cookie := ask(t, server, "/seed_session", "", row).Cookie
	first := ask(t, server, "/verify", cookie, verifyBody)
	runtime.GC()
	if state.Value() != nil {
		t.Error("the state is kept")
	}
	if again := ask(t, server, "/verify", cookie, verifyBody); again != first {
		t.Errorf("the repeated verify got %+v, want %+v", again, first)
	}
}

// A verify that is sent again before the first was answered gets its verdict too.
func TestVerifiesOfAnAgentsOwnSessionAtOnceGetOneVerdict(t *testing.T) {
	for range 50 {
		b := newBench(t, resourcesserver.Config{})
		cookie := b.seedAgentRun("")
		b.post("/add", cookie, `{"line":"one"}`)
		var verifies sync.WaitGroup
		for range 4 {
			verifies.Go(func() { b.want("a verify", b.post("/verify", cookie, verifyBody), 200, scored) })
		}
		verifies.Wait()
		if b.book.scored != 1 || len(b.book.released) != 1 {
			t.Fatalf("it was scored %d times and released %d times", b.book.scored, len(b.book.released))
		}
	}
}

// Where a release takes nothing away, another answer is scored within the window.
func TestAStateThatHoldsNothingIsScoredAgain(t *testing.T) {
	server, err := resourcesserver.New(holdingNothing(&book{}), resourcesserver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	cookie := b.seedAgentRun("")
	b.post("/add", cookie, `{"line":"one"}`)
	b.want("the verify", b.post("/verify", cookie, verifyBody), 200, scored)
	b.wantOpen(0)
	other := strings.Replace(verifyBody, `"id":"r"`, `"id":"s"`, 1)
	b.want("another answer", b.post("/verify", cookie, other), 200, strings.Replace(scored, `"id":"r"`, `"id":"s"`, 1))
}

func TestAnAgentRunSeedResetsTheSessionOfItsCookie(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	cookie := b.seedAgentRun("")
	b.post("/add", cookie, `{"line":"one"}`)
	if again := b.seedAgentRun(cookie); again != cookie {
		t.Errorf("it got another cookie: %s, had %s", again, cookie)
	}
	b.want("a tool call", b.post("/add", cookie, `{"line":"two"}`), 200, `{"last":"two","lines":1}`)
	b.wantOpen(1)
	if diff := cmp.Diff([]string{"Ann"}, b.book.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	if another := b.seedAgentRun(""); another == cookie {
		t.Error("two agents got one cookie")
	}
	b.wantOpen(2)
}

func TestAStateBuiltAnewKnowsItsSession(t *testing.T) {
	book := &book{}
	environment := book.environment()
	var ids []string
	environment.Seed = func(_ context.Context, task resourcesserver.Task) (*ledger, error) {
		ids = append(ids, task.SessionID)
		return &ledger{}, nil
	}
	server, err := resourcesserver.New(environment, resourcesserver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	b.seedAgentRun(b.seedAgentRun(""))
	if len(ids) != 2 || ids[0] != ids[1] || !strings.HasPrefix(ids[0], "agent-run-") {
		t.Errorf("the states are of the sessions %q, want one twice", ids)
	}
}

// A state that nobody gets is released, though who asked for it went away.
func TestAReleaseOutlivesTheSeedThatBeginsIt(t *testing.T) {
	for name, terms := range map[string]resourcesserver.Terms{
		"of the state that it replaces":     {},
		"of a state that has no good terms": {Lifetime: -1},
	} {
		t.Run(name, func(t *testing.T) {
			book := &book{}
			environment := book.environment()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			seeds, released := 0, 0
			environment.Seed = func(context.Context, resourcesserver.Task) (*ledger, error) {
				if seeds++; seeds == 2 {
					leave()
				}
				return &ledger{}, nil
			}
			environment.Terms = func(*ledger) resourcesserver.Terms {
				if seeds == 2 {
					return terms
				}
				return resourcesserver.Terms{}
			}
			environment.Release = func(ctx context.Context, _ *ledger) error { released++; return ctx.Err() }
			server, err := resourcesserver.New(environment, resourcesserver.Config{})
			if err != nil {
				t.Fatal(err)
			}
			cookie := ask(t, server, "/seed_session", "", row).Cookie
			w := httptest.NewRecorder()
			server.ServeHTTP(w, newRequest(ctx, "/seed_session", cookie, row))
			if strings.Contains(w.Body.String(), "canceled") || released != 1 {
				t.Errorf("%d states were released, and the seed got %s", released, w.Body)
			}
		})
	}
}

func TestAnAgentRunSeedAfterItsVerifyOpensASessionAnew(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	first := b.seedAgentRun("")
	b.post("/verify", first, verifyBody)
	second := b.seedAgentRun(first)
	if second == first {
		t.Error("it got the cookie of the session that has ended")
	}
	b.want("a tool call", b.post("/add", second, `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
}

func TestAnAgentRunSeedThatFailsChangesNothing(t *testing.T) {
	for name, fail := range map[string]struct {
		book     func(*book)
		status   int
		released []string
	}{
		"its data is not valid":            {func(b *book) { b.seedErr = errors.New("no paper") }, 500, nil},
		"the old state cannot be released": {func(b *book) { b.releaseErr = errors.New("the book is stuck") }, 503, []string{"Ann", "Bob"}},
		"the old state's release panics":   {func(b *book) { b.releaseBug = "a bug" }, 503, []string{"Ann", "Bob"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, resourcesserver.Config{})
			cookie := b.seedAgentRun("")
			b.post("/add", cookie, `{"line":"one"}`)
			fail.book(b.book)
			if got := b.post("/seed_session", cookie, strings.Replace(row, "Ann", "Bob", 1)); got.Status != fail.status || got.Cookie != "" {
				t.Errorf("the seed got %+v, want %d and no cookie", got, fail.status)
			}
			if diff := cmp.Diff(fail.released, b.book.released); diff != "" {
				t.Errorf("tried to release (-want +got):\n%s", diff)
			}
			b.want("a tool call", b.post("/add", cookie, `{"line":"two"}`), 200, `{"last":"two","lines":2}`)
		})
	}
}

func TestAnAgentRunSeedWithAnEpisodesCookieIsRefused(t *testing.T) {
	const detail = `{"detail":"the request's cookie is that of resources session a, which belongs to an episode"}`
	b := newBench(t, resourcesserver.Config{})
	cookie := b.seed("a")
	b.want("while the session is open", b.post("/seed_session", cookie, row), 409, detail)
	b.want("a tool call after it", b.post("/add", cookie, `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
	b.post("/close_session", "", closeBody("a", episode0))
	b.want("when it is closed", b.post("/seed_session", cookie, row), 409, detail)
	b.seedAgentRun(newBench(t, resourcesserver.Config{}).seed("a")) // another server's is nobody's
}

func TestABodyIsAnEpisodeSeedWhenItSaysSo(t *testing.T) {
	for body, status := range map[string]int{
		row:               200,
		`{"owner":"Ann"}`: 200,
		`{"owner":"Ann","episode_id":{},"task_id":"7"}`:               200,
		`{"owner":"Ann","resources_session_id":null}`:                 422,
		`{"owner":"Ann","episode_id":{},"task_id":{}}`:                422,
		seedBody("a", episode0, task0, annsData):                      200,
		`{"owner":"Ann","responses_create_params":{"input":[1,2,3]}}`: 200,
	} {
		b := newBench(t, resourcesserver.Config{})
		if got := b.post("/seed_session", "", body); got.Status != status {
			t.Errorf("%s got %+v, want %d", body, got, status)
		}
	}
}

func TestAnAgentsOwnSessionEndsByItself(t *testing.T) {
	for name, environment := range map[string]func(*book) resourcesserver.TaskEnvironment[*ledger]{
		"whose state is released":   (*book).environment,
		"whose state holds nothing": holdingNothing,
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			server, err := resourcesserver.New(environment(&book{}), resourcesserver.Config{Clock: clock.Now, Lifetime: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			b := serve(t, server)
			cookie := b.seedAgentRun("")
			clock.advance(time.Minute)
			b.server.Sweep(t.Context())
			b.wantOpen(0)
			if got := b.post("/verify", cookie, verifyBody); !strings.Contains(got.Body, `"mask_sample":true,"failure_kind":"session_expired"`) {
				t.Errorf("the verify got %+v", got)
			}
		})
	}
}

func TestAnAgentRunSeedBeginsALifetime(t *testing.T) {
	clock := newClock()
	book := &book{}
	environment := book.environment()
	var own time.Duration // of the next state
	environment.Terms = func(*ledger) resourcesserver.Terms { return resourcesserver.Terms{Lifetime: own} }
	server, err := resourcesserver.New(environment, resourcesserver.Config{Clock: clock.Now, Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	cookie := b.seedAgentRun("")
	for _, lifetime := range []time.Duration{0, 2 * time.Hour, time.Minute} {
		clock.advance(45 * time.Minute)
		own = lifetime
		if again := b.seedAgentRun(cookie); again != cookie {
			t.Fatalf("the session has ended before it was seeded with a lifetime of %v", lifetime)
		}
	}
	clock.advance(time.Minute - time.Nanosecond)
	b.server.Sweep(t.Context())
	b.wantOpen(1)
	clock.advance(time.Nanosecond)
	b.server.Sweep(t.Context())
	b.wantOpen(0)
}

// The release that a verify begins goes on when its caller has gone.
func TestAVerifyWhoseCallerGoesAwayDoesNotWaitForTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &book{}
		environment := book.environment()
		goOn, released := make(chan struct{}), false
		environment.Release = func(ctx context.Context, _ *ledger) error { <-goOn; released = true; return ctx.Err() }
		server, err := resourcesserver.New(environment, resourcesserver.Config{})
		if err != nil {
			t.Fatal(err)
		}
		cookie := ask(t, server, "/seed_session", "", row).Cookie
		ctx, leave := context.WithCancel(t.Context())
		answered := false
		go func() {
			request := newRequest(ctx, "/verify", cookie, verifyBody)
			server.ServeHTTP(httptest.NewRecorder(), request)
			answered = true
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		if !answered {
			t.Error("it waits for the release")
		}
		close(goOn)
		synctest.Wait()
		if !released || server.Open() != 0 {
			t.Errorf("released: %v, with %d open", released, server.Open())
		}
		if err := server.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// holdingNothing is an environment of ledgers without a Release.
func holdingNothing(book *book) resourcesserver.TaskEnvironment[*ledger] {
	environment := book.environment()
	environment.Release = nil
	return environment
}
