package envserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/envserver"
	"example.com/turn/internal/rawjson"
	"example.com/turn/internal/scripted"
	"example.com/turn/retry"
)

// A caller that goes away takes its episode along, wherever it is: the call under
// way is cut within a second, the closes still run, and the place is free. The
// closes themselves are not cut.
func TestCallerThatGoesAwayTakesItsEpisodeAlong(t *testing.T) {
	for _, test := range []struct {
		at    scripted.Route
		cut   bool
		calls []scripted.Route
	}{
		{scripted.Seed, true, []scripted.Route{scripted.Seed, scripted.CloseSession}},
		{scripted.AgentSeed, true, []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.AgentClose, scripted.CloseSession}},
		{scripted.Responses, true, []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.CloseSession}},
		{scripted.Verify, true, whole},
		{scripted.CloseSession, false, whole},
	} {
		t.Run(string(test.at), func(t *testing.T) {
			h := newHouse(t, func(s *settings) {
				s.driver.Concurrency, s.driver.QueueTimeout = 1, 20*time.Second
				s.server.Policy = retry.Policy{MaxAttempts: 3}
			})
			gate := make(chan struct{})
			held := scripted.Action{Hang: true}
			if !test.cut {
				held = scripted.Action{Gate: gate}
			}
			h.Play(scripted.Script{test.at: {held, {Default: true}}})
			ctx, leave := context.WithCancel(within(t))
			answered := h.running(ctx, plain)
			if _, err := h.Wait(within(t), test.at, 1); err != nil {
				t.Fatal(err)
			}
			left := time.Now()
			leave()
			receive(t, answered)
			if !test.cut {
				close(gate)
			}
			if _, err := h.Wait(within(t), scripted.CloseSession, 1); err != nil {
				t.Fatal(err)
			}
			if err := h.Idle(within(t), 0); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.calls, h.Routes()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			ids := map[string]string{}
			var before scripted.Call
			for i, call := range h.Calls() {
				if call.Route == test.at && call.CallerGone != test.cut {
					t.Errorf("%s: cut %v, want %v", call.Route, call.CallerGone, test.cut)
				}
				if call.Route == test.at && test.cut && call.Ended.Sub(left) > 5*time.Second {
					t.Errorf("%s was cut after %s", call.Route, call.Ended.Sub(left))
				}
				if i > 0 && call.Route != test.at && before.CallerGone != (before.Route == test.at && test.cut) {
					t.Errorf("%s was cut", before.Route)
				}
				checkClosed(t, ids, call)
				before = call
			}
			// The place is free: the next one does not wait for long.
			h.Play(nil)
			if got := open(t, h.run(t, plain)); got.Failure != nil {
				t.Errorf("the next episode: %+v", got.Failure)
			}
		})
	}
}

// A bubble is an environment server without sockets, for tests in a synctest
// bubble, where it is known when the server has noticed something.
type bubble struct {
	server *envserver.Server
	calls  []string
	held   map[string]chan struct{} // calls whose path ends so wait
}

