package episode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"example.com/turn/episode/episodetest"
	"example.com/turn/protocol"
)

// A history is what happened in a program, in one order for all who took part: what
// the driver sent and what it got for it, and what arrived at the servers behind the
// proxies and what they did.
type history struct {
	mu       sync.Mutex
	events   []event
	sends    []*send
	cookies  map[string]string             // the session that each cookie was set for
	attempts map[string]protocol.EpisodeID // the last one of each rollout whose seed was sent
}

// An event is one line of a history. Its place there is its time.
type event struct {
	what    happened
	at      side
	send    *send  // nil: no call, or none of the driver's
	session string // "": none
	status  int    // of an answer
	note    string
}

type (
	happened string
	side     string
)

const (
	sent          happened = "sent"     // by the driver
	got           happened = "got"      // by the driver: the whole reply, or why there is none
	arrived       happened = "arrived"  // at the server behind
	answered      happened = "answered" // by the server behind, and not yet passed on
	built         happened = "built"    // the state of a session
	released      happened = "released"
	releaseFailed happened = "release failed"
	perished      happened = "perished" // with a server that was started again without its state
	restarted     happened = "restarted"
	intervened    happened = "intervened" // the program did something
)

const (
	resourcesSide side = "resources"
	agentSide     side = "agent"
)

// A send is one call as the driver's transport was given it: one try of it, on the
// driver's side of the proxy.
type send struct {
	n       int
	at      side
	route   episodetest.Route
	path    string
	cookie  string
	session string // as the call names it, by id or cookie; "" when it does not
	episode protocol.EpisodeID
	answer  json.RawMessage // what verify is asked about
	ctx     context.Context // its end says which limit ran out

	sentAt, gotAt int // places in the history; gotAt is 0 as long as it is under way
	status        int // 0: no reply began
	cookies       []string
	body          []byte
	err           error // why there is no whole reply
	cause         error // of its context, when err came
	opened        bool  // there is a body to close
	closed        bool

	answers []reaction // of the server behind: more than one when the proxy duplicated it
}

// A reaction is one answer of the server behind.
type reaction struct {
	status int
	body   []byte
}

func newHistory() *history {
	// Place 0 stands for "not yet".
	return &history{events: make([]event, 1), cookies: map[string]string{}, attempts: map[string]protocol.EpisodeID{}}
}

func (h *history) add(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// all are the events so far.
func (h *history) all() []event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events[1:])
}

// sessionCookies are the cookies that opened the session.
func (h *history) sessionCookies(session string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var cookies []string
	for cookie, of := range h.cookies {
		if of == session {
			cookies = append(cookies, cookie)
		}
	}
	return cookies
}

// A named is what a call's body says of whose it is.
type named struct {
	Resources string              `json:"resources_session_id"`
	Agent     string              `json:"agent_session_id"`
	Episode   *protocol.EpisodeID `json:"episode_id"`
	Input     string              `json:"input"` // the rollout's id: see world.request
	Params    struct {
		Input string `json:"input"`
	} `json:"responses_create_params"`
	Response json.RawMessage `json:"response"`
}

func (h *history) sent(at side, r *http.Request, body []byte) *send {
	var n named
	_ = json.Unmarshal(body, &n) // what is no call of the driver's names nothing
	s := &send{at: at, route: routeOf(r.URL.Path), path: r.URL.Path, cookie: r.Header.Get("Cookie"), answer: n.Response, ctx: r.Context()}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.n = len(h.sends) + 1
	switch s.session = n.Resources + n.Agent; {
	case n.Episode != nil:
		s.episode = *n.Episode
	default:
		s.episode = h.attempts[n.Input+n.Params.Input]
		s.session = h.cookies[s.cookie]
	}
	if s.route == episodetest.Seed {
		h.attempts[s.episode.RolloutID] = s.episode
	}
	s.sentAt = len(h.events)
	h.sends = append(h.sends, s)
	h.events = append(h.events, event{what: sent, at: at, send: s, session: s.session})
	return s
}

