package resourcesserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/servers/resourcesserver"
)

// A clock is moved by a test while servers look at it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

const (
	expired     = `"resources session a has expired"`
	expiredTool = `{"detail":` + expired + `,"failure_kind":"session_expired"}`
)

func TestAnExpiredSessionIsReleasedMaskedAndFenced(t *testing.T) {
	for _, test := range []struct {
		name   string
		config resourcesserver.Config
		after  time.Duration
	}{
		{"a day after its seed", resourcesserver.Config{}, 24 * time.Hour},
		{"after its lifetime", resourcesserver.Config{Lifetime: time.Minute}, time.Minute},
		{"when it was idle", resourcesserver.Config{IdleTimeout: time.Minute}, time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			clock := newClock()
			test.config.Clock, test.config.Logger = clock.Now, zerolog.New(&log)
			b := newBench(t, test.config)
			cookie := b.seed("a")
			clock.advance(test.after - time.Nanosecond)
			b.server.Sweep(t.Context())
			b.wantOpen(1)
			clock.advance(time.Nanosecond)
			b.server.Sweep(t.Context())
			b.wantOpen(0)
			b.want("a tool call", b.post("/add", cookie, `{"line":"one"}`), 404, expiredTool)
			for range 2 {
				b.want("a verify", b.post("/verify", cookie, verifyBody), 200, strings.Replace(lost, "session_lost", "session_expired", 1)+expired+"}")
			}
			b.want("a late seed", b.post("/seed_session", "", seedBody("a", episode0, task0, annsData)), 409, `{"detail":"resources session a is closed"}`)
			b.want("the close", b.post("/close_session", "", closeBody("a", episode0)), 200, answerA)
			if diff := cmp.Diff([]string{"Ann"}, b.book.released); diff != "" {
				t.Errorf("released (-want +got):\n%s", diff)
			}
			if n := strings.Count(log.String(), `"level":"warn"`); n != 2 {
				t.Errorf("there are %d warnings, want one for each verify:\n%s", n, log.String())
			}
			clock.advance(300 * time.Second)
			b.want("a verify when the fence is gone", b.post("/verify", cookie, verifyBody), 200, lost+`"resources session a is not held here any more"}`)
		})
	}
}

func TestAnExpiredSessionIsNotServedBeforeItsSweep(t *testing.T) {
	clock := newClock()
	b := newBench(t, resourcesserver.Config{Clock: clock.Now, Lifetime: time.Minute})
	cookie := b.seed("a")
	clock.advance(time.Minute)
	b.want("a tool call", b.post("/add", cookie, `{"line":"one"}`), 404, expiredTool)
	b.want("a repeated seed", b.post("/seed_session", "", seedBody("a", episode0, task0, annsData)), 409, `{"detail":"resources session a is closed"}`)
}

func TestACookieThatIsMadeUpDoesNotKeepASessionFromIdling(t *testing.T) {
	clock := newClock()
	b := newBench(t, resourcesserver.Config{Clock: clock.Now, IdleTimeout: time.Minute})
	cookie := b.seed("a")
	clock.advance(30 * time.Second)
	if got := b.post("/add", madeUp(cookie), `{"line":"x"}`); got.Status != 404 {
		t.Errorf("the call got %+v", got)
	}
	clock.advance(30 * time.Second)
	b.server.Sweep(t.Context())
	b.wantOpen(0)
	if got := b.post("/add", madeUp(cookie), `{"line":"x"}`); !strings.Contains(got.Body, "session_lost") {
		t.Errorf("whoever knows its id alone learns that it has expired: %+v", got)
	}
}

func TestASessionThatNobodyAsksForEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &book{}
		server, err := resourcesserver.New(book.environment(), resourcesserver.Config{Lifetime: time.Minute, SweepInterval: 7 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ask(t, server, "/seed_session", "", seedBody("a", episode0, task0, annsData))
		time.Sleep(9*7*time.Second - time.Nanosecond)
		if server.Open() != 1 {
			t.Error("it has ended before a sweep came")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if server.Open() != 0 {
			t.Error("a sweep did not end it")
		}
		if err := server.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A tool that hangs does not hold up the end of its session.
func TestAnExpiryCutsATool(t *testing.T) {
	clock := newClock()
	running := make(chan struct{})
	server, err := resourcesserver.New(resourcesserver.TaskEnvironment[nothing]{
		Name: "hanging",
		Tools: []resourcesserver.Tool[nothing]{{Name: "hang", Call: func(ctx context.Context, _ nothing, _ json.RawMessage) (any, error) {
			close(running)
			<-ctx.Done()
			return nil, errors.New("given up")
		}}},
		Verify: func(context.Context, nothing, resourcesserver.Answer) (resourcesserver.Verdict, error) {
			return resourcesserver.Verdict{}, nil
		},
	}, resourcesserver.Config{Clock: clock.Now, Lifetime: time.Hour, IdleTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	cookie := b.seed("a")
	var got reply
	var call sync.WaitGroup
	call.Go(func() { got = b.post("/hang", cookie, `{}`) })
	<-running
	clock.advance(time.Hour - time.Nanosecond)
	server.Sweep(t.Context())
	b.wantOpen(1) // it is in use, and not idle
	clock.advance(time.Nanosecond)
	server.Sweep(t.Context())
	b.wantOpen(0)
	call.Wait()
	b.want("the call", got, 404, expiredTool)
}

func TestTermsGoBeforeTheConfig(t *testing.T) {
	clock := newClock()
	book := &book{}
	environment := book.environment()
	environment.Terms = func(l *ledger) resourcesserver.Terms {
		return resourcesserver.Terms{
			Sandbox:  json.RawMessage(`{"connection": {"kind":"direct","descriptor":{"id":"<1>"}}, "workdir":null}`),
			Lifetime: 90 * time.Second,
		}
	}
	server, err := resourcesserver.New(environment, resourcesserver.Config{Clock: clock.Now, Lifetime: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	const answer = `{"resources_session_id":"a","sandbox_access":{"connection": {"kind":"direct","descriptor":{"id":"<1>"}}, "workdir":null}}`
	for range 2 {
		got := b.post("/seed_session", "", seedBody("a", episode0, task0, annsData))
		if got.Status != 200 || got.Body != answer {
			t.Errorf("the seed got %+v, want %s", got, answer)
		}
		clock.advance(45*time.Second - time.Nanosecond)
	}
	server.Sweep(t.Context())
	b.wantOpen(1)
	clock.advance(2 * time.Nanosecond)
	server.Sweep(t.Context())
	b.wantOpen(0)
}

func TestTermsThatAreNoneBindNothing(t *testing.T) {
	for _, test := range []struct {
		name, detail string
		terms        func(*ledger) resourcesserver.Terms
	}{
		{"a sandbox that is no object", "the environment's Sandbox is no JSON object",
			func(*ledger) resourcesserver.Terms { return resourcesserver.Terms{Sandbox: json.RawMessage(`[1]`)} }},
		{"a sandbox that is no JSON", "the environment's Sandbox is no JSON object",
			func(*ledger) resourcesserver.Terms { return resourcesserver.Terms{Sandbox: json.RawMessage(`{"id":`)} }},
		{"a lifetime that is over", "the environment's Lifetime is negative",
			func(*ledger) resourcesserver.Terms { return resourcesserver.Terms{Lifetime: -time.Second} }},
		{"a panic", "a bug in the environment's Terms: no terms",
			func(*ledger) resourcesserver.Terms { panic("no terms") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			book := &book{}
			environment := book.environment()
			environment.Terms = test.terms
			server, err := resourcesserver.New(environment, resourcesserver.Config{})
			if err != nil {
				t.Fatal(err)
			}
			b := serve(t, server)
			b.want("the seed", b.post("/seed_session", "", seedBody("a", episode0, task0, annsData)), 500,
				`{"detail":"the session could not be built: `+test.detail+`"}`)
			if diff := cmp.Diff([]string{"Ann"}, book.released); diff != "" {
				t.Errorf("released (-want +got):\n%s", diff)
			}
			b.wantOpen(0)
		})
	}
}