func newBubble(t *testing.T, config episode.Config, held ...string) *bubble {
	t.Helper()
	b := &bubble{held: map[string]chan struct{}{}}
	for _, path := range held {
		b.held[path] = make(chan struct{})
	}
	var mu sync.Mutex
	config.Resources.URL, config.Agent.URL = "http://weather.internal", "http://agent.internal"
	config.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		mu.Lock()
		b.calls = append(b.calls, r.URL.Path)
		mu.Unlock()
		text, _ := io.ReadAll(r.Body)
		var ids map[string]json.RawMessage
		_ = json.Unmarshal(text, &ids)
		for path, gate := range b.held {
			if strings.HasSuffix(r.URL.Path, path) {
				select {
				case <-gate:
				case <-r.Context().Done():
					return nil, r.Context().Err()
				}
			}
		}
		body := fmt.Sprintf(`{"resources_session_id":%s,"agent_session_id":%s,"output":[],"reward":1,"responses_create_params":{},"response":{}}`,
			rawjson.OrNull(ids["resources_session_id"]), rawjson.OrNull(ids["agent_session_id"]))
		return &http.Response{StatusCode: 200, Header: http.Header{"Set-Cookie": {"a=1"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
	})
	driver, err := episode.NewDriver(config)
	if err != nil {
		t.Fatal(err)
	}
	b.server = envserver.New(envserver.Config{Driver: driver, Policy: retry.Policy{MaxAttempts: 1}})
	return b
}

// run posts the plain request; what comes back is the answer, "aborted" when the
// connection was ended instead.
func (b *bubble) run(ctx context.Context) <-chan string {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/run", strings.NewReader(plain))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	ended := make(chan string, 1)
	go func() {
		defer func() {
			answer := w.Body.String()
			if bug := recover(); bug == http.ErrAbortHandler && answer == "" {
				answer = "aborted"
			} else if bug != nil {
				answer = fmt.Sprint(bug)
			}
			ended <- answer
		}()
		b.server.ServeHTTP(w, r)
	}()
	return ended
}

// A caller that goes away during the agent's close cuts nothing off; verify is then
// not sent any more.
func TestCallerThatGoesAwayDuringTheAgentClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, episode.Config{}, "/v1/agent_sessions/close")
		ctx, leave := context.WithCancel(t.Context())
		ended := b.run(ctx)
		synctest.Wait()
		leave()
		synctest.Wait()
		close(b.held["/v1/agent_sessions/close"])
		if got := <-ended; got != "aborted" {
			t.Errorf("got %s", got)
		}
		want := []string{"/seed_session", "/v1/agent_sessions", "/ng-rollout/3-0/v1/responses", "/v1/agent_sessions/close", "/close_session"}
		if diff := cmp.Diff(want, b.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// A caller that goes away while its episode waits for a place leaves the queue, and
// no call behind.
func TestCallerThatGoesAwayInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, episode.Config{Concurrency: 1, QueueTimeout: time.Hour}, "/v1/responses")
		first := b.run(t.Context())
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		second, third := b.run(ctx), b.run(t.Context())
		synctest.Wait()
		leave()
		if got := <-second; got != "aborted" {
			t.Errorf("the one that left: %s", got)
		}
		if len(b.calls) != 3 {
			t.Errorf("calls %v, want those of the first", b.calls)
		}
		close(b.held["/v1/responses"])
		for _, ended := range []<-chan string{first, third} {
			if got := <-ended; !strings.Contains(got, `"failure":null`) {
				t.Errorf("got %s", got)
			}
		}
		if len(b.calls) != 12 {
			t.Errorf("%d calls, want those of two episodes", len(b.calls))
		}
	})
}

// One that waits too long for a place is told so, and no call was made for it.
func TestQueueTimeoutIsAFailureOfAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, episode.Config{Concurrency: 1, QueueTimeout: 30 * time.Second}, "/v1/responses")
		first := b.run(t.Context())
		synctest.Wait()
		began := time.Now()
		want := `{"episode_id":` + episodeID + `,"task_id":` + taskID + `,"result":null,"failure":{"failure_reason":"Episode admission timed out","terminal":false,"partial_response":null,"stage":"admission"}}`
		if got := <-b.run(t.Context()); got != want || time.Since(began) != 30*time.Second {
			t.Errorf("after %s: %s\nwant %s", time.Since(began), got, want)
		}
		if len(b.calls) != 3 {
			t.Errorf("calls %v, want those of the first", b.calls)
		}
		close(b.held["/v1/responses"])
		<-first
	})
}

// checkClosed checks that a close has the id of its seed.
func checkClosed(t *testing.T, ids map[string]string, call scripted.Call) {
	t.Helper()
	seed, isClose := map[scripted.Route]string{scripted.AgentClose: "agent", scripted.CloseSession: "resources"}[call.Route]
	_, id, _ := strings.Cut(string(call.Body), `_session_id":"`)
	id, _, _ = strings.Cut(id, `"`)
	switch {
	case call.Route == scripted.Seed:
		ids["resources"] = id
	case call.Route == scripted.AgentSeed:
		ids["agent"] = id
	case isClose && (id == "" || ids[seed] != id):
		t.Errorf("%s closes %q, want %q", call.Route, id, ids[seed])
	}
}

