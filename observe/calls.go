package observe

import (
	"context"

	"example.com/turn/failures"
)

// Calls is told of each call before it is sent for the first time. The call is made
// under the context that it returns; the span that it has, if it has one, goes with the
// call as its traceparent. The function that it returns is told, once, how the call
// ended. Neither may panic.
type Calls func(ctx context.Context, call Call) (context.Context, func(Called))

// A Call is one that begins.
type Call struct {
	Server string         // as reasons call it, such as "agent server weather_agent"
	Stage  failures.Stage // of the episode
	What   string         // one of few, whatever the episode: "POST /verify"
}

// A Called is how a call ended.
type Called struct {
	Sends    int   // how often it was sent
	Status   int   // of the reply; 0: there is none
	Sent     int64 // bytes of its body, as often as it was sent; 0 where nobody knows
	Received int64 // bytes of the reply's body
	Err      error // why there is no reply, or none that counts; nil when there is one
}

// Failed reports whether the call brought something else than a success (200 to 299).
func (c Called) Failed() bool { return c.Err != nil || c.Status < 200 || c.Status > 299 }
