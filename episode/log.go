package episode

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/failures"
)

type requestIDKey struct{}

// WithRequestID has the log say which request an episode that runs under the context is
// for, besides which rollout: the name by which others know it, such as X-Request-Id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// logOutcome tells of an attempt that failed, and of one whose agent ran out of
// time; of others only who debugs is told.
func (d *Driver) logOutcome(ctx context.Context, reply Reply, took time.Duration) {
	f := reply.Failure
	switch {
	case f == nil && reply.Result.AgentTimedOut:
		tell(ctx, d.config.Logger.Warn(), reply, took).Msg("an agent ran out of time; what there is of its answer was verified")
	case f == nil:
		tell(ctx, d.config.Logger.Debug(), reply, took).Bool("masked", reply.Result.Masked).Msg("an episode ended")
	default:
		event := tell(ctx, d.config.Logger.Warn(), reply, took).Str("stage", string(f.Stage)).Str("failure_kind", string(f.Kind)).
			Bool("terminal", f.Terminal).Str("reason", f.Reason)
		if f.CleanupError != "" {
			event.Str("cleanup_error", f.CleanupError)
		}
		event.Msg("an episode failed")
		d.warnOfKind(f.Kind)
	}
}

// tell says which attempt an event is about and how long it and its stages took.
func tell(ctx context.Context, event *zerolog.Event, reply Reply, took time.Duration) *zerolog.Event {
	if event == nil { // nobody would read it
		return nil
	}
	if id, ok := ctx.Value(requestIDKey{}).(string); ok {
		event.Str("request_id", id)
	}
	event.Str("rollout_id", reply.EpisodeID.RolloutID).Int64("attempt", reply.EpisodeID.Attempt).
		Str("taskset", reply.TaskID.Taskset).Str("task_id", reply.TaskID.TaskID).Float64("took_seconds", logged(took))
	for _, stage := range []failures.Stage{failures.StageSeed, failures.StageAgent, failures.StageCleanup, failures.StageVerification} {
		if took, began := reply.Times.Of(stage); began {
			event.Float64(string(stage)+"_seconds", logged(took))
		}
	}
	return event
}

// logged is a time in seconds, to the millisecond.
func logged(took time.Duration) float64 { return float64(took.Milliseconds()) / 1000 }

// maxLogged is how many bytes of a body a log line holds.
const maxLogged = 64 << 10

// logLeftOut logs what a reply for 0.7.0 has no place for: what the agent observed
// of an attempt that failed. It may repeat the secrets that the agent was given.
func (d *Driver) logLeftOut(r *Request, err error, secrets *failures.Secrets) {
	var f *failures.Failure
	if !errors.As(err, &f) || f.Observations == nil && f.Trajectory == nil {
		return
	}
	event := d.config.Logger.Warn().Stringer("episode", r.EpisodeID)
	for name, body := range map[string][]byte{"ng_agent_observations": f.Observations, "ng_trajectory": f.Trajectory} {
		switch {
		case body == nil:
		case len(body) > maxLogged:
			event.Int(name+"_bytes", len(body))
		default:
			event.Str(name, secrets.Mask(string(body)))
		}
	}
	event.Msg("what the agent observed of an episode that failed")
}

// closeFailed tells of a session that may still be open, with the id by which a
// person finds it.
func (d *Driver) closeFailed(server Server, idName, id string, err error) {
	d.config.Logger.Warn().Str(idName, id).Str("reason", err.Error()).Msgf("the %s close failed", server)
	d.config.Observer.CloseFailed(server)
}

func (d *Driver) warnOfVerdict(result *Result, dropped []string) {
	for _, name := range dropped {
		d.warnOnce("field", name, "the verifier's field belongs to collectors and is left out")
	}
	d.warnOfKind(result.kind())
}

func (d *Driver) warnOfKind(kind failures.Kind) {
	if kind != "" && !kind.Registered() && !kind.Namespaced() {
		d.warnOnce("failure_kind", string(kind), "the failure kind is neither registered nor namespaced; it is kept")
	}
}

// What is remembered of what servers send is bounded in number and in bytes.
const (
	maxWarned     = 1000
	maxWarnedName = 100
)

func (d *Driver) warnOnce(key, value, message string) {
	d.warnedMu.Lock()
	defer d.warnedMu.Unlock()
	value = value[:min(len(value), maxWarnedName)]
	once := key + "=" + value
	if d.warned[once] || len(d.warned) >= maxWarned {
		return
	}
	if d.warned == nil {
		d.warned = map[string]bool{}
	}
	d.warned[once] = true
	d.config.Logger.Warn().Str(key, value).Msg(message)
}