// A caller that goes away in the wait for another attempt leaves no call behind.
func TestCallerThatGoesAwayBeforeAnotherAttempt(t *testing.T) {
	h := newHouse(t, func(s *settings) {
		s.server.Policy = retry.Policy{MaxAttempts: 3, Random: func() float64 { return 1 }, Backoff: time.Hour}
	})
	h.Play(scripted.Script{scripted.Seed: {{Status: 503}}})
	ctx, leave := context.WithCancel(within(t))
	answered := h.running(ctx, plain)
	if _, err := h.Wait(within(t), scripted.CloseSession, 1); err != nil {
		t.Fatal(err)
	}
	leave()
	receive(t, answered)
	h.ends(t)
	if diff := cmp.Diff([]scripted.Route{scripted.Seed, scripted.CloseSession}, h.Routes()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// A caller that has closed its half of the connection is one that went away: it
// must not take an empty reply for an answer.
func TestCallerThatWentAwayIsNotAnswered(t *testing.T) {
	h := newHouse(t, nil)
	h.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	request := fmt.Sprintf("POST /run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(plain), plain)
	got, err := h.rawUntil(t, request, func() {
		if _, err := h.Wait(within(t), scripted.Responses, 1); err != nil {
			t.Fatal(err)
		}
	})
	if err == nil {
		t.Errorf("answered with status %d and %d bytes", got.StatusCode, got.ContentLength)
	}
	if err := h.Idle(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Wait(within(t), scripted.CloseSession, 1); err != nil {
		t.Errorf("calls %v: %v", h.Routes(), err)
	}
}

// When Serve's context ends, readiness goes off, nothing new begins, and what is
// under way may end within the grace.
func TestDrainLetsEpisodesEnd(t *testing.T) {
	h := newHouse(t, func(s *settings) {
		legacy(s)
		s.server.Grace = time.Hour
		s.driver.Concurrency, s.driver.QueueTimeout = 1, time.Hour
	})
	gate := make(chan struct{})
	h.Play(scripted.Script{scripted.Responses: {{Gate: gate}}})
	first := h.running(within(t), plain)
	if _, err := h.Wait(within(t), scripted.Responses, 1); err != nil {
		t.Fatal(err)
	}
	queued := h.running(within(t), row)
	ready, err := h.call(within(t), http.MethodGet, "/readyz", "", "")
	if err != nil || ready.Status != 200 {
		t.Fatalf("%+v, %v", ready, err)
	}
	h.stop()
	for ready.Status == 200 { // until the server has seen it
		if ready, err = h.call(within(t), http.MethodGet, "/readyz", "", ""); err != nil {
			t.Fatal(err)
		}
	}
	if ready.Status != http.StatusServiceUnavailable || ready.Body != `{"status":"draining"}` {
		t.Errorf("readiness: %d %s", ready.Status, ready.Body)
	}
	for _, path := range []string{"/", "/health", "/healthz", "/livez"} {
		if got, err := h.call(within(t), http.MethodGet, path, "", ""); err != nil || got.Status != 200 {
			t.Errorf("%s: %d, %v", path, got.Status, err)
		}
	}
	if got := receive(t, queued); got.Status != 200 || !strings.Contains(got.Body, `"_ng_failure_stage":"admission"`) || !strings.Contains(got.Body, `"_ng_failure_terminal":false`) {
		t.Errorf("the one that waited: %d %s", got.Status, got.Body)
	}
	refused := h.run(t, strings.Replace(plain, "task-3", "task-4", 1))
	want := failure{Reason: "the environment server is shutting down", Kind: "shutdown", Stage: "admission", Partial: []byte("null")}
	if diff := cmp.Diff(want, wantFailure(t, refused)); diff != "" {
		t.Errorf("failure (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(refused.Body, `{"episode_id":`+episodeID+`,"task_id":{"taskset":"weather","task_id":"task-4"},"result":null,`) {
		t.Errorf("ids: %s", refused.Body)
	}
	if got := h.run(t, row); !strings.HasPrefix(got.Body, `{"_ng_failure_class":"environment_server_failed","_ng_failure_terminal":false,`) {
		t.Errorf("a row: %s", got.Body)
	}
	if got := h.run(t, `{}`); got.Status != http.StatusUnprocessableEntity {
		t.Errorf("an invalid request: %d", got.Status)
	}
	select {
	case err := <-h.served:
		t.Fatalf("Serve returned %v while an episode was under way", err)
	default:
	}
	close(gate)
	if got := open(t, receive(t, first)); got.Failure != nil {
		t.Errorf("the one under way: %+v", got.Failure)
	}
	h.ends(t)
	if diff := cmp.Diff(whole, h.Routes()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://")); err == nil {
		_ = conn.Close()
		t.Error("the listener is open")
	}
}

// Episodes that outlast the grace are cancelled, answered and closed.
func TestEpisodesThatOutlastTheGraceAreCancelled(t *testing.T) {
	for _, test := range []struct {
		name  string
		grace time.Duration
		abort bool
	}{
		{"no grace", 0, false},
		{"a short one", 10 * time.Millisecond, false},
		{"a long one that is cut", time.Hour, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			const episodes = 16
			h := newHouse(t, func(s *settings) {
				s.server.Grace = test.grace
				s.server.Policy = retry.Policy{MaxAttempts: 3, Backoff: time.Hour}
			})
			h.run(t, plain) // one that has ended is none of those under way
			h.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
			var answers []<-chan reply
			for range episodes {
				answers = append(answers, h.running(within(t), plain))
			}
			if _, err := h.Wait(within(t), scripted.Responses, episodes); err != nil {
				t.Fatal(err)
			}
			h.stop()
			if test.abort {
				h.server.Abort()
			}
			for _, answered := range answers {
				got := wantFailure(t, receive(t, answered))
				want := failure{Reason: "the environment server is shutting down in POST /v1/responses to agent server simple_agent", Kind: "shutdown", Stage: "agent", Partial: []byte("null")}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("failure (-want +got):\n%s", diff)
				}
			}
			h.ends(t)
			closes := map[scripted.Route]int{}
			for _, call := range h.Calls() {
				if call.Reply == "200" {
					closes[call.Route]++
				}
			}
			if closes[scripted.AgentClose] != episodes || closes[scripted.CloseSession] != episodes || closes[scripted.Verify] != 0 {
				t.Errorf("calls that succeeded: %v", closes)
			}
			if want := fmt.Sprintf(`"running":%d,"grace":%q,"message":"draining`, episodes, test.grace); !strings.Contains(h.log.String(), want) {
				t.Errorf("the log does not say %s", want)
			}
		})
	}
}

// A listener that fails ends the server, and no episode is left behind.
func TestListenerThatFailsEndsTheServer(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the listener broke")
	listener := &failingListener{Listener: inner, fail: make(chan struct{}), err: broken}
	h := newHouse(t, func(s *settings) { s.listener, s.server.Grace = listener, time.Hour })
	h.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	answered := h.running(within(t), plain)
	if _, err := h.Wait(within(t), scripted.Responses, 1); err != nil {
		t.Fatal(err)
	}
	close(listener.fail)
	_ = inner.Close()
	if got := wantFailure(t, receive(t, answered)); got.Kind != string(failures.Shutdown) {
		t.Errorf("got %+v", got)
	}
	if err := receive(t, h.served); !errors.Is(err, broken) {
		t.Errorf("Serve returned %v", err)
	}
	h.served <- nil
	if routes := h.Routes(); routes[len(routes)-1] != scripted.CloseSession {
		t.Errorf("calls %v", routes)
	}
	// The connection that the caller had is closed, or at least begins nothing.
	got, err := h.call(within(t), http.MethodPost, "/run", "application/json", plain)
	if err == nil {
		t.Errorf("answered after Serve has returned: %d %s", got.Status, got.Body)
	}
}

// A caller that never finishes what it sends has a moment when the server stops,
// and does not keep it from stopping.
func TestCallerThatNeverFinishesDoesNotKeepTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, episode.Config{})
		ours, theirs := net.Pipe()
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- b.server.Serve(ctx, &pipeListener{conns: []net.Conn{theirs}, closed: make(chan struct{})})
		}()
		_, err := io.WriteString(ours, "POST /run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stop()
		began := time.Now()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("Serve returned after %s", took)
		}
		if n, err := ours.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes of an answer", n)
		}
		_ = ours.Close()
	})
}

