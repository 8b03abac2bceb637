package scripted

import (
	"encoding/json"
	"fmt"
)

// A Script is the replies of each route in order; the last of a route repeats. A
// route that is not in it, or has no actions, gives its default reply.
type Script map[Route][]Action

// A Route is a call that the two servers know, under whatever prefix it came.
type Route string

// The routes of the resources server, then those of the agent server.
const (
	Seed         Route = "seed"
	Verify       Route = "verify"
	CloseSession Route = "close_session"
	Metrics      Route = "resources_metrics"

	AgentSeed  Route = "agent_seed"
	Responses  Route = "responses"
	AgentClose Route = "agent_close"

	// Other is everything else: a tool, a health check, a path by mistake.
	Other Route = "other"
)

// An Action is one reply. The zero value is the default reply of its route.
//
// In JSON and Raw, {{id}} stands for the session id in the request, "{{params}}"
// and "{{response}}" (quotes included) for its responses_create_params and its
// response, and {{repeat}} for RepeatText written Repeat times.
type Action struct {
	Status      int             `json:"status"` // 0: 200
	JSON        json.RawMessage `json:"json"`   // body
	Raw         *string         `json:"raw"`    // body that need not be JSON; wins over JSON
	Repeat      int             `json:"repeat"`
	RepeatText  string          `json:"repeat_text"`
	ContentType string          `json:"content_type"` // "": application/json
	SetCookie   []string        `json:"set_cookie"`   // nil: those of the default reply, none with a status ≥ 400; empty: none
	Headers     [][2]string     `json:"headers"`      // added to the others

	// DelayMs holds the reply back, SplitDelayMs its second half: milliseconds.
	DelayMs      int `json:"delay_ms"`
	SplitDelayMs int `json:"split_delay_ms"`
	// Drop loses the reply or a part of it. "": it is sent whole.
	Drop Drop `json:"drop"`
	// Default says that this is the default reply, for a script that would
	// otherwise say nothing at all ({}).
	Default bool `json:"default"`

	// Hang never replies: the call ends when the caller goes away or the
	// servers stop.
	Hang bool `json:"-"`
	// Gate holds the reply back until it is closed. Nil: it is open.
	Gate <-chan struct{} `json:"-"`
	// Do is called when the request has been read, before anything else is
	// done about it. Calls run at the same time, so it may as well.
	Do func(Call) `json:"-"`
	// AtDrop is called at the point of the Drop: what comes before it has been done
	// and sent, and the connection ends when AtDrop has returned. Nil: it ends at once.
	AtDrop func() `json:"-"`
}

// answersItself reports whether the action brings a reply of its own, as opposed
// to changing the one of its route.
func (a Action) answersItself() bool { return a.Status != 0 || a.JSON != nil || a.Raw != nil }

// A Drop is the point at which the connection ends.
type Drop string

// The points, in the order of a call. The connection is reset at the first of
// them and closed at the others.
const (
	BeforeRead Drop = "before_read" // the body of the request is not read
	AfterRead  Drop = "after_read"  // the request has been read (and done, see [Servers.Front])
	Garbage    Drop = "garbage"     // something is sent that is not HTTP
	MidHeaders Drop = "mid_headers" // the reply ends within its headers
	MidBody    Drop = "mid_body"    // the reply ends at half of its body
)

// Validate reports a route or a drop that there is not.
func (s Script) Validate() error {
	for route, actions := range s {
		switch route {
		case Seed, Verify, CloseSession, Metrics, AgentSeed, Responses, AgentClose, Other:
		default:
			return fmt.Errorf("a script has no route %q", route)
		}
		for i, action := range actions {
			switch action.Drop {
			case "", BeforeRead, AfterRead, Garbage, MidHeaders, MidBody:
			default:
				return fmt.Errorf("action %d of %s: there is no drop %q", i, route, action.Drop)
			}
		}
	}
	return nil
}
