package resourcesserver_test

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

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A toy is a resources server of its own making, for what the check must find: it
// keeps the contract but for one thing, which broken names. Its tool counts, and an
// answer is worth as much as was counted.
type toy struct {
	url    string
	broken string

	mu          sync.Mutex
	now         time.Time
	hold        *toyHold // of the next tool call; nil when it is not held
	sessions    map[string]*toySession
	runs        map[string]bool // agent-run sessions, by cookie
	fences      map[string]*toyFence
	made        int // cookies
	released    int
	failRelease bool
	lives       time.Duration // longer than toyLifetime
	toolTakes   time.Duration // of its clock
	failFirst   int           // of how many more sessions the first release fails
	most        int           // sessions open at the same time
	requests    int
	atRequest   func(n int) // told of each request before it is looked at
	atClose     func()      // told of each close of an open session
}

type toySession struct {
	episode, payload string
	task             string
	cookie           string
	count            int
	verifies         int
	busy             int
	born, used       time.Time
	seeds            int
	closing          int
	failed           bool          // its first release
	stuck            bool          // it is fenced too
	second           chan struct{} // closed when a second closer is there
}

type toyFence struct {
	episode string
	cookie  string
	kind    string
	ends    time.Time
	seeded  bool
	alone   bool // closed without a cookie
	masked  bool // a verify of its session was
}

const (
	toyWindow   = 300 * time.Second
	toyIdle     = 60 * time.Second
	toyLifetime = 4 * time.Minute
)

func newToy(t *testing.T, broken string) *toy {
	t.Helper()
	y := &toy{
		broken: broken, now: time.Unix(1_800_000_000, 0),
		sessions: map[string]*toySession{}, runs: map[string]bool{}, fences: map[string]*toyFence{},
	}
	tools := mcp.NewServer(&mcp.Implementation{Name: "toy", Version: "1"}, nil)
	y.offer(tools, "add")
	if broken == "offers close as a tool" {
		y.offer(tools, "close_session")
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tools }, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
	mux.HandleFunc("POST /seed_session", y.route((*toy).seed))
	mux.HandleFunc("POST /add", y.add)
	mux.HandleFunc("POST /verify", y.route((*toy).verify))
	mux.HandleFunc("POST /close_session", y.close)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	y.url = server.URL
	return y
}

func (y *toy) offer(tools *mcp.Server, name string) {
	mcp.AddTool(tools, &mcp.Tool{Name: name}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{}, nil, nil
	})
}

// sleep moves the toy's clock.
func (y *toy) sleep(_ context.Context, d time.Duration) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.now = y.now.Add(d)
	return nil
}

// holdTool has the next tool call go on until it is let go.
func (y *toy) holdTool() (begun <-chan struct{}, letGo func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	hold := &toyHold{begun: make(chan struct{}), goOn: make(chan struct{})}
	y.hold = hold
	return hold.begun, func() { close(hold.goOn) }
}

type toyHold struct{ begun, goOn chan struct{} }

func (y *toy) open() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.sessions) + len(y.runs)
}

func (y *toy) releases() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.released
}

func (y *toy) failNextRelease() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.failRelease = true
}

type toyBody struct {
	ID      string          `json:"resources_session_id"`
	Episode json.RawMessage `json:"episode_id"`
	Task    json.RawMessage `json:"task_id"`
	Data    json.RawMessage `json:"task_data"`
}

func (y *toy) begin(r *http.Request) (body toyBody, cookie string) {
	y.requests++
	if y.atRequest != nil {
		y.atRequest(y.requests)
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	if c, err := r.Cookie("toy"); err == nil {
		cookie = c.Value
	}
	return body, cookie
}

func (y *toy) route(answer func(*toy, http.ResponseWriter, toyBody, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		y.mu.Lock()
		defer y.mu.Unlock()
		body, cookie := y.begin(r)
		answer(y, w, body, cookie)
	}
}

func say(w http.ResponseWriter, status int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, format, args...)
}

func refuseWith(w http.ResponseWriter, status int, kind string) {
	say(w, status, `{"detail":"no","failure_kind":%q}`, kind)
}

