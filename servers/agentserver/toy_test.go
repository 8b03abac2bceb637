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
	kept      map[string]bool // cookies that serve after the close
	made      int             // cookies
	receipts  int
	requests  int
	atRequest func(n int) // told of each request before it is looked at
}

type toySession struct {
	episode, body, cookie string
	tools                 int
}

type toyFence struct {
	episode, receipt string
	ends             time.Time
	seeded           bool
}

const toyWindow = 300 * time.Second

func newToy(t *testing.T, broken string) *toy {
	t.Helper()
	y := &toy{broken: broken, now: time.Unix(1_800_000_000, 0), sessions: map[string]*toySession{}, fences: map[string]*toyFence{}, kept: map[string]bool{}}
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
		if status == 409 && y.broken == "answers every conflicting seed with 500" {
			status = 500
		}
		y.afterRefusal(w, body)
		tell(w, status, `{"detail":"refused"}`)
		return
	}
	held := y.sessions[body.ID]
	reply, cookies := "", true
	switch {
	case held == nil:
		y.made++
		held = &toySession{episode: string(body.Episode), body: body.text(), cookie: fmt.Sprintf("secret-%06d", y.made), tools: len(body.Tools)}
		y.sessions[body.ID] = held
		delete(y.fences, body.ID)
	case y.broken == "answers a repeated seed otherwise":
		reply = `,"again":true`
	case y.broken == "gives no cookie for a repeated seed":
		cookies = false
	case y.broken == "gives a new cookie for a repeated seed":
		cookies = false
		http.SetCookie(w, &http.Cookie{Name: "toy", Value: "new"})
	}
	if cookies && y.broken != "sets no cookie" {
		w.Header().Del("Set-Cookie")
		http.SetCookie(w, &http.Cookie{Name: "toy", Value: held.cookie})
	}
	id := body.ID
	if y.broken == "echoes another id" {
		id = "another"
	}
	tell(w, 200, `{"agent_session_id":%q%s}`, id, reply)
}

// afterRefusal is what a refused seed does that it should not.
func (y *toy) afterRefusal(w http.ResponseWriter, body toyBody) {
	held := y.sessions[body.ID]
	switch {
	case held != nil && y.broken == "binds an id to a seed that it refuses":
		held.episode, held.body, held.tools = string(body.Episode), body.text(), len(body.Tools)
	case held != nil && held.tools != len(body.Tools) && y.broken == "sets a cookie when it refuses other tools":
		http.SetCookie(w, &http.Cookie{Name: "toy", Value: "early"})
	}
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
		switch {
		case fence.seeded && y.broken == "lets a seed through after the close",
			fence.episode != string(body.Episode) && y.broken == "lets a seed for another episode through after the close":
			return 0
		case y.broken == "answers a seed after the close with 500":
			return 500
		}
		return 409
	}
	if held := y.sessions[body.ID]; held != nil && held.body != body.text() {
		return y.status(409, "takes another body", "answers another body with 500")
	}
	if held := y.sessions[body.ID]; held != nil && held.tools != len(body.Tools) {
		return y.status(409, "takes other tools", "answers other tools with 500")
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
	if fence == nil {
		return nil
	}
	forever := y.broken == "keeps fences for ever" || !fence.seeded && y.broken == "keeps the fences of ids never seeded for ever"
	if !y.now.Before(fence.ends) && !forever {
		return nil
	}
	return fence
}

func (y *toy) respond(w http.ResponseWriter, _ toyBody, cookie string) {
	held := y.kept[cookie] || cookie == "" && y.broken == "answers anybody" || cookie != "" && y.broken == "answers when closed"
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
	case fence != nil && fence.episode != episode && !y.takesAnother(fence),
		held != nil && held.episode != episode && y.broken != "takes a close for another episode":
		tell(w, 409, `{"detail":"another episode's"}`)
	case fence != nil:
		y.closeAgain(w, body.ID, cookie, fence)
	case held == nil && y.broken == "answers the close of an unknown id with 404":
		tell(w, 404, `{"detail":"unknown"}`)
	case held != nil && held.cookie == cookie && y.broken == "takes no close with a cookie":
		tell(w, 400, `{"detail":"no cookies"}`)
	case held != nil && held.cookie != cookie && y.broken == "releases by the cookie only":
		tell(w, 200, `{"agent_session_id":%q}`, body.ID)
	default:
		y.release(w, body.ID, episode, held)
	}
	if held != nil && cookie == "" && y.broken == "fences an id and keeps its session without the cookie" {
		y.kept[held.cookie] = true
	}
}

// takesAnother reports whether a close of a closed id may name any episode.
func (y *toy) takesAnother(fence *toyFence) bool {
	return y.broken == "takes a close of a closed id for another episode" && fence.seeded ||
		y.broken == "takes a close of an id never seeded for another episode" && !fence.seeded
}

func (y *toy) closeAgain(w http.ResponseWriter, id, cookie string, fence *toyFence) {
	switch {
	case y.broken == "forgets the receipt", cookie == "" && y.broken == "forgets the receipt without the cookie":
		tell(w, 200, `{"agent_session_id":%q}`, id)
		return
	case y.broken == "renews the fence", cookie == "" && y.broken == "renews the fence for a close without a cookie":
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
	if held == nil && y.broken != "does not fence unknown ids" || held != nil && y.broken != "fences no id that was seeded" {
		y.fences[id] = &toyFence{episode: episode, receipt: receipt, ends: y.now.Add(window), seeded: held != nil}
	}
	tell(w, 200, "%s", receipt)
}
