package collect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/turn/failures"
)

// run drives the rollouts that are owed, as many at once as there is room for, and
// returns when all have ended and are on disk.
func (c *collector) run(ctx context.Context) error {
	ctx, cancel := c.untilDeadline(ctx)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	c.writer = newWriter(c.rollouts, c.failures)
	defer c.writer.close()
	c.ended = make(chan attempt)
	c.jobs = make(chan job)
	defer c.endWorkers()
	defer giveUp(nil)
	for {
		c.begin(ctx)
		if c.broken != nil {
			giveUp(notKept(c.broken))
		}
		if c.inFlight == 0 && (c.stopped || c.queue.empty()) {
			return errors.Join(c.broken, c.gaveUp)
		}
		c.await(ctx)
	}
}

// endWorkers ends the workers. Only a panic leaves attempts in flight; nobody else would
// take them.
func (c *collector) endWorkers() {
	for ; c.inFlight > 0; c.inFlight-- {
		<-c.ended
	}
	close(c.jobs)
	c.workers.Wait()
}

// notKept is why attempts are given up whose lines could not be kept.
func notKept(err error) *failures.Stop {
	return &failures.Stop{Kind: failures.PersistenceFailed, Reason: err.Error()}
}

// begin starts attempts while there is room and something to start.
func (c *collector) begin(ctx context.Context) {
	for !c.queue.empty() && !c.stops(ctx) && c.inFlight < max(c.config.Concurrency, 1) {
		line, t, ok, err := c.next()
		if err == nil && !ok {
			return
		}
		if err == nil && c.summary.Attempts == 0 {
			err = c.dropMetrics() // only now: a run that begins nothing leaves them
		}
		if err == nil {
			err = c.start(ctx, line, t)
		}
		c.broken = err // nothing had broken before: stops has looked
	}
}

// stops reports whether no attempt begins any more.
func (c *collector) stops(ctx context.Context) bool {
	if c.stopped {
		return true
	}
	now := time.Now()
	c.stopped = c.broken != nil || c.runsOut(now) || c.givesUp(now) || ctx.Err() != nil || isClosed(c.config.Drain)
	if c.stopped {
		c.config.Observer.Ending()
	}
	return c.stopped
}

// next is the next rollout to drive, if one may begin now: a row that has not
// begun, or one whose time to be tried again has come when there is no such row.
//
// While the server cannot be reached, rows are held back.
func (c *collector) next() (line input, t turn, ok bool, err error) {
	now := time.Now()
	for !c.outage.holds(now) {
		line, ok, err := c.queue.row()
		if err != nil {
			return input{}, turn{}, false, err
		}
		if !ok {
			break
		}
		if limit, owed := c.owes(line.key); owed {
			c.outage.rowBegan(now)
			return line, turn{key: line.key, place: line.place, attempts: int(c.past.failures[line.key].attempts), limit: limit}, true, nil
		}
		if isClosed(c.config.Drain) {
			return input{}, turn{}, false, nil
		}
	}
	if t, ok = c.queue.due(now); !ok {
		return input{}, turn{}, false, nil
	}
	line, err = c.queue.rows.at(t.place)
	return line, t, err == nil, err
}

// owes reports whether a rollout is still to be driven, and how many attempts it
// may have had then.
func (c *collector) owes(k key) (limit int, owed bool) {
	if _, done := c.past.results[k]; done {
		return 0, false
	}
	before := c.past.failures[k]
	limit = c.config.Policy.Attempts()
	if before.terminal {
		limit = 0
		if c.config.RetryTerminal {
			limit = int(before.attempts) + 1
		}
	}
	return limit, int(before.attempts) < limit
}

// await waits for something that lets the run go on: an attempt that has ended,
// one that is due, or the end of all dispatching.
func (c *collector) await(ctx context.Context) {
	var (
		due   <-chan time.Time
		drain = c.config.Drain
		done  = ctx.Done()
	)
	if c.stopped || c.queue.empty() { // only those in flight are waited for
		drain, done = nil, nil
	} else if wait, any := c.untilNext(time.Now()); any {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case ended := <-c.ended:
		c.settle(ended)
	case <-due:
	case <-drain:
	case <-done:
	}
}