func (y *toy) seed(w http.ResponseWriter, body toyBody, cookie string) {
	if body.ID == "" && (body.Episode == nil || body.Task == nil) {
		y.agentRun(w, cookie)
		return
	}
	if y.broken == "sets the cookie before refusing" {
		http.SetCookie(w, &http.Cookie{Name: "toy", Value: "early"})
	}
	episode, task, payload := string(body.Episode), string(body.Task), string(body.Data)
	if status := y.refusal(body.ID, episode, task, payload); status != 0 {
		if status == 409 && y.broken == "answers every conflicting seed with 500" {
			status = 500
		}
		y.afterRefusal(w, body)
		say(w, status, `{"detail":"refused"}`)
		return
	}
	held := y.sessions[body.ID]
	switch {
	case held == nil:
		y.made++
		held = &toySession{episode: episode, task: task, payload: payload, cookie: fmt.Sprintf("secret-%06d", y.made), born: y.now, used: y.now}
		y.sessions[body.ID] = held
		y.most = max(y.most, len(y.sessions))
		delete(y.fences, body.ID)
	case y.broken == "resets a session that is seeded again",
		y.broken == "takes one tool call a session, and resets it when it is seeded again":
		held.count = 0
	}
	held.seeds++
	if y.broken != "sets no cookie" && (y.broken != "gives no cookie for a repeated seed" || held.seeds == 1) {
		w.Header().Del("Set-Cookie")
		http.SetCookie(w, &http.Cookie{Name: "toy", Value: held.cookie})
	}
	id := body.ID
	if y.broken == "echoes another id" {
		id = "another"
	}
	say(w, 200, `{"resources_session_id":%q,"resources_tools":{"server_name":"toy","headers":{"X-Toy":"token-%s"}}}`, id, held.cookie)
}

// afterRefusal is what a refused seed does that it should not.
func (y *toy) afterRefusal(w http.ResponseWriter, body toyBody) {
	held, fence := y.sessions[body.ID], y.fence(body.ID)
	early := &http.Cookie{Name: "toy", Value: "early"}
	switch {
	case held != nil && y.broken == "forgets a session when it refuses a seed":
		delete(y.sessions, body.ID)
	case held != nil && y.broken == "binds an id to a seed that it refuses":
		held.episode, held.task, held.payload = string(body.Episode), string(body.Task), string(body.Data)
	case held != nil && held.payload != string(body.Data) && y.broken == "sets a cookie when it refuses other data",
		fence != nil && !fence.seeded && y.broken == "sets a cookie when it refuses a seed of an id never seeded":
		http.SetCookie(w, early)
	}
}

// refusal is the status that a seed is refused with, 0 when it is not.
func (y *toy) refusal(id, episode, task, payload string) int {
	if task == "" || !strings.HasPrefix(payload, "{") {
		switch y.broken {
		case "answers bad task data with 500":
			return 500
		case "binds an id whose seed it refuses":
			y.sessions[id] = &toySession{episode: episode, born: y.now, used: y.now}
		}
		return 422
	}
	if fence := y.fence(id); fence != nil {
		switch {
		case fence.seeded && y.broken == "lets a seed through after the close",
			fence.episode != episode && y.broken == "lets a seed for another episode through after the close",
			fence.alone && y.broken == "lets a seed through after a close without a cookie":
			return 0
		case y.broken == "answers a seed after the close with 500":
			return 500
		}
		return 409
	}
	held := y.sessions[id]
	if held == nil {
		return 0
	}
	if held.stuck {
		return 409
	}
	for _, conflict := range []struct{ held, sent, name string }{
		{held.episode, episode, "episode"}, {held.task, task, "task"}, {held.payload, payload, "data"},
	} {
		switch {
		case conflict.held == conflict.sent, y.broken == "takes a seed of another "+conflict.name:
		case y.broken == "answers a seed of another "+conflict.name+" with 500":
			return 500
		default:
			return 409
		}
	}
	if y.broken == "refuses a repeated seed" && held.payload == payload && held.episode == episode && held.task == task {
		return 409
	}
	return 0
}

func (y *toy) agentRun(w http.ResponseWriter, cookie string) {
	if y.broken == "takes no agent-run seeds" {
		say(w, 422, `{"detail":"no"}`)
		return
	}
	if held, _ := y.find(cookie); held != nil && y.broken != "takes an agent-run seed in an episode's session" {
		say(w, 409, `{"detail":"no"}`)
		return
	}
	y.made++
	run := fmt.Sprintf("run-%06d", y.made)
	y.runs[run] = true
	http.SetCookie(w, &http.Cookie{Name: "toy", Value: run})
	if y.broken == "answers an agent-run seed with a list" {
		say(w, 200, `[]`)
		return
	}
	say(w, 200, `{}`)
}