// A pipeListener accepts the connections that it has.
type pipeListener struct {
	conns  []net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	if len(l.conns) > 0 {
		conn := l.conns[0]
		l.conns = l.conns[1:]
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

type failingListener struct {
	net.Listener
	fail chan struct{}
	err  error
}

func (l *failingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	select {
	case <-l.fail:
		return nil, l.err
	default:
		return conn, err
	}
}

// panicsAt makes the transport panic at a path.
func panicsAt(path string) func(*settings) {
	return func(s *settings) {
		s.transport = func(inner http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, path) {
					panic("boom")
				}
				return inner.RoundTrip(r)
			})
		}
	}
}

// A bug of ours is the failure of its episode: the closes run, the place is free,
// and the process lives on.
func TestPanicIsOneEpisodesFailure(t *testing.T) {
	for _, test := range []struct {
		path  string
		calls []scripted.Route // that reach a server
	}{
		{"/seed_session", []scripted.Route{scripted.CloseSession}},
		{"/v1/agent_sessions", []scripted.Route{scripted.Seed, scripted.AgentClose, scripted.CloseSession}},
		{"/v1/responses", []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.AgentClose, scripted.CloseSession}},
		{"/v1/agent_sessions/close", []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.CloseSession}},
		{"/verify", []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.CloseSession}},
	} {
		t.Run(test.path, func(t *testing.T) {
			h := newHouse(t, func(s *settings) {
				panicsAt(test.path)(s)
				s.driver.Concurrency, s.driver.QueueTimeout = 1, 20*time.Second
				s.server.Policy = retry.Policy{MaxAttempts: 3}
			})
			for range 2 { // the second shows that the place is free
				h.Play(nil)
				got := wantFailure(t, h.run(t, plain))
				if !got.Terminal || got.Kind != "" || got.Reason != "Unhandled environment server error: boom" {
					t.Errorf("got %+v", got)
				}
				if diff := cmp.Diff(test.calls, h.Routes()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			}
			if !strings.Contains(h.log.String(), "panic: boom") || !strings.Contains(h.log.String(), "lifecycle_test.go") {
				t.Errorf("the log has no stack: %.500s", h.log)
			}
		})
	}
}

