package progress

import (
	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/internal/collect"
)

// A FailureLog logs each failed attempt, one line each, as a driver of ours does: for
// runs that others drive. It is a [collect.Observer].
type FailureLog struct {
	collect.Unobserved
	Logger zerolog.Logger
}

// Ended logs an attempt that has failed.
func (l FailureLog) Ended(r collect.Rollout, attempt episode.Attempt) {
	f := attempt.Failure
	if f == nil || f.CutShort() {
		return
	}
	l.Logger.Warn().
		Str("rollout_id", attempt.EpisodeID.RolloutID).Int64("attempt", attempt.EpisodeID.Attempt).
		Str("taskset", r.TaskID.Taskset).Str("task_id", r.TaskID.TaskID).
		Float64("took_seconds", float64(attempt.Took.Milliseconds())/1000).
		Str("stage", string(f.Stage)).Str("failure_kind", string(f.Kind)).Bool("terminal", f.Terminal).Str("reason", f.Reason).
		Msg("an episode failed")
}
