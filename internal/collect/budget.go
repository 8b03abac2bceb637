package collect

import (
	"context"
	"fmt"
	"time"

	"example.com/turn/failures"
)

// A Budget is the time that a run has.
type Budget struct {
	// Deadline is when what is still in flight is cancelled. Its sessions are closed
	// after that, for which each close has the driver's cleanup timeout. Zero: there
	// is none.
	Deadline time.Time
	// Margin is how long before the deadline no attempt begins any more. 0: as long
	// as three quarters of this run's own attempts took at most, once there are
	// five; none before that.
	Margin time.Duration
}

// autoMarginFrom is how many attempts must have ended before they tell how long
// one takes.
const autoMarginFrom = 5

// margin is how long before the deadline no attempt begins any more.
func (c *collector) margin() time.Duration {
	ended := c.summary.times.Len()
	if c.config.Margin > 0 || ended < autoMarginFrom {
		return c.config.Margin
	}
	if ended >= c.slow.from { // a quantile costs more than an attempt that takes a millisecond
		c.slow.from, c.slow.time = ended+ended/20+1, c.summary.times.Quantile(0.75)
	}
	return c.slow.time
}

// slow is what three quarters of the attempts took at most, and how many must have
// ended before it is worth another look.
type slow struct {
	from int
	time time.Duration
}

// untilDeadline is the context of what the budget is for.
func (c *collector) untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.config.Deadline.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, c.config.Deadline, &failures.Stop{Kind: failures.Shutdown, Reason: "the run's budget is used up"})
}

// runsOut reports that there is no time left to begin an attempt.
func (c *collector) runsOut(now time.Time) bool {
	if c.config.Deadline.IsZero() {
		return false
	}
	margin := c.margin()
	left := c.config.Deadline.Sub(now)
	if left > margin {
		return false
	}
	if left <= 0 {
		c.config.Note("the budget is used up: no further attempt begins, and what was in flight is cancelled")
		return true
	}
	c.config.Note(fmt.Sprintf("%s of the budget are left and an attempt may take %s: no further one begins", left.Round(time.Millisecond), margin.Round(time.Millisecond)))
	return true
}
