package episode_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
)

// quick re-sends lose no time in tests whose subject is something else.
var quick = retry.Resend{Pause: time.Millisecond}

// eventually bounds waits for what must happen; nothing takes that long.
const eventually = 20 * time.Second

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	t.Cleanup(cancel)
	return ctx
}

// configFor is a configuration for the scripted servers.
func configFor(s *scripted.Servers) episode.Config {
	return episode.Config{
		Resources: resourcesclient.Config{URL: s.ResourcesURL, Name: "bench", Resend: quick},
		Agent:     agentclient.Config{URL: s.AgentURL, Name: "helper", Resend: quick},
	}
}

func newDriver(t *testing.T, config episode.Config) *episode.Driver {
	t.Helper()
	d, err := episode.NewDriver(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func newRequest() *episode.Request {
	return &episode.Request{
		EpisodeID: protocol.EpisodeID{RolloutID: "7-0"},
		TaskID:    protocol.TaskID{Taskset: "weather", TaskID: "t-7"},
		Params:    json.RawMessage(`{"input":"how warm is it in Oslo?"}`),
		TaskData:  json.RawMessage(`{"expected":"cold"}`),
	}
}

// mustFail checks that the reply is a failure, and returns the request's failure.
func mustFail(t *testing.T, reply episode.Reply) *failures.Failure {
	t.Helper()
	if reply.Failure == nil || reply.Result != nil {
		t.Fatalf("got a result %s, want a failure", reply.Result.Body().Bytes())
	}
	return reply.Failure
}

func mustSucceed(t *testing.T, reply episode.Reply) *episode.Result {
	t.Helper()
	if reply.Result == nil || reply.Failure != nil {
		t.Fatalf("got the failure %v, want a result", reply.Failure)
	}
	return reply.Result
}

// field reads a text field of a JSON body.
func field(t *testing.T, body []byte, name string) string {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		t.Fatalf("body %q: %v", body, err)
	}
	var text string
	if err := json.Unmarshal(fields[name], &text); err != nil {
		t.Fatalf("%s of %s: %v", name, body, err)
	}
	return text
}

// callsOn are the calls on one route.
func callsOn(s *scripted.Servers, route scripted.Route) []scripted.Call {
	var calls []scripted.Call
	for _, call := range s.Calls() {
		if call.Route == route {
			calls = append(calls, call)
		}
	}
	return calls
}

// In a synctest bubble real sockets do not work. bubble is the two servers over
// net.Pipe: well-behaved ones, save for the paths that a test takes over.
type bubble struct {
	over   map[string]http.HandlerFunc // by path suffix
	mu     sync.Mutex
	called []string // paths, in order of arrival
}

// driver makes a driver of the bubble's servers. The bubble ends with the test
// function, so that everything is closed before it returns.
func (b *bubble) driver(t *testing.T, change func(*episode.Config)) (d *episode.Driver, stop func()) {
	t.Helper()
	listener := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: b}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	transport := pool.New()
	transport.DialContext = listener.dial
	config := episode.Config{
		Resources: resourcesclient.Config{URL: "http://resources", Name: "bench", Resend: quick},
		Agent:     agentclient.Config{URL: "http://agent", Name: "helper", Resend: quick},
		Transport: transport,
	}
	change(&config)
	d, err := episode.NewDriver(config)
	if err != nil {
		t.Fatal(err)
	}
	return d, func() {
		d.Close()
		transport.CloseIdleConnections()
		_ = server.Close()
		serving.Wait()
	}
}

func (b *bubble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	b.called = append(b.called, r.URL.Path)
	over := b.over
	b.mu.Unlock()
	for suffix, handler := range over {
		if strings.HasSuffix(r.URL.Path, suffix) {
			handler(w, r)
			return
		}
	}
	answer(w, r)
}

// takeOver changes which paths the test answers.
func (b *bubble) takeOver(over map[string]http.HandlerFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = over
}

func (b *bubble) paths() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.called...)
}

// answer is what a well-behaved server says.
func answer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var ids struct {
		Resources string          `json:"resources_session_id"`
		Agent     string          `json:"agent_session_id"`
		Params    json.RawMessage `json:"responses_create_params"`
		Response  json.RawMessage `json:"response"`
	}
	_ = json.Unmarshal(body, &ids)
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, protocol.PathSeedSession):
		w.Header().Add("Set-Cookie", "session=of-the-resources")
		_, _ = fmt.Fprintf(w, `{"resources_session_id":%q}`, ids.Resources)
	case strings.HasSuffix(path, protocol.PathCloseSession):
		_, _ = fmt.Fprintf(w, `{"resources_session_id":%q}`, ids.Resources)
	case strings.HasSuffix(path, protocol.PathVerify):
		_, _ = fmt.Fprintf(w, `{"responses_create_params":%s,"response":%s,"reward":1.0}`, ids.Params, ids.Response)
	case strings.HasSuffix(path, protocol.PathResponses):
		_, _ = io.WriteString(w, `{"output":[]}`)
	default:
		_, _ = fmt.Fprintf(w, `{"agent_session_id":%q}`, ids.Agent)
	}
}

// hang answers when the caller has gone.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.IPAddr{} }

func readBody(r *http.Request) []byte {
	body, _ := io.ReadAll(r.Body)
	return body
}

// peekBody reads a request's body and leaves it to be read again.
func peekBody(r *http.Request) []byte {
	body := readBody(r)
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	return body
}

// rolloutOf is the rollout id in a call's body.
func rolloutOf(t *testing.T, call scripted.Call) string {
	t.Helper()
	var body struct {
		EpisodeID protocol.EpisodeID `json:"episode_id"`
	}
	if err := json.Unmarshal(call.Body, &body); err != nil {
		t.Errorf("body %q: %v", call.Body, err)
	}
	return body.EpisodeID.RolloutID
}

// deadAddress is an address on which nobody listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return address
}

// A set is a set of names that several goroutines change.
type set struct {
	mu    sync.Mutex
	names map[string]bool
}

func newSet() *set { return &set{names: map[string]bool{}} }

func (s *set) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name] = true
}

func (s *set) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
}

func (s *set) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

// cancelAfter is a context that is cancelled as soon as a call has come.
func cancelAfter(t *testing.T, b *bubble, path string) (context.Context, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(soon(t))
	before := b.over[path]
	b.takeOver(map[string]http.HandlerFunc{path: func(w http.ResponseWriter, r *http.Request) {
		cancel()
		before(w, r)
	}})
	return ctx, cancel
}
