package agentserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// A toy is an agent server of its own making, for what the check must find: it keeps
// the contract but for one thing, which broken names.
type toy struct {
	url    string
	broken string

	mu        sync.Mutex
	now       time.Time
	sessions  map[string]*toySession
	fences    map[string]*toyFence
	made      int // cookies
	receipts  int
	requests  int
	atRequest func(n int) // told of each request before it is looked at
}

type toySession struct{ episode, body, cookie string }

type toyFence struct {
	episode, receipt string
	ends             time.Time
	seeded           bool
}

const toyWindow = 300 * time.Second

func newToy(t *testing.T, broken string) *toy {
	t.Helper()
	y := &toy{broken: broken, now: time.Unix(1_800_000_000, 0), sessions: map[string]*toySession{}, fences: map[string]*toyFence{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/agent_sessions", y.route((*toy).seed))
	mux.HandleFunc("POST /v1/agent_sessions/close", y.route((*toy).close))
	mux.HandleFunc("POST /ng-rollout/{key}/v1/responses", y.route((*toy).respond))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	y.url = server.URL
	return y
}

func (y *toy) sleep(_ context.Context, d time.Duration) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.now = y.now.Add(d)
	return nil
}

func (y *toy) open() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.sessions)
}

type toyBody struct {
	ID      string          `json:"agent_session_id"`
	Episode json.RawMessage `json:"episode_id"`
	Task    json.RawMessage `json:"task_id"`
	Tools   []struct {
		Kind, Name string
		Required   bool
	} `json:"tool_accesses"`
}

func (y *toy) route(answer func(*toy, http.ResponseWriter, toyBody, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		y.mu.Lock()
		defer y.mu.Unlock()
		y.requests++
		if y.atRequest != nil {
			y.atRequest(y.requests)
		}
		var body toyBody
		_ = json.NewDecoder(r.Body).Decode(&body)
		cookie := ""
		if c, err := r.Cookie("toy"); err == nil {
			cookie = c.Value
		}
		answer(y, w, body, cookie)
	}
}

func tell(w http.ResponseWriter, status int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, format, args...)
}

func (y *toy) seed(w http.ResponseWriter, body toyBody, _ string) {
	if y.broken == "sets the cookie before refusing" {
		http.SetCookie(w, &http.Cookie{Name: "toy", Value: "early"})
	}
	if status := y.refusal(body); status != 0 {
		tell(w, status, `{"detail":"refused"}`)
		return
	}
	held := y.sessions[body.ID]
	reply := ""
	switch {
	case held == nil:
		y.made++
		held = &toySession{episode: string(body.Episode), body: body.text(), cookie: fmt.Sprintf("secret-%06d", y.made)}
		y.sessions[body.ID] = held
		delete(y.fences, body.ID)
	case y.broken == "answers a repeated seed otherwise":
		reply = `,"again":true`
	}
	if y.broken != "sets no cookie" {
		w.Header().Del("Set-Cookie")
		http.SetCookie(w, &http.Cookie{Name: "toy", Value: held.cookie})
	}
	id := body.ID
	if y.broken == "echoes another id" {
		id = "another"
	}
	tell(w, 200, `{"agent_session_id":%q%s}`, id, reply)
}

func (b toyBody) text() string { return string(b.Episode) + string(b.Task) }

func (y *toy) refusal(body toyBody) int {
	if len(body.Tools) == 2 && body.Tools[0].Name == body.Tools[1].Name {
		return y.status(422, "takes two tools of one name", "answers two tools of one name with 500")
	}
	if len(body.Tools) == 1 && body.Tools[0].Required && !strings.HasSuffix(body.Tools[0].Kind, "_http") {
		return y.status(422, "takes any required tool", "answers a required tool with 500")
	}
	if fence := y.fence(body.ID); fence != nil {
		if y.broken == "lets a seed through after the close" && fence.seeded {
			return 0
		}
		return 409
	}
	if held := y.sessions[body.ID]; held != nil && held.body != body.text() {
		return y.status(409, "takes another body", "answers another body with 500")
	}
	return 0
}

// status is the usual one of a refusal, 0 or 500 where that is what is broken.
func (y *toy) status(usual int, takes, fails string) int {
	switch y.broken {
	case takes:
		return 0
	case fails:
		return 500
	}
	return usual
}

func (y *toy) fence(id string) *toyFence {
	fence := y.fences[id]
	if fence == nil || !y.now.Before(fence.ends) && y.broken != "keeps fences for ever" {
		return nil
	}
	return fence
}

func (y *toy) respond(w http.ResponseWriter, _ toyBody, cookie string) {
	held := cookie == "" && y.broken == "answers anybody" || cookie != "" && y.broken == "answers when closed"
	for _, s := range y.sessions {
		held = held || s.cookie == cookie && cookie != ""
	}
	switch {
	case !held:
		tell(w, 409, `{"detail":"no session"}`)
	case y.broken == "gives no output":
		tell(w, 200, `{"id":"r"}`)
	default:
		tell(w, 200, `{"id":"r","output":[]}`)
	}
}

func (y *toy) close(w http.ResponseWriter, body toyBody, cookie string) {
	episode := string(body.Episode)
	held, fence := y.sessions[body.ID], y.fence(body.ID)
	switch {
	case fence != nil && fence.episode != episode && y.broken != "takes a close of a closed id for another episode",
		held != nil && held.episode != episode && y.broken != "takes a close for another episode":
		tell(w, 409, `{"detail":"another episode's"}`)
	case fence != nil:
		y.closeAgain(w, body.ID, fence)
	case held == nil && y.broken == "answers the close of an unknown id with 404":
		tell(w, 404, `{"detail":"unknown"}`)
	case held != nil && held.cookie == cookie && y.broken == "takes no close with a cookie":
		tell(w, 400, `{"detail":"no cookies"}`)
	case held != nil && held.cookie != cookie && y.broken == "releases by the cookie only":
		tell(w, 200, `{"agent_session_id":%q}`, body.ID)
	default:
		y.release(w, body.ID, episode, held)
	}
}

func (y *toy) closeAgain(w http.ResponseWriter, id string, fence *toyFence) {
	switch y.broken {
	case "forgets the receipt":
		tell(w, 200, `{"agent_session_id":%q}`, id)
		return
	case "renews the fence":
		fence.ends = y.now.Add(toyWindow)
	}
	tell(w, 200, "%s", fence.receipt)
}

func (y *toy) release(w http.ResponseWriter, id, episode string, held *toySession) {
	y.receipts++
	receipt := fmt.Sprintf(`{"agent_session_id":%q,"agent_observations":{"n":%d}}`, id, y.receipts)
	delete(y.sessions, id)
	window := toyWindow
	if y.broken == "forgets fences early" {
		window /= 2
	}
	if held != nil || y.broken != "does not fence unknown ids" {
		y.fences[id] = &toyFence{episode: episode, receipt: receipt, ends: y.now.Add(window), seeded: held != nil}
	}
	tell(w, 200, "%s", receipt)
}
