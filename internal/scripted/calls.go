package scripted

import (
	"context"
	"net/http"
	"time"
)

// A Call is what a server was asked and what came of it.
type Call struct {
	Server string // ResourcesServer or AgentServer
	Route  Route
	Method string
	Path   string // as it came, without the query
	Query  string
	Header http.Header
	Body   []byte // what was read of it

	Arrived time.Time // the headers were there
	Ended   time.Time // zero while in flight

	// Reply is what became of the reply: its status ("200") when it was sent,
	// "drop:" and the [Drop] when the script lost it, "not sent" when there was
	// nobody to send it to any more, "" while in flight.
	Reply string
	// Answer is the body of the reply, whether it was sent or not.
	Answer []byte
	// CallerGone says that the caller went away before it had the whole reply.
	CallerGone bool
}

// An entry is a call in the log; its fields are guarded by the servers' lock.
type entry struct {
	Call
	play int // of which script
}

// Calls returns the calls since [Servers.Play], in order of arrival.
func (s *Servers) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := make([]Call, len(s.log))
	for i, e := range s.log {
		calls[i] = e.Call
	}
	return calls
}

// Routes returns the routes of the calls since [Servers.Play], in order of
// arrival.
func (s *Servers) Routes() []Route {
	s.mu.Lock()
	defer s.mu.Unlock()
	routes := make([]Route, len(s.log))
	for i, e := range s.log {
		routes[i] = e.Route
	}
	return routes
}

// Wait returns the n-th call on a route since [Servers.Play], counted from 1, as
// soon as its request has been read (with [BeforeRead]: as soon as it has come).
// The error is the cause of ctx when that ends first.
func (s *Servers) Wait(ctx context.Context, route Route, n int) (Call, error) {
	var call Call
	err := s.until(ctx, func() bool {
		if len(s.read[route]) < n {
			return false
		}
		call = s.read[route][n-1].Call
		return true
	})
	return call, err
}

// Idle waits until no call has been in flight for that long; 0: until none is,
// at this moment. The error is the cause of ctx when that ends first.
func (s *Servers) Idle(ctx context.Context, quiet time.Duration) error {
	for {
		var arrived int
		err := s.until(ctx, func() bool {
			arrived = s.arrived
			return s.inFlight == 0
		})
		if err != nil || quiet == 0 {
			return err
		}
		calm, cancel := context.WithTimeout(ctx, quiet)
		another := s.until(calm, func() bool { return s.arrived != arrived }) == nil
		cancel()
		if !another {
			return context.Cause(ctx)
		}
	}
}

// until waits for a condition, which it looks at under the lock.
func (s *Servers) until(ctx context.Context, condition func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		// Under the lock, or the signal could pass between the look at ctx
		// and the wait below.
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !condition() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.changed.Wait()
	}
	return nil
}

// arrive enters a call in the log and takes its action from the script.
func (s *Servers) arrive(server string, r *http.Request) (*entry, Action) {
	e := &entry{Call: Call{
		Server:  server,
		Route:   routeOf(server, r.Method, r.URL.Path),
		Method:  r.Method,
		Path:    r.URL.EscapedPath(),
		Query:   r.URL.RawQuery,
		Header:  r.Header.Clone(),
		Arrived: time.Now(),
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.play = s.plays
	s.log = append(s.log, e)
	s.arrived++
	s.inFlight++
	s.changed.Broadcast()
	actions := s.script[e.Route]
	if len(actions) == 0 {
		return e, Action{}
	}
	at := min(s.used[e.Route], len(actions)-1)
	s.used[e.Route]++
	return e, actions[at]
}

// hasRead notes that the request has been read and returns the call as it is.
func (s *Servers) hasRead(e *entry, body []byte) Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Body = body
	if e.play == s.plays {
		s.read[e.Route] = append(s.read[e.Route], e)
		s.changed.Broadcast()
	}
	return e.Call
}

func (s *Servers) willAnswer(e *entry, answer []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Answer = answer
}

func (s *Servers) end(e *entry, outcome outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Reply, e.CallerGone = outcome.reply, outcome.callerGone
	e.Ended = time.Now()
	s.inFlight--
	s.changed.Broadcast()
}

func (s *Servers) handlerBehind(server string) http.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.behind[server]
}