// untilNext is how long to wait at most before there may be something to do, when
// no attempt ends meanwhile.
func (c *collector) untilNext(now time.Time) (wait time.Duration, any bool) {
	at := func(moment time.Time) {
		if until := max(moment.Sub(now), 0); !any || until < wait {
			wait, any = until, true
		}
	}
	if c.inFlight < max(c.config.Concurrency, 1) {
		if due, waits := c.queue.nextDue(); waits {
			at(due)
		}
		if !c.queue.atEnd && c.outage.on { // rows may be held back until then
			at(c.outage.until)
			at(c.outage.quietAt())
		}
	}
	if !c.config.Deadline.IsZero() {
		at(c.config.Deadline.Add(-c.margin()))
	}
	return wait, any
}

// settle counts an attempt that has ended, and has its rollout wait for another
// when the policy wants one.
func (c *collector) settle(a attempt) {
	c.inFlight--
	if a.err != nil { // as if it had not been: nothing of it is on disk
		a.Result, a.Failure = nil, failures.Interrupted("", notKept(a.err), "in this run")
	}
	cut := a.Failure != nil && a.Failure.CutShort()
	if !cut {
		c.summary.attempted(a.Took, a.Times)
	}
	if a.err != nil && !errors.Is(c.broken, a.err) { // all who wrote to a file that has broken have the same
		c.broken = errors.Join(c.broken, a.err)
	}
	if err := c.stillThere(); c.broken == nil {
		c.broken = err
	}
	if !cut {
		c.hear(a)
	}
	t := a.turn
	switch {
	case cut:
	case a.Result != nil:
		c.summary.addResult(t.key.task, result{reward: a.Result.Reward, masked: a.Result.Masked})
		if a.Result.AgentTimedOut {
			c.summary.TimedOut++
		}
	default:
		a.Again = c.retry(&t, a.Failure)
	}
	c.config.Observer.Ended(rolloutOf(a.TaskID, t.key), a.Attempt)
}

// stillThere reports that a file is gone to which nothing may have been written lately.
// The rollouts file is looked at with each line.
func (c *collector) stillThere() error {
	if err := c.queue.rows.stillThere(); err != nil {
		return &OutputError{File: c.files.Inputs, Err: err}
	}
	if err := c.failures.stillThere(); err != nil {
		return &OutputError{File: c.files.Failures, Err: err}
	}
	return nil
}

// hear looks for the beginning and the end of an outage.
func (c *collector) hear(a attempt) {
	if c.summary.Owed.Servers != 1 {
		return
	}
	f := a.Failure
	if f == nil || !c.config.Target.Away(f) {
		if c.outage.over(f, a.began, time.Now()) {
			c.config.Note("attempts get through again: rows begin")
		}
		return
	}
	if c.outage.met(f, a.Took, time.Now()) {
		c.queue.postpone(func(t turn) time.Duration { return c.outage.floor(t.attempts) })
		c.config.Note(fmt.Sprintf("%s: rows that have not begun wait, and one looks every %s; after %s the run gives up", f.Reason, lookInterval, outagePatience))
	}
}

// givesUp reports that an outage has been too long to be waited for.
func (c *collector) givesUp(now time.Time) bool {
	if !c.outage.hopeless(now) {
		return false
	}
	c.gaveUp = &OutageError{c.outage.first.Reason}
	return true
}

// retry has a failed rollout tried again, or counts it as failed.
func (c *collector) retry(t *turn, f *failures.Failure) (again bool) {
	now := time.Now()
	if t.firstFailed.IsZero() {
		t.firstFailed = now
	}
	t.attempts++
	policy := c.config.Policy
	policy.MaxAttempts = t.limit
	failure := *f
	away, known := c.config.Target.Away(f), c.outage.lasts(now)
	t.unforeseen = away && !known
	if away && known {
		failure.RetryAfter = max(failure.RetryAfter, c.outage.floor(t.attempts))
	}
	wait, again := policy.Next(&failure, t.attempts, now.Sub(t.firstFailed))
	if !again {
		c.summary.addFailure(t.key.task, FailureGroup{f.Stage, f.Kind}, f.Reason, f.Terminal || c.past.failures[t.key].terminal)
		return false
	}
	t.due = now.Add(wait)
	c.queue.push(*t)
	return true
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
