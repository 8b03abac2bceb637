package scripted_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/scripted"
)

// within bounds what a test waits for. It is far above what anything takes: a
// test that reaches it hangs.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// newClient opens a connection for each call, so that no test meets a
// connection that another one has broken.
func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func post(ctx context.Context, client *http.Client, url, body string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

func TestDefaultRepliesKeepTheContract(t *testing.T) {
	servers := scripted.New(t)
	client := newClient(t)
	for _, test := range []struct {
		url, path, body string
		want            string // a part of the body
		cookie          string
	}{
		{servers.ResourcesURL, "/seed_session", `{"resources_session_id":"r-1"}`, `{"resources_session_id":"r-1"}`, "res_session=res-cookie-1; path=/; Max-Age=1209600; httponly; samesite=lax"},
		{servers.ResourcesURL, "/ng-rollout/k/verify", `{"responses_create_params": {"a": 1.0}, "response": [1e2]}`, `{"responses_create_params":{"a": 1.0},"response":[1e2],"reward":1.0,`, "res_session=res-cookie-8; path=/; httponly; samesite=lax"},
		{servers.ResourcesURL, "/close_session", `{"resources_session_id":"r-1"}`, `{"resources_session_id":"r-1"}`, "res_session=res-cookie-9; path=/; httponly; samesite=lax"},
		{servers.ResourcesURL, "/aggregate_metrics", `{}`, `"key_metrics":{"mean/reward":1.0}`, ""},
		{servers.ResourcesURL, "/get_weather", `{}`, `{"status":"ok"}`, ""},
		{servers.AgentURL, "/v1/agent_sessions", `{"agent_session_id":"a-1"}`, `{"agent_session_id":"a-1"}`, "agent_session=agent-cookie-1; path=/; Max-Age=1209600; httponly; samesite=lax"},
		{servers.AgentURL, "/ng-rollout/k/training-token-capture/v1/responses", `{}`, `"text":"It is cold."`, "agent_session=agent-cookie-2; path=/; Max-Age=1209600; httponly; samesite=lax"},
		{servers.AgentURL, "/v1/agent_sessions/close", `{"agent_session_id":"a-1"}`, `{"agent_session_id":"a-1","agent_observations":null,"resources_cookies":null}`, "agent_session=agent-cookie-9; path=/; httponly; samesite=lax"},
		{servers.AgentURL, "/verify", `{}`, `{"status":"ok"}`, ""},
	} {
		got, err := post(within(t), client, test.url+test.path, test.body)
		if err != nil || got.status != http.StatusOK {
			t.Fatalf("%s: status %d, %v", test.path, got.status, err)
		}
		if !strings.Contains(got.body, test.want) || !json.Valid([]byte(got.body)) {
			t.Errorf("%s: body %s, want %s in it", test.path, got.body, test.want)
		}
		if cookie := got.header.Get("Set-Cookie"); cookie != test.cookie {
			t.Errorf("%s: cookie %q, want %q", test.path, cookie, test.cookie)
		}
	}
	want := []scripted.Route{scripted.Seed, scripted.Verify, scripted.CloseSession, scripted.Metrics, scripted.Other, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.Other}
	if diff := cmp.Diff(want, servers.Routes()); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}

func TestScriptIsFollowedInOrderAndItsLastActionRepeats(t *testing.T) {
	servers := scripted.New(t)
	client := newClient(t)
	servers.Play(scripted.Script{scripted.Seed: {
		{Status: 503, JSON: json.RawMessage(`{"detail":"no host"}`), Headers: [][2]string{{"Retry-After", "1"}}},
		{Raw: new("<{{repeat}}>"), Repeat: 3, RepeatText: "é", ContentType: "text/html", SetCookie: []string{"a=1", "b=2"}},
		{JSON: json.RawMessage(`{"resources_session_id":"{{id}}","x":1}`), SetCookie: []string{}},
	}})
	type reply struct {
		Status      int
		Body        string
		ContentType string
		RetryAfter  string
		Cookies     []string
	}
	var got []reply
	for range 4 {
		a, err := post(within(t), client, servers.ResourcesURL+"/seed_session", `{"resources_session_id":"r"}`)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, reply{a.status, a.body, a.header.Get("Content-Type"), a.header.Get("Retry-After"), a.header.Values("Set-Cookie")})
	}
	last := reply{Status: 200, Body: `{"resources_session_id":"r","x":1}`, ContentType: "application/json"}
	want := []reply{
		{Status: 503, Body: `{"detail":"no host"}`, ContentType: "application/json", RetryAfter: "1"},
		{Status: 200, Body: "<ééé>", ContentType: "text/html", Cookies: []string{"a=1", "b=2"}},
		last, last,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("replies (-want +got):\n%s", diff)
	}
}

