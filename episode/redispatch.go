package episode

import (
	"context"
	"time"

	"example.com/turn/failures"
	"example.com/turn/retry"
)

// Redispatch runs a request and, after a failure that is not terminal, runs it
// again as the next attempt, as often as the policy has it (section 5). The
// attempts never overlap: the closes of one have ended before the next begins.
// The reply carries the request's own episode id, whatever attempt it is of.
//
// When the attempts have run out, when ctx ends, or when its deadline would come
// before the next attempt, the last failure that a server or the network caused
// is the reply: it says more than a time-out of ours would.
func Redispatch(ctx context.Context, d *Driver, r *Request, policy retry.Policy) Reply {
	reply, _ := redispatch(ctx, d, r, policy)
	return reply
}

// redispatch also returns how many attempts there were.
func redispatch(ctx context.Context, d *Driver, r *Request, policy retry.Policy) (reply Reply, attempts int) {
	attempt := *r
	reply = d.Run(ctx, &attempt)
	var firstFailed time.Time
	for attempts = 1; reply.Failure != nil; attempts++ {
		if firstFailed.IsZero() {
			firstFailed = time.Now()
		}
		if reply.Failure.Stage == failures.StageAdmission {
			break // whoever sent the request waits in line again, or does not
		}
		wait, again := policy.Next(reply.Failure, attempts, time.Since(firstFailed))
		if !again || !d.pause(ctx, wait) {
			break
		}
		attempt.EpisodeID.Attempt++
		next := d.Run(ctx, &attempt)
		if next.Failure != nil && next.Failure.Stage == failures.StageAdmission {
			break
		}
		reply = next
	}
	reply.EpisodeID = r.EpisodeID
	return reply, attempts
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
