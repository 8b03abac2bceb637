package episode_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"example.com/turn/episode/episodetest"
	"example.com/turn/protocol"
)

// A program is what a driver is asked to do, and what goes wrong meanwhile. It is drawn
// so that what is likely, and what it shrinks to, is one episode with little going wrong.
type program struct {
	Episodes int
	Base     int64  // the attempt that each request asks for
	Caller   string // "run", "redispatch" or "all"
	InFlight int    // of all
	Attempts int

	Concurrency  int // 0: no limit
	QueueTimeout time.Duration

	// Each limit is none, or short and then there to run out.
	EpisodeTimeout, SeedTimeout, AgentTimeout, VerifyTimeout, CleanupTimeout time.Duration

	Transports    []protocol.ToolTransport
	OffersMCP     bool // the resources server does
	TokenCapture  bool
	Observability bool
	Journal       bool
	AnotherDriver bool // closes what was left, and not the one that left it

	FailReleases int // how many releases fail
	Mishaps      []mishap
	Events       []intervention
}

// A place is a call on its way to a server: the nth on its route, or each of them.
type place struct {
	At    side
	Route episodetest.Route
	Nth   int // 0: each
}

func (p place) is(at side, route episodetest.Route, nth int) bool {
	return p.At == at && p.Route == route && (p.Nth == 0 || p.Nth == nth)
}

func (p place) String() string {
	if p.Nth == 0 {
		return fmt.Sprintf("each %s", p.Route)
	}
	return fmt.Sprintf("%s %d", p.Route, p.Nth)
}

// A mishap is a fault at a place.
type mishap struct {
	place
	Fault episodetest.Fault
}

func (m mishap) String() string {
	text := fmt.Sprintf("%s: %s", m.place, m.Fault)
	if m.Fault.Kind == episodetest.Answer {
		text += fmt.Sprintf(" %d %s", m.Fault.Status, m.Fault.Body)
	}
	return text
}

// An intervention happens when a call has come to its proxy.
type intervention struct {
	place
	What    string
	Episode int           // whose caller gives it up
	Back    time.Duration // when a server that is away comes back; 0: when all is over
}

const (
	givesUp       = "a caller gives up"
	drains        = "the driver drains"
	goesAway      = "the server goes away"
	restartsKept  = "the resources server starts again with its state"
	restartsEmpty = "the resources server starts again without its state"
)

func (p program) has(what ...string) bool {
	return slices.ContainsFunc(p.Events, func(e intervention) bool { return slices.Contains(what, e.What) })
}

func (p program) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d episodes by %s (%d in flight), %d attempts from %d; admission %d, %s\n",
		p.Episodes, p.Caller, p.InFlight, p.Attempts, p.Base, p.Concurrency, p.QueueTimeout)
	fmt.Fprintf(&text, "limits: episode %s, seed %s, agent %s, verify %s, cleanup %s\n",
		p.EpisodeTimeout, p.SeedTimeout, p.AgentTimeout, p.VerifyTimeout, p.CleanupTimeout)
	fmt.Fprintf(&text, "tools by %v, MCP offered %t; tokens %t, observability %t; journal %t, closed by another driver %t\n",
		p.Transports, p.OffersMCP, p.TokenCapture, p.Observability, p.Journal, p.AnotherDriver)
	fmt.Fprintf(&text, "%d releases fail\n", p.FailReleases)
	for _, m := range p.Mishaps {
		fmt.Fprintln(&text, m)
	}
	for _, e := range p.Events {
		fmt.Fprintf(&text, "%s: %s (episode %d, back after %s)\n", e.place, e.What, e.Episode, e.Back)
	}
	return text.String()
}

const (
	short   = 40 * time.Millisecond
	forever = time.Hour // of a delay: the server hangs
)

func drawProgram(t *rapid.T) program {
	p := program{
		Episodes:      rapid.SampledFrom([]int{1, 1, 1, 1, 1, 1, 1, 2, 3, 5, 12}).Draw(t, "episodes"),
		Base:          rapid.SampledFrom([]int64{0, 0, 0, 2}).Draw(t, "first attempt"),
		Caller:        rapid.SampledFrom([]string{"run", "redispatch", "redispatch", "all"}).Draw(t, "caller"),
		InFlight:      rapid.IntRange(1, 12).Draw(t, "in flight"),
		Attempts:      1,
		Transports:    rapid.SampledFrom([][]protocol.ToolTransport{nil, {protocol.DirectHTTP}, {protocol.DirectHTTP}, {protocol.MCP}, {protocol.MCP, protocol.DirectHTTP}}).Draw(t, "transports"),
		OffersMCP:     rapid.IntRange(0, 7).Draw(t, "no MCP") < 7,
		TokenCapture:  rapid.Bool().Draw(t, "tokens"),
		Observability: rapid.Bool().Draw(t, "observability"),
		Journal:       rapid.Bool().Draw(t, "journal"),
		AnotherDriver: rapid.Bool().Draw(t, "another driver"),
		FailReleases:  rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 4, 5}).Draw(t, "failing releases"),
	}
	if p.Caller != "run" {
		p.Attempts = rapid.IntRange(1, 3).Draw(t, "attempts")
	}
	p.Concurrency = rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "admission limit")
	if p.Concurrency > 0 {
		p.QueueTimeout = rapid.SampledFrom([]time.Duration{time.Minute, time.Minute, short}).Draw(t, "queue timeout")
	}
	for _, limit := range []*time.Duration{&p.EpisodeTimeout, &p.SeedTimeout, &p.AgentTimeout, &p.VerifyTimeout, &p.CleanupTimeout} {
		*limit = rapid.SampledFrom([]time.Duration{0, 0, 0, 0, 0, short}).Draw(t, "limit")
	}
	for range rapid.SampledFrom([]int{0, 1, 1, 1, 2, 2, 3, 5}).Draw(t, "mishaps") {
		p.Mishaps = append(p.Mishaps, p.drawMishap(t))
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, 1, 2}).Draw(t, "events") {
		p.Events = append(p.Events, p.drawEvent(t))
	}
	return p
}