func TestScriptReadsAsJSON(t *testing.T) {
	var script scripted.Script
	text := `{"verify": [{"raw": "", "status": 202, "set_cookie": [], "headers": [["A", "b"]], "delay_ms": 1, "split_delay_ms": 2, "drop": "mid_body"}, {"default": true}]}`
	if err := json.Unmarshal([]byte(text), &script); err != nil {
		t.Fatal(err)
	}
	want := scripted.Script{scripted.Verify: {
		{Raw: new(""), Status: 202, SetCookie: []string{}, Headers: [][2]string{{"A", "b"}}, DelayMs: 1, SplitDelayMs: 2, Drop: scripted.MidBody},
		{Default: true},
	}}
	if diff := cmp.Diff(want, script); diff != "" {
		t.Errorf("script (-want +got):\n%s", diff)
	}
}

func TestMistakenScriptsAreRefused(t *testing.T) {
	for _, script := range []scripted.Script{
		{"sed": {{}}},
		{scripted.Seed: {{Drop: "sometimes"}}},
	} {
		if script.Validate() == nil {
			t.Errorf("Validate(%v): no complaint", script)
		}
	}
}

func TestEachDropIsSeenByTheCaller(t *testing.T) {
	const request = `{"resources_session_id":"r-1"}`
	for _, test := range []struct {
		drop     scripted.Drop
		wantBody string // what the server has read
		check    func(got answer, err error) bool
	}{
		{scripted.BeforeRead, "", func(_ answer, err error) bool {
			return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		}},
		{scripted.AfterRead, request, func(_ answer, err error) bool { return errors.Is(err, io.EOF) }},
		{scripted.Garbage, request, func(_ answer, err error) bool { return err != nil && strings.Contains(err.Error(), "malformed") }},
		{scripted.MidHeaders, request, func(_ answer, err error) bool { return err != nil && strings.Contains(err.Error(), `"Content-Ty"`) }},
		{scripted.MidBody, request, func(got answer, err error) bool {
			return errors.Is(err, io.ErrUnexpectedEOF) && got.status == 200 && got.body == `{"resources_ses` && got.header.Get("Set-Cookie") != ""
		}},
	} {
		t.Run(string(test.drop), func(t *testing.T) {
			servers := scripted.New(t)
			var atDrop atomic.Int64
			servers.Play(scripted.Script{scripted.Seed: {{Drop: test.drop, AtDrop: func() { atDrop.Add(1) }}, {Default: true}}})
			client := newClient(t)
			got, err := post(within(t), client, servers.ResourcesURL+"/seed_session", request)
			if !test.check(got, err) {
				t.Errorf("the caller sees %+v, %v", got, err)
			}
			if err := servers.Idle(within(t), 0); err != nil {
				t.Fatal(err)
			}
			if atDrop.Load() != 1 {
				t.Errorf("AtDrop was called %d times", atDrop.Load())
			}
			call := servers.Calls()[0]
			if call.Reply != "drop:"+string(test.drop) || string(call.Body) != test.wantBody {
				t.Errorf("the log has reply %q and body %q, want the drop and %q", call.Reply, call.Body, test.wantBody)
			}
			if got, err := post(within(t), client, servers.ResourcesURL+"/seed_session", request); err != nil || got.status != 200 {
				t.Errorf("the call after the drop: %+v, %v", got, err)
			}
		})
	}
}