// So is a bug in what stands around the driver: the request is answered all the
// same, and is no longer under way.
func TestPanicAroundTheDriverIsTheEpisodesFailure(t *testing.T) {
	h := newHouse(t, func(s *settings) {
		s.server.Policy = retry.Policy{MaxAttempts: 3, Random: func() float64 { panic("boom") }}
	})
	h.Play(scripted.Script{scripted.Seed: {{Status: 503}, {Default: true}}})
	got := h.run(t, plain)
	want := failure{Reason: "Unhandled environment server error: boom", Terminal: true, Partial: []byte("null")}
	if diff := cmp.Diff(want, wantFailure(t, got)); diff != "" {
		t.Errorf("failure (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(got.Body, `{"episode_id":`+episodeID+`,"task_id":`+taskID+`,`) {
		t.Errorf("ids: %s", got.Body)
	}
	if diff := cmp.Diff([]scripted.Route{scripted.Seed, scripted.CloseSession}, h.Routes()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if n := h.scrape(t)["turn_requests_in_flight"]; n != 0 {
		t.Errorf("%v in flight after the reply, want 0", n)
	}
	if got := open(t, h.run(t, plain)); got.Failure != nil {
		t.Errorf("the next episode: %+v", got.Failure)
	}
	h.ends(t)
}

// A bug of ours in forwarding ends that request and no more; it is told in the
// server's log and not on stderr.
func TestPanicInForwardingIsSurvived(t *testing.T) {
	h := newHouse(t, panicsAt("/aggregate_metrics"))
	if got, err := h.call(within(t), http.MethodPost, "/aggregate_metrics", "application/json", `{}`); err == nil && got.Status < 500 {
		t.Errorf("got %+v", got)
	}
	if got := open(t, h.run(t, plain)); got.Failure != nil {
		t.Errorf("the next episode: %+v", got.Failure)
	}
	if !strings.Contains(h.log.String(), "boom") {
		t.Errorf("log %s", h.log)
	}
}

// Many callers at once, some of which go away: every episode that was not given up
// has its whole course and its own ids, and nothing is left behind.
func TestManyCallersAtOnce(t *testing.T) {
	const callers = 64
	h := newHouse(t, func(s *settings) { s.driver.Concurrency, s.driver.QueueTimeout = 16, time.Minute })
	var answered atomic.Int64
	var waiting sync.WaitGroup
	for n := range callers {
		waiting.Go(func() {
			ctx, leave := context.WithCancel(within(t))
			defer leave()
			if n%8 == 7 {
				time.AfterFunc(time.Duration(n)*time.Millisecond, leave)
			}
			body := strings.Replace(plain, "task-3", fmt.Sprintf("task-%d", n), 1)
			got, err := h.call(ctx, http.MethodPost, "/run", "application/json", body)
			switch {
			case err != nil && n%8 != 7:
				t.Error(err)
			case err == nil:
				answered.Add(1)
				if want := fmt.Sprintf(`"task_id":"task-%d"}`, n); !strings.Contains(got.Body, want) || !strings.Contains(got.Body, `"failure":null`) {
					t.Errorf("caller %d: %s", n, got.Body)
				}
			}
		})
	}
	waiting.Wait()
	h.ends(t)
	open, closed := map[string]bool{}, map[string]bool{}
	for _, call := range h.Calls() {
		_, id, _ := strings.Cut(string(call.Body), `_session_id":"`)
		id, _, _ = strings.Cut(id, `"`)
		if id == "" {
			continue // the caller left before the request was whole: it opened nothing
		}
		switch call.Route {
		case scripted.Seed, scripted.AgentSeed:
			if open[id] {
				t.Errorf("%s is seeded twice", id)
			}
			open[id] = true
		case scripted.AgentClose, scripted.CloseSession:
			closed[id] = true
		}
	}
	for id := range open {
		if !closed[id] {
			t.Errorf("%s is left open", id)
		}
	}
	if answered.Load() < callers*7/8 {
		t.Errorf("%d of %d were answered", answered.Load(), callers)
	}
}
