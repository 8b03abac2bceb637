package conformance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"example.com/turn/internal/scripted"
)

// Record plays a case against the environment server at an address (host:port)
// that has the scripted servers behind it, and returns what happened. It waits
// until the servers are at rest; a call that the case wants and that does not
// come within patience is missing from the trace.
func Record(ctx context.Context, c Case, address string, servers *scripted.Servers) (Trace, error) {
	servers.Play(c.Script)
	p := player{c: c, address: address, servers: servers, begun: time.Now()}
	replies := make([]Reply, len(c.Requests))
	var sending sync.WaitGroup
	for i, request := range c.Requests {
		sending.Go(func() { replies[i] = p.send(ctx, request) })
	}
	sending.Wait()
	elapsed := time.Since(p.begun)
	if err := p.settle(ctx); err != nil {
		return Trace{}, fmt.Errorf("calls are still in flight: %w", err)
	}
	return Trace{
		Calls:   recorded(servers.Calls()),
		Replies: replies,
		Elapsed: elapsed,
		Addresses: map[string]string{
			address: "ENV_ADDR",
			strings.TrimPrefix(servers.ResourcesURL, "http://"): "RES_ADDR",
			strings.TrimPrefix(servers.AgentURL, "http://"):     "AGENT_ADDR",
		},
	}, nil
}

const (
	// patience is how long anything may take that a case has no time for.
	patience = 20 * time.Second
	// quiet is how long nothing may have come when a case says that calls may
	// follow the last reply.
	quiet = 150 * time.Millisecond
)

type player struct {
	c       Case
	address string
	servers *scripted.Servers
	begun   time.Time
}

// send sends one request and waits for its reply, or leaves when the case says so.
func (p player) send(ctx context.Context, request Request) Reply {
	if request.StartMs > 0 {
		p.sleepUntil(ctx, p.begun.Add(milliseconds(request.StartMs)))
	}
	ctx, leave := context.WithTimeout(ctx, 3*patience)
	defer leave()
	if request.DisconnectAfterMs != nil {
		at := time.Now().Add(milliseconds(*request.DisconnectAfterMs))
		go func() {
			p.sleepUntil(ctx, at)
			leave()
		}()
	}
	status, body, err := p.post(ctx, request)
	return Reply{Status: status, Body: body, Err: err, Disconnected: err != nil && request.DisconnectAfterMs != nil}
}

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// sleepUntil waits for a point in a case's time. Such a point is within a reply
// that the script holds back; on a slow machine it comes when that does.
func (p player) sleepUntil(ctx context.Context, at time.Time) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for route, actions := range p.c.Script {
		if len(actions) > 0 && actions[0].DelayMs > 0 {
			_, _ = p.servers.Wait(ctx, route, 1) // missing calls are the checker's business
		}
	}
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (p player) post(ctx context.Context, request Request) (status int, body []byte, err error) {
	text := request.text()
	outgoing, err := http.NewRequestWithContext(ctx, request.method(), "http://"+p.address+request.path(), bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	outgoing.Header.Set("Content-Type", request.contentType())
	// A connection of its own, which ends with the request.
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(outgoing)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// settle waits until the servers behind are at rest: when a caller has left, not
// before the calls that the case wants have come.
func (p player) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for route, n := range p.leastCalls() {
		_, _ = p.servers.Wait(ctx, route, n)
	}
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if p.c.SettleMs > 0 {
		return p.servers.Idle(rest, quiet)
	}
	return p.servers.Idle(rest, 0)
}

// leastCalls is how many calls of each kind must still come when all replies
// have: none, unless a caller has left.
func (p player) leastCalls() map[scripted.Route]int {
	left := false
	for _, request := range p.c.Requests {
		left = left || request.DisconnectAfterMs != nil
	}
	least := map[scripted.Route]int{}
	if !left {
		return least
	}
	for _, name := range p.c.Want.Steps {
		if !strings.HasSuffix(name, "?") {
			least[routes[step(strings.TrimSuffix(name, "*"))]]++
		}
	}
	for _, call := range p.c.Want.Calls {
		least[routes[stepOf(call.Path)]]++
	}
	return least
}

var routes = map[step]scripted.Route{
	stepSeed:      scripted.Seed,
	stepOpen:      scripted.AgentSeed,
	stepResponses: scripted.Responses,
	stepAgentEnd:  scripted.AgentClose,
	stepVerify:    scripted.Verify,
	stepClose:     scripted.CloseSession,
	stepAggregate: scripted.Metrics,
}

// recorded are the calls of a log, without looks at a server's health.
func recorded(log []scripted.Call) []Call {
	var calls []Call
	for _, call := range log {
		if call.Method == http.MethodGet {
			continue
		}
		calls = append(calls, Call{
			Server:  call.Server,
			Method:  call.Method,
			Path:    call.Path,
			Cookies: call.Header.Values("Cookie"),
			Body:    call.Body,
			Unread:  call.Reply == "drop:"+string(scripted.BeforeRead),
			Reply:   call.Reply,
			Answer:  call.Answer,
		})
	}
	return calls
}
