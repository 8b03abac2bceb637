package episode

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"

	"example.com/turn/failures"
)

// An admission bounds how many episodes run at once (section 3). Those that wait
// are let in in the order in which they came.
type admission struct {
	places  *semaphore.Weighted // nil: no limit
	timeout time.Duration
}

func newAdmission(limit int, timeout time.Duration) admission {
	if limit == 0 {
		return admission{}
	}
	return admission{places: semaphore.NewWeighted(int64(limit)), timeout: timeout}
}

// enter waits for a place; waits is told if it has to. leave gives the place back.
func (a admission) enter(ctx context.Context, waits func() (over func())) (leave func(), err error) {
	if a.places == nil {
		return func() {}, stopped(ctx)
	}
	leave = func() { a.places.Release(1) }
	if ctx.Err() == nil && a.places.TryAcquire(1) {
		return leave, nil
	}
	defer waits()()
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, failures.New(failures.StageAdmission, "", "Episode admission timed out"))
	defer cancel()
	if a.places.Acquire(ctx, 1) != nil {
		return nil, stopped(ctx)
	}
	return leave, nil
}

// stopped is the failure of an episode that was given up before its first call,
// nil when it was not.
func stopped(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	var timeout *failures.Failure
	if errors.As(context.Cause(ctx), &timeout) {
		return timeout
	}
	return failures.Interrupted(failures.StageAdmission, failures.Cause(ctx), "while it waited for admission")
}
