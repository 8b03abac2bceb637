package resourcesserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"example.com/turn/failures"
	"example.com/turn/servers/requests"
	"example.com/turn/servers/resourcesserver"
)

// A ledger is the task environment of these tests: tools write lines into it,
// and an answer is worth as many points as there are lines.
type ledger struct {
	owner string
	lines []string
}

// A book is what the tests see of all ledgers, and how they make them fail.
type book struct {
	mu       sync.Mutex
	built    []string // owners, in order
	scored   int
	released []string

	seedErr, verifyErr, releaseErr error
	releaseBug                     any                      // what a release panics with
	verdict                        *resourcesserver.Verdict // instead of the points
}

func (b *book) environment() resourcesserver.TaskEnvironment[*ledger] {
	return resourcesserver.TaskEnvironment[*ledger]{
		Name: "ledger",
		Seed: b.seed,
		Tools: []resourcesserver.Tool[*ledger]{
			{Name: "add", Call: b.add},
			{Name: "refuse", Call: refuse},
			{Name: "break", Call: func(context.Context, *ledger, json.RawMessage) (any, error) { return nil, errors.New("out of ink") }},
		},
		Verify:  b.verify,
		Release: b.release,
	}
}

func (b *book) seed(_ context.Context, task resourcesserver.Task) (*ledger, error) {
	fields := requests.Read(task.Data, "body", "task_data")
	owner := fields.Text("owner")
	if err := errors.Join(fields.Err(), b.seedErr); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.built = append(b.built, owner)
	return &ledger{owner: owner}, nil
}

func (b *book) add(_ context.Context, l *ledger, arguments json.RawMessage) (any, error) {
	fields := requests.Read(arguments, "body")
	line := fields.Text("line")
	if err := fields.Err(); err != nil {
		return nil, err
	}
	l.lines = append(l.lines, line)
	return map[string]any{"lines": len(l.lines), "last": line}, nil
}

func refuse(context.Context, *ledger, json.RawMessage) (any, error) {
	return nil, requests.RefuseAs(http.StatusForbidden, failures.AgentCommandNotAllowed, "not in this ledger")
}

func (b *book) verify(_ context.Context, l *ledger, answer resourcesserver.Answer) (resourcesserver.Verdict, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scored++
	if b.verifyErr != nil {
		return resourcesserver.Verdict{}, b.verifyErr
	}
	if b.verdict != nil {
		return *b.verdict, nil
	}
	return resourcesserver.Verdict{
		Reward: float64(len(l.lines)) / 2,
		Extra:  map[string]any{"owner": l.owner, "calls": len(answer.Calls()), "asked": answer.Data},
	}, nil
}

func (b *book) release(_ context.Context, l *ledger) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = append(b.released, l.owner)
	if b.releaseBug != nil {
		panic(b.releaseBug)
	}
	return b.releaseErr
}

// A bench is a server of ledgers on a real socket.
type bench struct {
	*testing.T
	book   *book
	server *resourcesserver.Server
	url    string
}

func newBench(t *testing.T, config resourcesserver.Config) *bench {
	t.Helper()
	book := &book{}
	server, err := resourcesserver.New(book.environment(), config)
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	b.book = book
	return b
}

func serve(t *testing.T, server *resourcesserver.Server) *bench {
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	return &bench{T: t, server: server, url: listener.URL}
}

type reply struct {
	Status int
	Body   string
	Cookie string // "name=value" of the cookie it sets, "" for none
}

func (b *bench) post(path, cookie, body string) reply {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.url+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if cookie != "" {
		request.Header.Set("Cookie", cookie)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.Fatal(err)
	}
	set, _, _ := strings.Cut(response.Header.Get("Set-Cookie"), ";")
	return reply{response.StatusCode, string(text), set}
}

// ask posts without a socket, for tests in a bubble.
func ask(t *testing.T, server *resourcesserver.Server, path, cookie, body string) reply {
	t.Helper()
	w := httptest.NewRecorder()
	server.ServeHTTP(w, newRequest(t.Context(), path, cookie, body))
	set, _, _ := strings.Cut(w.Header().Get("Set-Cookie"), ";")
	return reply{w.Code, w.Body.String(), set}
}

func newRequest(ctx context.Context, path, cookie, body string) *http.Request {
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Cookie", cookie)
	return request
}

const (
	episode0 = `{"rollout_id":"0-0","attempt":0}`
	episode1 = `{"rollout_id":"0-0","attempt":1}`
	task0    = `{"taskset":"ledgers","task_id":"0"}`
	task1    = `{"taskset":"ledgers","task_id":"1"}`
	annsData = `{"owner":"Ann"}`
)

func seedBody(id, episode, task, data string) string {
	return fmt.Sprintf(`{"resources_session_id":%q,"episode_id":%s,"task_id":%s,"task_data":%s}`, id, episode, task, data)
}

func closeBody(id, episode string) string {
	return fmt.Sprintf(`{"resources_session_id":%q,"episode_id":%s}`, id, episode)
}

// seed opens a session and returns its cookie.
func (b *bench) seed(id string) (cookie string) {
	b.Helper()
	got := b.post("/seed_session", "", seedBody(id, episode0, task0, annsData))
	if got.Status != http.StatusOK || got.Cookie == "" {
		b.Fatalf("the seed got %+v", got)
	}
	return got.Cookie
}

const (
	params     = `{"input": [{"role":"user","content":"<add> & \u2028"}], "seed": 9007199254740993}`
	response   = `{"id":"r","output": [{"type":"function_call","name":"add","arguments":"{\"line\":\"x\"}"}], "temperature":1.0}`
	verifyBody = `{"owner":"Ann","responses_create_params":` + params + `,"response":` + response + `}`
	passedOn   = `{"responses_create_params":` + params + `,"response":` + response
	lost       = passedOn + `,"reward":0,"mask_sample":true,"failure_kind":"session_lost","failure_reason":`
)