// got notes the end of a send, once.
func (h *history) got(s *send, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.gotAt != 0 {
		return
	}
	s.err, s.gotAt = err, len(h.events)
	note := fmt.Sprintf("%d, %d bytes", s.status, len(s.body))
	if err != nil {
		s.cause = context.Cause(s.ctx)
		note += ": " + err.Error()
	}
	h.events = append(h.events, event{what: got, at: s.at, send: s, session: s.session, note: note})
}

// byNumber is the send that a call at a server came from, nil when it is not the
// driver's but, say, the agent's call of a tool.
func (h *history) byNumber(number string) *send {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > len(h.sends) {
		return nil
	}
	return h.sends[n-1]
}

// answered notes what a server answers, and which session the cookie that it sets opens.
func (h *history) answered(at side, s *send, status int, header http.Header, body []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := event{what: answered, at: at, send: s, status: status, note: fmt.Sprintf("%d %.80s", status, body)}
	if s != nil {
		e.session = s.session
		s.answers = append(s.answers, reaction{status, body})
		if set := header.Get("Set-Cookie"); set != "" {
			cookie, _, _ := strings.Cut(set, ";")
			h.cookies[cookie] = s.session
		}
	}
	h.events = append(h.events, e)
}

// String is the whole history, a line for each event.
func (h *history) String() string {
	var text strings.Builder
	for i, e := range h.all() {
		fmt.Fprintf(&text, "%4d %-9s %-14s", i+1, e.at, e.what)
		if e.send != nil {
			fmt.Fprintf(&text, " #%d %s %s", e.send.n, e.send.route, e.send.episode)
		}
		fmt.Fprintf(&text, " %s %s\n", e.session[max(0, len(e.session)-6):], e.note)
	}
	return text.String()
}

// routeOf is the route of a call of the driver's.
func routeOf(path string) episodetest.Route {
	for _, r := range []struct {
		suffix string
		route  episodetest.Route
	}{
		{protocol.PathSeedSession, episodetest.Seed},
		{protocol.PathCloseSession, episodetest.CloseSession},
		{protocol.PathVerify, episodetest.Verify},
		{protocol.PathAgentSessions, episodetest.AgentSeed},
		{protocol.PathResponses, episodetest.Responses},
		{protocol.PathCloseAgent, episodetest.AgentClose},
	} {
		if strings.HasSuffix(path, r.suffix) {
			return r.route
		}
	}
	return episodetest.Other
}

// sendHeader tells the server behind which send a call came from, also when the proxy
// has delayed or duplicated it.
const sendHeader = "X-Send"

// A tap is the transport to one server. It notes what is sent, and what comes back as
// the driver gets to read it.
type tap struct {
	http.RoundTripper
	at      side
	history *history
}

func (t tap) RoundTrip(r *http.Request) (*http.Response, error) {
	copied, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(copied)
	if err != nil {
		return nil, err
	}
	s := t.history.sent(t.at, r, body)
	r = r.Clone(r.Context())
	r.Header.Set(sendHeader, strconv.Itoa(s.n))
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		t.history.got(s, err)
		return nil, err
	}
	s.status, s.cookies, s.opened = response.StatusCode, response.Header.Values("Set-Cookie"), true
	response.Body = &tappedBody{ReadCloser: response.Body, send: s, history: t.history}
	return response, nil
}

type tappedBody struct {
	io.ReadCloser
	send    *send
	history *history
}

func (b *tappedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.send.body = append(b.send.body, p[:n]...)
	switch {
	case err == io.EOF:
		b.history.got(b.send, nil)
	case err != nil:
		b.history.got(b.send, err)
	}
	return n, err
}

var errLeft = errors.New("the rest of the reply was not read")

func (b *tappedBody) Close() error {
	b.history.got(b.send, errLeft) // unless it has ended
	b.send.closed = true
	return b.ReadCloser.Close()
}