func TestSplitDelaySendsHalfOfTheBodyFirst(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Verify: {{Raw: new("0123456789"), SplitDelayMs: 60_000}}})
	connection, err := net.Dial("tcp", strings.TrimPrefix(servers.ResourcesURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(connection, "POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	half := make([]byte, 5)
	if _, err := io.ReadFull(response.Body, half); err != nil || string(half) != "01234" || response.ContentLength != 10 {
		t.Errorf("first half %q of %d, %v", half, response.ContentLength, err)
	}
	_ = connection.Close()
	if err := servers.Idle(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if call := servers.Calls()[0]; !call.CallerGone || call.Reply != "not sent" {
		t.Errorf("the log has reply %q, caller gone %t", call.Reply, call.CallerGone)
	}
}

func TestDelayHoldsTheReplyBack(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Seed: {{DelayMs: 50}}})
	if _, err := post(within(t), newClient(t), servers.ResourcesURL+"/seed_session", `{}`); err != nil {
		t.Fatal(err)
	}
	if err := servers.Idle(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if call := servers.Calls()[0]; call.Ended.Sub(call.Arrived) < 50*time.Millisecond {
		t.Errorf("the call took %s", call.Ended.Sub(call.Arrived))
	}
}

func TestHungCallEndsWhenItsCallerGoes(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.AgentClose: {{Hang: true}}})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	client := newClient(t)
	go func() {
		_, err := post(ctx, client, servers.AgentURL+"/v1/agent_sessions/close", `{"agent_session_id":"a"}`)
		ended <- err
	}()
	call, err := servers.Wait(within(t), scripted.AgentClose, 1)
	if err != nil || string(call.Body) != `{"agent_session_id":"a"}` || call.Reply != "" || !call.Ended.IsZero() {
		t.Fatalf("Wait: %+v, %v", call, err)
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller sees %v", err)
	}
	if err := servers.Idle(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if call := servers.Calls()[0]; !call.CallerGone || call.Reply != "not sent" || call.Ended.IsZero() {
		t.Errorf("the log has %+v", call)
	}
}

func TestHungCallEndsWhenTheServersStop(t *testing.T) {
	ended := make(chan error, 1)
	client := newClient(t)
	t.Run("servers", func(t *testing.T) {
		servers := scripted.New(t)
		servers.Play(scripted.Script{scripted.Seed: {{Hang: true}}})
		go func() {
			_, err := post(context.Background(), client, servers.ResourcesURL+"/seed_session", `{}`)
			ended <- err
		}()
		if _, err := servers.Wait(within(t), scripted.Seed, 1); err != nil {
			t.Fatal(err)
		}
	})
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("the caller sees %v", err)
	}
}

func TestGateAndDoOrderATestWithoutSleeping(t *testing.T) {
	servers := scripted.New(t)
	gate := make(chan struct{})
	seen := make(chan scripted.Call, 1)
	servers.Play(scripted.Script{scripted.Responses: {{Gate: gate, Do: func(call scripted.Call) { seen <- call }}}})
	ended := make(chan answer, 1)
	client := newClient(t)
	go func() {
		got, _ := post(within(t), client, servers.AgentURL+"/v1/responses", `{"input":"x"}`)
		ended <- got
	}()
	if call := <-seen; string(call.Body) != `{"input":"x"}` || call.Route != scripted.Responses {
		t.Errorf("Do was given %+v", call)
	}
	select {
	case got := <-ended:
		t.Fatalf("answered before the gate was open: %+v", got)
	default:
	}
	close(gate)
	if got := <-ended; got.status != 200 {
		t.Errorf("answered with %+v", got)
	}
}

func TestWaitsEndWithTheirContext(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Seed: {{Hang: true}}})
	reason := errors.New("enough")
	ctx, give := context.WithCancelCause(t.Context())
	client := newClient(t)
	go func() { _, _ = post(ctx, client, servers.ResourcesURL+"/seed_session", `{}`) }()
	if _, err := servers.Wait(within(t), scripted.Seed, 1); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 3)
	waiting, stop := context.WithCancelCause(t.Context())
	go func() { _, err := servers.Wait(waiting, scripted.Seed, 2); done <- err }()
	go func() { done <- servers.Idle(waiting, 0) }()
	go func() { done <- servers.Idle(waiting, time.Hour) }()
	stop(reason)
	for range 3 {
		if err := <-done; !errors.Is(err, reason) {
			t.Errorf("ended with %v", err)
		}
	}
	give(nil)
}

func TestIdleWaitsForQuiet(t *testing.T) {
	servers := scripted.New(t)
	client := newClient(t)
	for range 2 {
		if _, err := post(within(t), client, servers.ResourcesURL+"/seed_session", `{}`); err != nil {
			t.Fatal(err)
		}
	}
	if err := servers.Idle(within(t), 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	calls := servers.Calls()
	if quiet := time.Since(calls[1].Ended); len(calls) != 2 || quiet < 15*time.Millisecond {
		t.Errorf("idle %s after the last of %d calls", quiet, len(calls))
	}
}

func TestPlayForgetsWhatWasBefore(t *testing.T) {
	servers := scripted.New(t)
	gate := make(chan struct{})
	servers.Play(scripted.Script{scripted.Seed: {{Gate: gate, Status: 500}}})
	ended := make(chan answer, 1)
	client := newClient(t)
	go func() {
		got, _ := post(within(t), client, servers.ResourcesURL+"/seed_session", `{}`)
		ended <- got
	}()
	if _, err := servers.Wait(within(t), scripted.Seed, 1); err != nil {
		t.Fatal(err)
	}
	servers.Play(nil)
	if got, err := post(within(t), client, servers.ResourcesURL+"/verify", `{"response":1,"responses_create_params":2}`); err != nil || got.status != 200 {
		t.Errorf("under the new script: %+v, %v", got, err)
	}
	close(gate)
	if got := <-ended; got.status != 500 {
		t.Errorf("a call under the old script ended with %+v", got)
	}
	if diff := cmp.Diff([]scripted.Route{scripted.Verify}, servers.Routes()); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}

// sessions is a resources server with state, as small as one can be.
type sessions struct{ live, seeded atomic.Int64 }

func (s *sessions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/seed_session":
		s.live.Add(1)
		s.seeded.Add(1)
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "true"})
	case "/close_session":
		s.live.Add(-1)
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

