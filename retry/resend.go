package retry

import (
	"math/rand/v2"
	"time"

	"example.com/turn/failures"
)

// A Rule says when one call may be sent again within its attempt.
type Rule int

const (
	// Repeatable calls are safe to repeat by contract: the same id brings the
	// same session, receipt or verdict back. Both seeds and verify are; they are
	// sent again when the connection failed, at any point up to the last byte of
	// the reply.
	Repeatable Rule = iota
	// Release is the rule of both closes: as Repeatable, and also after a
	// refusal that may pass (408, 425, 429, ≥ 500).
	Release
	// Once is the rule of call 4: it is sent again only when not a byte of it was
	// written to a connection. The agent could otherwise run twice.
	Once
)

// A Send is how one try of a call ended without a success.
type Send struct {
	Sends   int           // how many tries there have been, this one included
	Written bool          // a byte may have been written to a connection in any of them
	Status  int           // of the refusal; 0 when the connection failed
	After   time.Duration // Retry-After of the refusal
}

// Defaults of a [Resend].
const (
	DefaultResends = 3
	DefaultPause   = 500 * time.Millisecond
)

// Resend bounds the re-sends of a call. The zero value is the default.
type Resend struct {
	// Max is how often a call is sent again, so that it is sent Max+1 times in
	// all. 0: DefaultResends; negative: never.
	Max int
	// Pause is the shortest wait before a re-send; up to half of it is added at
	// random. 0: DefaultPause.
	Pause time.Duration
}

// Next says whether a call is sent again, and after what wait.
func (r Resend) Next(rule Rule, send Send) (wait time.Duration, again bool) {
	if send.Sends > r.max() || !rule.allows(send) {
		return 0, false
	}
	pause := r.Pause
	if pause == 0 {
		pause = DefaultPause
	}
	return max(pause, send.After) + rand.N(pause/2+1), true
}

func (r Resend) max() int {
	if r.Max == 0 {
		return DefaultResends
	}
	return r.Max
}

func (rule Rule) allows(send Send) bool {
	if send.Status != 0 {
		return rule == Release && failures.Transient(send.Status)
	}
	return rule != Once || !send.Written
}
