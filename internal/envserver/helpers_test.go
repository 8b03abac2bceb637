package envserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/internal/envserver"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/scripted"
	"example.com/turn/internal/telemetry"
	"example.com/turn/retry"
)

// within bounds what a test waits for. It is far above what anything takes: a
// test that reaches it hangs.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A house is an environment server with its two servers.
type house struct {
	*scripted.Servers
	server *envserver.Server
	url    string
	client *http.Client
	log    *logText

	stop   context.CancelFunc // ends the context of Serve
	served chan error         // what Serve returned
}

// settings are what a test may change of a house.
type settings struct {
	driver   episode.Config
	server   envserver.Config
	listener net.Listener
	// transport wraps the driver's.
	transport func(http.RoundTripper) http.RoundTripper
}

// newHouse starts the three servers. Without a change there is one attempt, no
// limit, and a grace that no test outlives. The house is drained when the test
// ends.
func newHouse(t testing.TB, change func(*settings)) *house {
	t.Helper()
	h := &house{Servers: scripted.New(t), log: &logText{}, served: make(chan error, 1)}
	logger := zerolog.New(h.log).Level(zerolog.TraceLevel)
	metrics := telemetry.New()
	s := settings{
		driver: episode.Config{CleanupTimeout: 20 * time.Second, Logger: logger, Observer: metrics},
		server: envserver.Config{Policy: retry.Policy{MaxAttempts: 1}, Grace: 0, Logger: logger, Metrics: metrics},
	}
	s.driver.Resources.URL, s.driver.Resources.Name = h.ResourcesURL, "weather"
	s.driver.Agent.URL, s.driver.Agent.Name = h.AgentURL, "simple_agent"
	quick := retry.Resend{Pause: time.Millisecond}
	s.driver.Resources.Resend, s.driver.Agent.Resend = quick, quick
	s.driver.Resources.Logger, s.driver.Agent.Logger = logger, logger
	s.server.Rules = episode.RowRules{Taskset: "weather", Servers: []string{"single_agent_turn", "weather", "simple_agent"}, Agent: "simple_agent"}
	if change != nil {
		change(&s)
	}
	transport := pool.New()
	s.driver.Transport = transport
	if s.transport != nil {
		s.driver.Transport = s.transport(transport)
	}
	driver, err := episode.NewDriver(s.driver)
	if err != nil {
		t.Fatal(err)
	}
	s.server.Driver = driver
	if s.listener == nil {
		if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	h.server = envserver.New(s.server)
	h.url = "http://" + s.listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() { h.served <- h.server.Serve(ctx, s.listener) }()
	callers := &http.Transport{MaxIdleConnsPerHost: 100}
	h.client = &http.Client{Transport: callers}
	t.Cleanup(func() {
		stop()
		callers.CloseIdleConnections()
		select {
		case <-h.served:
		case <-time.After(30 * time.Second):
			t.Error("the server does not end")
		}
		driver.Close()
		transport.CloseIdleConnections()
	})
	return h
}

// ends stops the server and waits until it has drained, which includes every
// episode.
func (h *house) ends(t testing.TB) {
	t.Helper()
	h.stop()
	err := receive(t, h.served)
	h.served <- err // for the clean-up
	if err != nil {
		t.Errorf("Serve returned %v", err)
	}
}

// A reply is what the environment server answered.
type reply struct {
	Status int
	Header http.Header
	Body   string
}

// call makes one request. The error is that of the connection.
func (h *house) call(ctx context.Context, method, path, contentType, body string) (reply, error) {
	r, err := http.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	response, err := h.client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(text)}, err
}

// run posts a body to /run and waits for the answer.
func (h *house) run(t testing.TB, body string) reply {
	t.Helper()
	got, err := h.call(within(t), http.MethodPost, "/run", "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	if mime := got.Header.Get("Content-Type"); mime != "application/json" || !json.Valid([]byte(got.Body)) {
		t.Errorf("a reply of type %q: %s", mime, got.Body)
	}
	return got
}

// running posts a body to /run and returns at once.
func (h *house) running(ctx context.Context, body string) <-chan reply {
	replies := make(chan reply, 1)
	go func() {
		got, err := h.call(ctx, http.MethodPost, "/run", "application/json", body)
		if err != nil {
			got = reply{Body: err.Error()}
		}
		replies <- got
	}()
	return replies
}

func receive[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-within(t).Done():
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// An envelope is a reply to an episode request.
type envelope struct {
	EpisodeID json.RawMessage            `json:"episode_id"`
	TaskID    json.RawMessage            `json:"task_id"`
	Result    map[string]json.RawMessage `json:"result"`
	Failure   *failure                   `json:"failure"`
}

type failure struct {
	Reason   string          `json:"failure_reason"`
	Terminal bool            `json:"terminal"`
	Kind     string          `json:"failure_kind"`
	Stage    string          `json:"stage"`
	Partial  json.RawMessage `json:"partial_response"`
}

// open reads an answered episode and checks that it is a result or a failure, with
// both keys there.
func open(t testing.TB, got reply) envelope {
	t.Helper()
	if got.Status != http.StatusOK {
		t.Fatalf("status %d: %s", got.Status, got.Body)
	}
	var keys map[string]json.RawMessage
	var e envelope
	if err := json.Unmarshal([]byte(got.Body), &e); err != nil {
		t.Fatalf("%v: %s", err, got.Body)
	}
	_ = json.Unmarshal([]byte(got.Body), &keys)
	if len(keys) != 4 || keys["result"] == nil || keys["failure"] == nil || (e.Result == nil) == (e.Failure == nil) {
		t.Fatalf("not exactly one of result and failure, or another key: %s", got.Body)
	}
	if e.Failure != nil && e.Failure.Reason == "" {
		t.Errorf("a failure without a reason: %s", got.Body)
	}
	return e
}

// wantFailure reads an answered episode that must have failed.
func wantFailure(t testing.TB, got reply) failure {
	t.Helper()
	e := open(t, got)
	if e.Failure == nil {
		t.Fatalf("want a failure, got %s", got.Body)
	}
	return *e.Failure
}

const (
	episodeID = `{"rollout_id":"3-0","attempt":0}`
	taskID    = `{"taskset":"weather","task_id":"task-3"}`
	params    = `{"input":"Is it cold in Oslo?"}`
)

// request is an episode request with that task_input.
func request(input string) string {
	return `{"episode_id":` + episodeID + `,"task":{"task_id":` + taskID + `,"task_input":` + input + `}}`
}

var plain = request(`{"responses_create_params":` + params + `,"task_data":{"city":"Oslo"}}`)

// whole is the routes of an episode that nothing happened to.
var whole = []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.Verify, scripted.CloseSession}

// logText is a log that may be read while it is written.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