func TestFrontLosesTheTrueReplyOfTheServerBehind(t *testing.T) {
	const body = `{"resources_session_id":"r"}`
	for _, test := range []struct {
		name       string
		action     scripted.Action
		wantSeeded int64
		wantStatus int
		wantBody   string
		wantError  bool
	}{
		{"no action", scripted.Action{}, 1, 201, body, false},
		{"default", scripted.Action{Default: true, Headers: [][2]string{{"X", "y"}}}, 1, 201, body, false},
		{"after_read", scripted.Action{Drop: scripted.AfterRead}, 1, 0, "", true},
		{"mid_body", scripted.Action{Drop: scripted.MidBody}, 1, 201, body[:len(body)/2], true},
		{"before_read", scripted.Action{Drop: scripted.BeforeRead}, 0, 0, "", true},
		{"refusal", scripted.Action{Status: 503}, 0, 503, body, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			var behind sessions
			servers.Front(&behind, nil)
			servers.Play(scripted.Script{scripted.Seed: {test.action}})
			client := newClient(t)
			got, err := post(within(t), client, servers.ResourcesURL+"/seed_session", body)
			if got.status != test.wantStatus || got.body != test.wantBody || (err != nil) != test.wantError {
				t.Errorf("the caller sees %+v, %v", got, err)
			}
			if test.wantStatus == 201 && !strings.HasPrefix(got.header.Get("Set-Cookie"), "session=true") {
				t.Errorf("the cookie of the server behind is missing: %v", got.header)
			}
			if seeded := behind.seeded.Load(); seeded != test.wantSeeded {
				t.Errorf("the server behind has seen %d seeds, want %d", seeded, test.wantSeeded)
			}
			if got, err := post(within(t), client, servers.AgentURL+"/v1/responses", `{}`); err != nil || got.status != 200 {
				t.Errorf("the agent, which has no server behind: %+v, %v", got, err)
			}
		})
	}
}

func TestPanicOfTheServerBehindIsADroppedCall(t *testing.T) {
	servers := scripted.New(t)
	servers.Front(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), nil)
	if got, err := post(within(t), newClient(t), servers.ResourcesURL+"/verify", `{}`); err == nil {
		t.Errorf("the caller sees %+v", got)
	}
	if err := servers.Idle(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if call := servers.Calls()[0]; call.Reply != "not sent" {
		t.Errorf("the log has reply %q", call.Reply)
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	const episodes, atOnce = 3000, 200
	servers := scripted.New(t)
	// Each seed waits for as many others as can be under way: were they
	// answered one after another, none would ever be.
	meet := newMeeting(atOnce)
	servers.Play(scripted.Script{scripted.Seed: {{Do: func(scripted.Call) { meet.wait() }}}})
	transport := &http.Transport{MaxIdleConnsPerHost: atOnce}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var wg sync.WaitGroup
	ctx := within(t)
	for worker := range atOnce {
		wg.Go(func() {
			for i := range episodes / atOnce {
				id := fmt.Sprintf(`{"resources_session_id":"r-%d-%d"}`, worker, i)
				for _, path := range []string{"/seed_session", "/close_session"} {
					if got, err := post(ctx, client, servers.ResourcesURL+path, id); err != nil || got.body != id {
						t.Errorf("%s: %+v, %v", path, got, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if n := len(servers.Calls()); n != 2*episodes {
		t.Errorf("%d calls in the log, want %d", n, 2*episodes)
	}
}

// A meeting lets nobody through before n have come.
type meeting struct {
	missing sync.WaitGroup
	left    atomic.Int64
}

func newMeeting(n int) *meeting {
	m := &meeting{}
	m.missing.Add(n)
	m.left.Store(int64(n))
	return m
}

func (m *meeting) wait() {
	if m.left.Add(-1) >= 0 {
		m.missing.Done()
	}
	m.missing.Wait()
}