// fence is the record of a closed id.
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

// find is the session of a cookie; when there is none, why it is gone.
func (y *toy) find(cookie string) (held *toySession, kind string) {
	for id, s := range y.sessions {
		if s.cookie != cookie || cookie == "" {
			continue
		}
		if y.expired(s) {
			y.release(id, s, y.words("session_expired", "expires as lost", "session_lost"))
			return nil, y.words("session_expired", "expires as lost", "session_lost")
		}
		return s, ""
	}
	for _, fence := range y.fences {
		if fence.cookie == cookie && fence.kind != "" {
			return nil, fence.kind
		}
	}
	return nil, "session_lost"
}

func (y *toy) words(usual, broken, instead string) string {
	if y.broken == broken {
		return instead
	}
	return usual
}

func (y *toy) expired(s *toySession) bool {
	old := y.now.Sub(s.born) >= max(toyLifetime, y.lives) && y.broken != "lives for ever"
	idle := y.now.Sub(s.used) >= toyIdle && y.broken != "never gets idle"
	if s.busy > 0 {
		idle = false
	}
	return old || idle
}

func (y *toy) add(w http.ResponseWriter, r *http.Request) {
	y.mu.Lock()
	defer y.mu.Unlock()
	_, cookie := y.begin(r)
	held, kind := y.find(cookie)
	if held == nil {
		switch y.broken {
		case "answers the tool of a lost session with 200":
			say(w, 200, `{"error":"no session"}`)
		case "answers the tool without a session from a fresh one":
			say(w, 200, `{"count":1}`)
		case "answers the tool of a lost session with 500":
			say(w, 500, `{"detail":"oops"}`)
		case "names no kind for the tool of a lost session":
			say(w, 404, `{"detail":"what session?"}`)
		default:
			refuseWith(w, 404, kind)
		}
		return
	}
	if y.broken == "has no tools" {
		say(w, 500, `{"detail":"out of order"}`)
		return
	}
	if strings.HasPrefix(y.broken, "takes one tool call a session") && held.count > 0 {
		say(w, 409, `{"detail":"it was called before"}`)
		return
	}
	held.busy++
	if hold := y.hold; hold != nil {
		y.hold = nil
		y.wait(r, hold)
	}
	held.busy--
	y.now = y.now.Add(y.toolTakes)
	if y.broken != "expires a busy session" {
		held.used = y.now
	}
	held.count++
	say(w, 200, `{"count":%d}`, held.count)
}

// wait has a tool call go on until it is let go. y.mu is held, but not meanwhile.
func (y *toy) wait(r *http.Request, hold *toyHold) {
	close(hold.begun)
	y.mu.Unlock()
	defer y.mu.Lock()
	select {
	case <-hold.goOn:
	case <-r.Context().Done():
	}
}

func (y *toy) verify(w http.ResponseWriter, _ toyBody, cookie string) {
	if y.runs[cookie] {
		delete(y.runs, cookie)
		say(w, 200, `{"reward":0}`)
		return
	}
	held, kind := y.find(cookie)
	if held == nil {
		switch y.broken {
		case "scores a lost session 0":
			say(w, 200, `{"reward":0}`)
		case "answers the verify of a lost session with 404":
			refuseWith(w, 404, kind)
		case "gives no reason for a lost session":
			say(w, 200, `{"reward":0,"mask_sample":true,"failure_kind":%q}`, kind)
		default:
			say(w, 200, `{"reward":0.0,"mask_sample":%t,"failure_kind":%q,"failure_reason":"gone"}`, y.masks(cookie), kind)
		}
		return
	}
	held.used = y.now
	held.verifies++
	reward := float64(held.count)
	if y.broken == "changes its mind" {
		reward += float64(held.verifies)
	}
	if y.broken == "gives no reward" {
		say(w, 200, `{"mask_sample":false}`)
		return
	}
	say(w, 200, `{"reward":%v,"mask_sample":null}`, reward)
}

