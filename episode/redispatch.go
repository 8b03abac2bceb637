package episode

import (
	"context"
	"iter"
	"time"

	"example.com/turn/failures"
	"example.com/turn/retry"
)

// An Attempt is one attempt at a request's rollout, and what became of it. The
// episode id of its reply has the attempt's own number.
type Attempt struct {
	Reply
	Took  time.Duration // from the request to the end of its closes
	Again bool          // the policy has another attempt follow
}

// Unsettled reports whether nothing can be said of the rollout yet: the attempt was
// given up from outside, or the one that should have followed it was.
func (a Attempt) Unsettled() bool {
	return a.Failure != nil && (a.Again || a.Failure.CutShort())
}

// Attempts runs a request and, after a failure that is not terminal, runs it again
// as the next attempt, as often as the policy has it (section 5). It yields each
// attempt when its closes have ended; they never overlap.
//
// It ends early when ctx ends, when its deadline would come before the next
// attempt, when the driver drains, and when a further attempt was not admitted:
// the attempts yielded before say more than a time-out of ours would. The last
// attempt that it yields is then [Attempt.Unsettled]. A first attempt that was not
// admitted is not followed by another: whoever asked may wait in line again.
func Attempts(ctx context.Context, d *Driver, r *Request, policy retry.Policy) iter.Seq[Attempt] {
	return func(yield func(Attempt) bool) {
		request := *r
		var firstFailed time.Time
		for attempts := 1; ; attempts++ {
			began := time.Now()
			attempt := Attempt{Reply: d.Run(ctx, &request)}
			attempt.Took = time.Since(began)
			refused := attempt.Failure != nil && attempt.Failure.Stage == failures.StageAdmission
			if refused && attempts > 1 {
				return
			}
			var wait time.Duration
			if f := attempt.Failure; f != nil && !refused && !f.CutShort() {
				if firstFailed.IsZero() {
					firstFailed = time.Now()
				}
				wait, attempt.Again = policy.Next(f, attempts, time.Since(firstFailed))
			}
			if !yield(attempt) || !attempt.Again || !d.pause(ctx, wait) {
				return
			}
			request.EpisodeID.Attempt++
		}
	}
}

// Redispatch is the last of a request's [Attempts]: a result, or the failure that
// is left. Its reply carries the request's own episode id, whatever attempt it is
// of.
func Redispatch(ctx context.Context, d *Driver, r *Request, policy retry.Policy) Reply {
	var last Reply
	for attempt := range Attempts(ctx, d, r, policy) {
		last = attempt.Reply
	}
	last.EpisodeID = r.EpisodeID
	return last
}

// pause waits, and reports false at once when there is nothing to wait for:
// another attempt could not begin, or not before the context's deadline.
func (d *Driver) pause(ctx context.Context, wait time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	case <-d.draining.Done():
		return false
	}
}
