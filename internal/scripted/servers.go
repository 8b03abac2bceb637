package scripted

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// The names of the two servers, as in [Call].
const (
	ResourcesServer = "resources"
	AgentServer     = "agent"
)

// Servers are the two servers. They are made by [New] and safe for concurrent use.
type Servers struct {
	ResourcesURL string // http://127.0.0.1:PORT
	AgentURL     string

	mu       sync.Mutex // held for bookkeeping only, never while a call is answered
	changed  sync.Cond  // something below has changed
	behind   map[string]http.Handler
	script   Script
	used     map[Route]int
	log      []*entry
	read     map[Route][]*entry // those of log whose request has been read, in that order
	plays    int
	arrived  int // calls since the start, whatever was played
	inFlight int
}

// New starts both servers, without a script; they stop when the test ends. Calls
// that are still held then end without a reply.
func New(t testing.TB) *Servers {
	t.Helper()
	s := &Servers{behind: map[string]http.Handler{}}
	s.changed.L = &s.mu
	s.Play(nil)
	running, stop := context.WithCancelCause(context.Background())
	resources, agent := s.start(running, ResourcesServer), s.start(running, AgentServer)
	s.ResourcesURL, s.AgentURL = resources.URL, agent.URL
	t.Cleanup(func() {
		stop(errStopped) // first, for closing waits for the calls in flight
		resources.Close()
		agent.Close()
	})
	return s
}

// errStopped is the cause of a call's context when the servers stop.
var errStopped = errors.New("the servers stop")

func (s *Servers) start(running context.Context, name string) *httptest.Server {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r, name)
	}))
	server.Config.BaseContext = func(net.Listener) context.Context { return running }
	server.Start()
	return server
}

// Play sets the script and clears the log. Calls that are in flight end as the
// script before has it, and are no longer in the log. Play panics when the script
// is not valid.
func (s *Servers) Play(script Script) {
	if err := script.Validate(); err != nil {
		panic("scripted: " + err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
	s.used = map[Route]int{}
	s.log = nil
	s.read = map[Route][]*entry{}
	s.plays++
	s.changed.Broadcast()
}

// Front puts the servers in front of others that keep the contract: an action
// without Status, JSON and Raw, or no action at all, leaves the reply to the
// handler. It runs as soon as the request has been read, and what the action says
// then happens to its reply: with [AfterRead] the work is done and the reply is
// lost. Nil: the default replies again.
func (s *Servers) Front(resources, agent http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = map[string]http.Handler{ResourcesServer: resources, AgentServer: agent}
}

// routeOf tells a call by its path, which may have a prefix.
func routeOf(server, method, path string) Route {
	if method != http.MethodPost {
		return Other
	}
	for _, known := range paths {
		if known.server == server && strings.HasSuffix(path, known.path) {
			return known.route
		}
	}
	return Other
}

var paths = []struct {
	server, path string
	route        Route
}{
	{ResourcesServer, "/seed_session", Seed},
	{ResourcesServer, "/verify", Verify},
	{ResourcesServer, "/close_session", CloseSession},
	{ResourcesServer, "/aggregate_metrics", Metrics},
	{AgentServer, "/v1/agent_sessions", AgentSeed},
	{AgentServer, "/v1/responses", Responses},
	{AgentServer, "/v1/agent_sessions/close", AgentClose},
}
