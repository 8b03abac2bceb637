package episode

import (
	"context"
	"sync"
	"time"

	"example.com/turn/failures"
	"example.com/turn/retry"
)

const (
	// lookEvery is how often it is looked for sessions that were left open. While some
	// cannot be closed the time between two looks doubles, up to lookAtLeast.
	lookEvery   = time.Minute
	lookAtLeast = time.Hour
	// lastLook bounds the look when all else has ended.
	lastLook = 10 * time.Second
)

// KeepClosingLeft calls [Driver.CloseLeft] at once, and from then on each minute, or less
// often, up to an hour, while there are sessions that cannot be closed. looked is closed
// when the first call is over, for which one clean-up timeout is given in all: only then
// should the first attempt begin. That ends with ctx, or with stop, which calls it a last
// time, for 10 s at most. stop must be called, before [Driver.Close].
func (d *Driver) KeepClosingLeft(ctx context.Context) (looked <-chan struct{}, stop func()) {
	first := make(chan struct{})
	if d.journal == nil {
		close(first)
		return first, func() {}
	}
	ctx, end := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() {
		d.firstLook(ctx)
		close(first)
		for wait := lookEvery; retry.Wait(ctx, wait); {
			wait = nextLook(wait, d.CloseLeft(ctx))
		}
	})
	return first, func() {
		end()
		looks.Wait()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
		defer cancel()
		d.CloseLeft(last)
	}
}

func (d *Driver) firstLook(ctx context.Context) {
	limit := d.config.CleanupTimeout
	ctx, cancel := within(ctx, limit, &failures.Limit{Name: "time for closing what was left", After: limit})
	defer cancel()
	d.CloseLeft(ctx)
}

// nextLook is the wait after another, when so many sessions could not be closed.
func nextLook(wait time.Duration, open int) time.Duration {
	if open == 0 {
		return lookEvery
	}
	return min(2*wait, lookAtLeast)
}