var placesOf = []place{
	{At: resourcesSide, Route: episodetest.Seed},
	{At: agentSide, Route: episodetest.AgentSeed},
	{At: agentSide, Route: episodetest.Responses},
	{At: agentSide, Route: episodetest.AgentClose},
	{At: resourcesSide, Route: episodetest.Verify},
	{At: resourcesSide, Route: episodetest.CloseSession},
}

// lastFirst favours what comes late in an episode or a call, for rapid draws the first of
// a list more often, and what goes wrong early keeps the rest from being reached.
func lastFirst[E any](list []E) []E {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

var tools = place{At: resourcesSide, Route: episodetest.Other}

func drawPlace(t *rapid.T, among []place) place {
	at := rapid.SampledFrom(among).Draw(t, "route")
	at.Nth = rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3, 4, 0, 0}).Draw(t, "nth")
	return at
}

func (p *program) drawMishap(t *rapid.T) mishap {
	m := mishap{place: drawPlace(t, append(lastFirst(placesOf), tools))}
	m.Fault.Kind = rapid.SampledFrom(lastFirst(episodetest.Kinds())).Draw(t, "kind")
	switch m.Fault.Kind {
	case episodetest.CutRequest:
		m.Fault.Offset = rapid.Int64Range(0, 150).Draw(t, "offset")
	case episodetest.DropInReply, episodetest.ResetInReply, episodetest.ShortenReply, episodetest.GarbleReply:
		m.Fault.Offset = rapid.Int64Range(0, 700).Draw(t, "offset")
	case episodetest.DelayBeforeForward, episodetest.DelayBeforeReply, episodetest.DelayInReply:
		m.Fault.Offset = rapid.Int64Range(0, 300).Draw(t, "offset")
		m.Fault.Delay = rapid.SampledFrom([]time.Duration{forever, time.Millisecond, 5 * time.Millisecond}).Draw(t, "delay")
		if m.Fault.Delay == forever {
			limits := p.limitsOf(m.Route)
			*limits[rapid.IntRange(0, len(limits)-1).Draw(t, "limit")] = short
		}
		if m.Fault.Kind != episodetest.DelayInReply {
			m.Fault.Offset = 0
		}
	case episodetest.Answer:
		m.Fault.Status = rapid.SampledFrom([]int{500, 503, 502, 504, 429, 408, 425, 400, 404, 409, 422, 301, 307, 200, 200, 204}).Draw(t, "status")
		m.Fault.Header = http.Header{"Content-Type": {"application/json"}}
		m.Fault.Body = []byte(rapid.SampledFrom([]string{
			``, `{}`, `[]`, `not json`, `"no"`, `{"detail":"no"}`,
			`{"detail":"no","failure_kind":"provider_unavailable"}`,
			`{"detail":{"reason":"no","failure_kind":"session_lost"}}`,
			`{"error":{"message":"no","failure_kind":"judge:odd"}}`,
			`{"detail":"no","failure_kind":"Not a kind"}`,
			`{"resources_session_id":"resources-session-of-another","agent_session_id":"agent-session-of-another","output":{},"reward":"much"}`,
		}).Draw(t, "body"))
		if m.Fault.Status == http.StatusNoContent {
			m.Fault.Body = nil
		}
	}
	return m
}

// limitsOf are the limits that end a call on the route; there is at least one where a
// server hangs.
func (p *program) limitsOf(route episodetest.Route) []*time.Duration {
	switch route {
	case episodetest.Seed, episodetest.AgentSeed:
		return []*time.Duration{&p.SeedTimeout, &p.EpisodeTimeout}
	case episodetest.Responses, episodetest.Other:
		return []*time.Duration{&p.AgentTimeout, &p.EpisodeTimeout}
	case episodetest.Verify:
		return []*time.Duration{&p.VerifyTimeout, &p.EpisodeTimeout}
	}
	return []*time.Duration{&p.CleanupTimeout}
}

func (p *program) drawEvent(t *rapid.T) intervention {
	e := intervention{
		place: drawPlace(t, lastFirst(placesOf)),
		What:  rapid.SampledFrom([]string{givesUp, givesUp, drains, goesAway, goesAway, restartsKept, restartsEmpty}).Draw(t, "event"),
	}
	e.Nth = max(e.Nth, 1)
	switch e.What {
	case givesUp:
		e.Episode = rapid.IntRange(0, p.Episodes-1).Draw(t, "whose")
	case goesAway:
		e.Back = rapid.SampledFrom([]time.Duration{0, time.Millisecond, 10 * time.Millisecond}).Draw(t, "back")
	}
	return e
}