func (y *toy) close(w http.ResponseWriter, r *http.Request) {
	y.mu.Lock()
	defer y.mu.Unlock()
	body, cookie := y.begin(r)
	episode := string(body.Episode)
	if fence := y.fence(body.ID); fence != nil {
		y.closeAgain(w, body.ID, episode, cookie, fence)
		return
	}
	held := y.sessions[body.ID]
	if held != nil && y.atClose != nil {
		y.atClose()
	}
	switch {
	case held == nil:
		y.closeUnknown(w, body.ID, episode)
	case y.broken == "closes nothing":
		say(w, 403, `{"detail":"never"}`)
	case held.episode != episode && y.broken != "takes a close for another episode":
		if y.broken == "forgets a session when it refuses its close" {
			delete(y.sessions, body.ID)
		}
		say(w, 409, `{"detail":"another episode's"}`)
	case held.cookie == cookie && y.broken == "takes no close with a cookie":
		say(w, 400, `{"detail":"no cookies"}`)
	case held.cookie != cookie && y.broken == "releases by the cookie only":
		say(w, 200, `{"resources_session_id":%q}`, body.ID)
	case held.cookie != cookie && y.broken == "refuses a close without the cookie":
		say(w, 401, `{"detail":"who are you?"}`)
	case y.failRelease, y.failFirst > 0 && !held.failed:
		y.failRelease, held.failed = false, true
		y.failFirst--
		if y.broken == "forgets the state when a release fails" {
			delete(y.sessions, body.ID)
		}
		held.stuck = y.broken == "fences an id whose release fails"
		refuseWith(w, 503, y.words("session_release_failed", "names no kind for a failed release", ""))
	default:
		y.meet(held)
		y.release(body.ID, held, "session_lost")
		y.fences[body.ID].alone = cookie == ""
		if y.broken == "fences no id that was seeded" {
			delete(y.fences, body.ID)
		}
		say(w, 200, `{"resources_session_id":%q}`, body.ID)
	}
}

// masks is false for the second verify of a lost session, where that is what is broken.
func (y *toy) masks(cookie string) bool {
	for _, fence := range y.fences {
		if fence.cookie == cookie && y.broken == "masks a lost session once" {
			again := fence.masked
			fence.masked = true
			return !again
		}
	}
	return true
}

// meet has closers of one session meet in the release, where that is what is
// broken.
func (y *toy) meet(held *toySession) {
	if y.broken != "releases once for each concurrent closer" {
		return
	}
	held.closing++
	if held.closing == 1 {
		held.second = make(chan struct{})
	}
	if held.closing == 2 {
		close(held.second)
	}
	second := held.second
	y.mu.Unlock()
	defer y.mu.Lock()
	select {
	case <-second:
	case <-time.After(50 * time.Millisecond):
	}
}

func (y *toy) closeAgain(w http.ResponseWriter, id, episode, cookie string, fence *toyFence) {
	takes := y.broken == "takes a close of a closed id for another episode" && fence.seeded ||
		y.broken == "takes a close of an id never seeded for another episode" && !fence.seeded
	switch {
	case fence.seeded && cookie == "" && y.broken == "wants the cookie for a repeated close":
		say(w, 401, `{"detail":"who are you?"}`)
		return
	case fence.episode != episode && !takes:
		say(w, 409, `{"detail":"another episode's"}`)
		return
	case y.broken == "answers a repeated close with 404":
		say(w, 404, `{"detail":"closed"}`)
		return
	case y.broken == "answers a repeated close otherwise":
		say(w, 200, `{"resources_session_id":%q,"closed":true}`, id)
		return
	case y.broken == "renews the fence", cookie == "" && y.broken == "renews the fence for a close without a cookie":
		fence.ends = y.now.Add(toyWindow)
	case y.broken == "releases again for a repeated close":
		y.released++
	}
	say(w, 200, `{"resources_session_id":%q}`, id)
}

func (y *toy) closeUnknown(w http.ResponseWriter, id, episode string) {
	switch y.broken {
	case "answers the close of an unknown id with 404":
		say(w, 404, `{"detail":"unknown"}`)
		return
	case "does not fence unknown ids":
	default:
		y.fences[id] = &toyFence{episode: episode, ends: y.now.Add(toyWindow)}
	}
	switch y.broken {
	case "tells unknown ids from closed ones":
		say(w, 200, `{"resources_session_id":%q,"known":false}`, id)
	case "answers a repeated close otherwise":
		say(w, 200, `{"resources_session_id":%q,"closed":true}`, id)
	default:
		say(w, 200, `{"resources_session_id":%q}`, id)
	}
}

func (y *toy) release(id string, held *toySession, kind string) {
	y.released++
	delete(y.sessions, id)
	window := toyWindow
	if y.broken == "forgets fences early" {
		window /= 2
	}
	y.fences[id] = &toyFence{episode: held.episode, cookie: held.cookie, kind: kind, ends: y.now.Add(window), seeded: true}
}
