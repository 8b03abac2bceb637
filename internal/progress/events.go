package progress

import (
	"encoding/json"
	"io"
	"math"
	"sync"
	"time"

	"example.com/turn/episode"
	"example.com/turn/internal/collect"
	"example.com/turn/protocol"
)

// Events write what happens in a run for a machine: one JSON object a line. They
// are a [collect.Observer], safe for concurrent use.
//
// Each object has "event" and "time". A number that is not there is unknown: a mean
// reward where nothing is scored.
type Events struct {
	collect.Unobserved
	out   io.Writer
	meter *Meter

	mu     sync.Mutex
	broken error
}

// NewEvents makes events that are written to out; the meter tells how the run
// stands.
func NewEvents(meter *Meter, out io.Writer) *Events { return &Events{out: out, meter: meter} }

type event struct {
	Event string    `json:"event"`
	Time  time.Time `json:"time"`
}

type preparedEvent struct {
	event
	Rollouts int `json:"rollouts"`
	Tasks    int `json:"tasks"`
	Repeats  int `json:"repeats"`
}

// attemptEvent is "result", "failure" or "given_up".
type attemptEvent struct {
	event
	TaskID       protocol.TaskID `json:"task_id"`
	TaskIndex    int64           `json:"task_index"`
	RolloutIndex int64           `json:"rollout_index"`
	Attempt      int64           `json:"attempt"`
	Reward       *float64        `json:"reward,omitempty"`
	Masked       *bool           `json:"masked,omitempty"`
	Stage        string          `json:"stage,omitempty"`
	Kind         string          `json:"kind,omitempty"`
	Reason       string          `json:"reason,omitempty"`
	Terminal     *bool           `json:"terminal,omitempty"`
	Again        *bool           `json:"again,omitempty"`
	Seconds      float64         `json:"elapsed_seconds"`
}

type progressEvent struct {
	event
	countsJSON
}

type countsJSON struct {
	Owed       int            `json:"owed"`
	Done       int            `json:"done"`
	Masked     int            `json:"masked"`
	Failed     int            `json:"failed"`
	InFlight   int            `json:"in_flight"`
	Waiting    int            `json:"waiting"`
	Retries    int            `json:"retries"`
	Ending     bool           `json:"ending"`
	Scored     int            `json:"scored"`
	MeanReward *float64       `json:"mean_reward,omitempty"`
	Rate       float64        `json:"rollouts_per_second"`
	Left       *float64       `json:"eta_seconds,omitempty"`
	Kinds      map[string]int `json:"failed_by_kind,omitempty"`
}

// Prepared writes what is owed.
func (e *Events) Prepared(owed collect.Owed) {
	e.write(preparedEvent{now("prepared"), owed.Rollouts, owed.Tasks, owed.Repeats})
}

// Ended writes an attempt that has ended.
func (e *Events) Ended(r collect.Rollout, attempt episode.Attempt) {
	out := attemptEvent{
		TaskID:       r.TaskID,
		TaskIndex:    r.TaskIndex,
		RolloutIndex: r.RolloutIndex,
		Attempt:      attempt.EpisodeID.Attempt,
		Seconds:      attempt.Took.Seconds(),
	}
	switch f := attempt.Failure; {
	case f == nil:
		out.event = now("result")
		out.Reward, out.Masked = &attempt.Result.Reward, &attempt.Result.Masked
	case f.CutShort():
		out.event = now("given_up")
		out.Reason = f.Reason
	default:
		out.event = now("failure")
		out.Stage, out.Kind, out.Reason = string(f.Stage), string(f.Kind), f.Reason
		out.Terminal, out.Again = &f.Terminal, &attempt.Again
	}
	e.write(out)
}

// Progress writes how the run stands.
func (e *Events) Progress(at time.Time) {
	e.write(progressEvent{event{"progress", at}, countsAsJSON(e.meter.Counts(at))})
}

func countsAsJSON(c Counts) countsJSON {
	out := countsJSON{
		Owed: c.Owed, Done: c.Done, Masked: c.Masked, Failed: c.Failed,
		InFlight: c.InFlight, Waiting: c.Waiting, Retries: c.Retries, Ending: c.Ending,
		Scored: c.Scored, MeanReward: finite(c.Mean), Rate: c.Rate, Kinds: c.Kinds,
	}
	if c.Left >= 0 {
		out.Left = finite(c.Left.Seconds())
	}
	return out
}

// finite is a number, nil when JSON has none for it.
func finite(number float64) *float64 {
	if math.IsNaN(number) || math.IsInf(number, 0) {
		return nil
	}
	return &number
}

func now(name string) event { return event{name, time.Now()} }

// write writes one event. Once that has failed there is nobody to write to; Err
// tells of it.
func (e *Events) write(event any) {
	line, err := json.Marshal(event)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken == nil && err == nil {
		_, err = e.out.Write(append(line, '\n'))
	}
	if e.broken == nil {
		e.broken = err
	}
}

// Err is why events could not be written, nil when all were.
func (e *Events) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.broken
}

// Observers are told of the same events, one after the other.
type Observers []collect.Observer

// Prepared tells all.
func (o Observers) Prepared(owed collect.Owed) {
	for _, observer := range o {
		observer.Prepared(owed)
	}
}

// DoneBefore tells all.
func (o Observers) DoneBefore(reward float64, masked bool) {
	for _, observer := range o {
		observer.DoneBefore(reward, masked)
	}
}

// FailedBefore tells all.
func (o Observers) FailedBefore() {
	for _, observer := range o {
		observer.FailedBefore()
	}
}

// Began tells all.
func (o Observers) Began(r collect.Rollout, again bool) {
	for _, observer := range o {
		observer.Began(r, again)
	}
}

// Ended tells all.
func (o Observers) Ended(r collect.Rollout, attempt episode.Attempt) {
	for _, observer := range o {
		observer.Ended(r, attempt)
	}
}

// Ending tells all.
func (o Observers) Ending() {
	for _, observer := range o {
		observer.Ending()
	}
}
