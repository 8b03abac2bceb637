package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/retry"
)

// A Config says what is run and where it is written.
type Config struct {
	Dataset string    // a JSONL file, gzipped when its name ends in .gz, or "-"
	Stdin   io.Reader // what "-" stands for
	Output  string    // the rollouts file; the others are named after it: FilesOf

	// Overwrite lets the run replace an earlier output; Resume has it go on where
	// an earlier run ended.
	Overwrite bool
	Resume    bool
	// RetryTerminal has a run that resumes try those rollouts once more whose
	// failure was terminal.
	RetryTerminal bool

	Taskset           string  // of flat rows; "": their task_source, else the dataset's name
	Limit             int     // how many rows are read; 0: all
	Repeats           int     // rollouts of each row; 0: one
	Shard             Shard   // the part of the tasks that is run
	Params            []Param // fields of responses_create_params to set
	AllowDuplicateIDs bool    // two different rows may have one task id
	FailuresAsZero    bool    // failed rollouts are samples with a reward of 0

	Target      Target
	Concurrency int // episodes in flight; 0: one
	Policy      retry.Policy

	// Drain, once closed, lets no further attempt begin. Those in flight go on
	// until ctx ends. Nil: never.
	Drain <-chan struct{}
	Budget

	// Agent names the agent server in the aggregate metrics.
	Agent string

	// Observer is told of what happens. Nil: nobody is.
	Observer Observer
	// Note is told what a person should know of the files. Nil: nobody is.
	Note func(string)
}

// A Budget is the time that a run has.
type Budget struct {
	// Deadline is when the run has to have ended: what is still in flight is
	// cancelled then. Zero: there is none.
	Deadline time.Time
	// Margin is how long before the deadline no attempt begins any more. 0: as long
	// as three quarters of this run's own attempts took at most, once there are
	// five; none before that.
	Margin time.Duration
}

// A Rollout names one (task, rollout).
type Rollout struct {
	TaskID       protocol.TaskID
	TaskIndex    int64
	RolloutIndex int64
}

// Compare orders rollouts by their indexes.
func (r Rollout) Compare(other Rollout) int {
	return cmp.Or(cmp.Compare(r.TaskIndex, other.TaskIndex), cmp.Compare(r.RolloutIndex, other.RolloutIndex))
}

// An Observer is told of a run's progress, one event after the other.
type Observer interface {
	Prepared(owed Owed)
	// Settled is a rollout that an earlier run has settled: with a result, or with
	// failures only (failed).
	Settled(reward float64, masked, failed bool)
	// Began is an attempt; again says that it is not the first at its rollout in this
	// run.
	Began(r Rollout, again bool)
	// Ended is an attempt, when its line is on disk. Its Again says that the rollout
	// waits for another.
	Ended(r Rollout, attempt episode.Attempt)
}

type nobody struct{}

func (nobody) Prepared(Owed)                  {}
func (nobody) Settled(float64, bool, bool)    {}
func (nobody) Began(Rollout, bool)            {}
func (nobody) Ended(Rollout, episode.Attempt) {}

// Run runs the dataset and returns what came out. It stops early, with an error,
// when the dataset has a fault (*[InputError]), when there is an earlier output
// (*[ExistsError]), one of another dataset (*[ChangedError]) or one that another
// run is writing to (*[OwnedError]), when a file cannot be written
// (*[OutputError]), and when it is to drain before the first episode
// ([ErrStopped]).
//
// When it is to drain, no attempt begins any more; when ctx ends, those in flight
// are cancelled too. Rollouts that were cut short get no line. Run returns when
// every session is closed and every line on disk.
func Run(ctx context.Context, config Config) (*Summary, error) {
	if config.Observer == nil {
		config.Observer = nobody{}
	}
	if config.Note == nil {
		config.Note = func(string) {}
	}
	c := &collector{config: config, files: FilesOf(config.Output)}
	c.summary.FailuresAsZero = config.FailuresAsZero
	if err := c.prepare(); err != nil {
		return &c.summary, err
	}
	err := c.run(ctx)
	if err == nil && c.summary.Done > 0 {
		err = c.aggregate(ctx)
	}
	return &c.summary, errors.Join(err, c.close())
}

// aggregate has the metrics of all results computed, unless the run is stopped or
// its budget used up.
func (c *collector) aggregate(ctx context.Context) error {
	ctx, end := c.untilDeadline(ctx)
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if isClosed(c.config.Drain) {
		return nil
	}
	stopped := make(chan struct{})
	defer func() { cancel(); <-stopped }()
	go func() {
		defer close(stopped)
		select {
		case <-c.config.Drain:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := writeMetrics(ctx, c.files, c.config.Agent, c.config.Target, c.config.Note)
	c.summary.Aggregated = err == nil && ctx.Err() == nil
	return err
}

type collector struct {
	config   Config
	files    Files
	rollouts *output
	failures *output
	past     past

	queue    queue
	writer   *writer
	ended    chan attempt
	inFlight int
	stopped  bool // no attempt begins any more
	outage   outage
	broken   error // why nothing more can be written or read
	summary  Summary
}

// prepare settles what an earlier run has left and what this one owes.
func (c *collector) prepare() (err error) {
	if err := c.files.checkApart(c.config.Dataset); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.config.Output), 0o755); err != nil {
		return &OutputError{File: c.config.Output, Err: err}
	}
	if c.rollouts, err = own(c.files.Rollouts, c.config.Note); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		for _, o := range []*output{c.rollouts, c.failures} {
			if o != nil && o.made { // and nothing was written to it
				_ = os.Remove(o.path)
			}
		}
		err = errors.Join(err, c.close())
	}()
	if !c.config.Overwrite && !c.config.Resume {
		if err := c.files.CheckFree(); err != nil {
			return err
		}
	}
	next := c.files.Inputs + nextSuffix
	if err := c.prepareInputs(next); err != nil {
		return err
	}
	defer func() { _ = os.Remove(next) }() // where it still is, this run does not go on
	if err := c.openOutputs(); err != nil {
		return err
	}
	if err := settle(next, c.files.Inputs); err != nil {
		return err
	}
	// What it says is not of all that will be there.
	if err := os.Remove(c.files.Aggregate); err != nil && !os.IsNotExist(err) {
		return &OutputError{File: c.files.Aggregate, Err: err}
	}
	if c.queue.rows, err = openInputs(c.files.Inputs); err != nil {
		return &OutputError{File: c.files.Inputs, Err: err}
	}
	c.config.Observer.Prepared(c.summary.Owed)
	return nil
}

// prepareInputs writes what this run owes, and reads what an earlier one has left.
func (c *collector) prepareInputs(next string) (err error) {
	var before *earlier
	if c.config.Resume {
		if c.past, err = readPast(c.files); err != nil {
			return err
		}
		if before, err = resume(c.files.Inputs, c.past, c.config.Note); err != nil {
			return &OutputError{File: c.files.Inputs, Err: err}
		}
		defer before.close()
		if before.inputs == nil && len(c.past.results)+len(c.past.failures) > 0 {
			c.config.Note(c.files.Inputs + " is not there: nothing shows that the dataset is the one that the output is of")
		}
	}
	c.summary.Owed, err = prepare(c.config, next, before)
	return err
}

// openOutputs opens what is still to be opened, and takes away what an earlier
// output holds, or its half lines when it is resumed: only now, when everything
// else is in order, and before the inputs say that the output is of another
// dataset.
func (c *collector) openOutputs() (err error) {
	if c.failures, err = openOutput(c.files.Failures); err != nil {
		return err
	}
	if !c.config.Resume {
		return errors.Join(c.rollouts.empty(), c.failures.empty())
	}
	if c.past.twice > 0 {
		c.config.Note(fmt.Sprintf("%s: %d results are there twice; the first of each counts", c.files.Rollouts, c.past.twice))
	}
	return errors.Join(c.rollouts.mend(c.past.resultsTail, c.config.Note), c.failures.mend(c.past.failuresTail, c.config.Note))
}

func (c *collector) close() error {
	var errs []error
	if c.queue.rows != nil {
		c.queue.rows.close()
	}
	for _, o := range []*output{c.failures, c.rollouts} { // the lock last
		if o != nil {
			errs = append(errs, o.close())
		}
	}
	return errors.Join(errs...)
}

// run drives the rollouts that are owed, as many at once as there is room for, and
// returns when all have ended and are on disk.
func (c *collector) run(ctx context.Context) error {
	ctx, cancel := c.untilDeadline(ctx)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	c.writer = newWriter(c.rollouts, c.failures)
	defer c.writer.close()
	c.ended = make(chan attempt)
	for {
		c.begin(ctx)
		if c.inFlight == 0 && (c.stopped || c.queue.empty()) {
			return c.broken
		}
		c.await(ctx)
		if c.broken != nil {
			c.stopped = true
			giveUp(&failures.Stop{Kind: failures.PersistenceFailed, Reason: c.broken.Error()})
		}
	}
}

func (c *collector) untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.config.Deadline.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, c.config.Deadline, &failures.Stop{Kind: failures.Shutdown, Reason: "the run's budget is used up"})
}

// begin starts attempts while there is room and something to start.
func (c *collector) begin(ctx context.Context) {
	for !c.stops(ctx) && c.inFlight < max(c.config.Concurrency, 1) {
		r, t, ok, err := c.next()
		if err != nil {
			c.broken, c.stopped = err, true
			return
		}
		if !ok {
			return
		}
		c.start(ctx, r, t)
	}
}

// stops reports whether no attempt begins any more.
func (c *collector) stops(ctx context.Context) bool {
	if !c.stopped {
		c.stopped = c.runsOut(time.Now()) || ctx.Err() != nil || isClosed(c.config.Drain)
	}
	return c.stopped
}

// next is the next rollout to drive, if one may begin now: a row that has not
// begun, or one whose time to be tried again has come when there is no such row.
//
// While the server cannot be reached, rows are held back.
func (c *collector) next() (rollout, turn, bool, error) {
	now := time.Now()
	for !c.outage.holds(now) {
		r, ok, err := c.queue.row()
		if err != nil {
			return rollout{}, turn{}, false, err
		}
		if !ok {
			break
		}
		if limit, owed := c.owes(r); owed {
			c.outage.probed(now)
			return r, turn{key: r.key, place: place{r.start, r.size}, attempts: c.past.failures[r.key].attempts, limit: limit}, true, nil
		}
		if isClosed(c.config.Drain) {
			return rollout{}, turn{}, false, nil
		}
	}
	t, ok := c.queue.due(now)
	if !ok {
		return rollout{}, turn{}, false, nil
	}
	r, err := c.queue.rows.again(t.place.start, t.place.size)
	return r, t, err == nil, err
}

// owes reports whether a rollout is still to be driven, and how many attempts it
// may have had then. One that an earlier run has settled is counted.
func (c *collector) owes(r rollout) (limit int, owed bool) {
	if result, done := c.past.results[r.key]; done {
		c.summary.addResult(r.key.task, result)
		c.config.Observer.Settled(result.reward, result.masked, false)
		return 0, false
	}
	before := c.past.failures[r.key]
	limit = c.config.Policy.Attempts()
	if before.terminal {
		limit = 0
		if c.config.RetryTerminal {
			limit = before.attempts + 1
		}
	}
	if before.attempts < limit {
		return limit, true
	}
	c.summary.addFailure(r.key.task, before.last, c.past.examples[before.last], before.terminal)
	c.config.Observer.Settled(0, false, true)
	return 0, false
}

// An attempt is one that has ended.
type attempt struct {
	turn turn
	episode.Attempt
	err error // its line could not be written
}

// start has an attempt driven, and its line written.
func (c *collector) start(ctx context.Context, r rollout, t turn) {
	r.request.EpisodeID.Attempt = int64(t.attempts)
	c.inFlight++
	c.summary.Attempts++
	again := t.retry
	if again {
		c.summary.Retries++
	}
	t.retry = true
	c.config.Observer.Began(rolloutOf(r.request.TaskID, t.key), again)
	go func() {
		began := time.Now()
		reply := c.attempt(ctx, r.request)
		ended := attempt{turn: t, Attempt: episode.Attempt{Reply: reply, Took: time.Since(began)}}
		ended.err = c.write(ended)
		c.ended <- ended
	}()
}

// attempt has the target drive an attempt. A bug in it is the attempt's failure.
func (c *collector) attempt(ctx context.Context, r *episode.Request) (reply episode.Reply) {
	defer func() {
		if bug := recover(); bug != nil {
			reply = episode.Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID, Failure: failures.New("", "", fmt.Sprintf("Unhandled error of this run: %v", bug))}
			reply.Failure.Terminal = true
		}
	}()
	return c.config.Target.Attempt(ctx, r)
}

func rolloutOf(id protocol.TaskID, k key) Rollout {
	return Rollout{TaskID: id, TaskIndex: k.task, RolloutIndex: k.rollout}
}

// write writes the line of an attempt. One that was cut short has none.
func (c *collector) write(a attempt) error {
	server, err := c.config.Target.Server(a.TaskID.Taskset)
	switch {
	case err != nil:
		return err
	case a.Result != nil:
		return c.writer.result(resultLine(a.turn.key, server, a.Reply))
	case a.Failure.CutShort():
		return nil
	}
	return c.writer.failure(failureLine(a.turn.key, server, a.Reply, c.config.Target.Delivery(a.Failure), a.Took))
}

// await waits for something that lets the run go on: an attempt that has ended,
// one that is due, or the end of all dispatching.
func (c *collector) await(ctx context.Context) {
	var (
		due   <-chan time.Time
		drain = c.config.Drain
		done  = ctx.Done()
	)
	if c.stopped { // only those in flight are waited for
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
		if !c.queue.atEnd && c.outage.holds(now) {
			at(c.outage.until)
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
	cut := a.Failure != nil && a.Failure.CutShort()
	if !cut {
		c.summary.attempted(a.Took, a.Times)
	}
	if a.err != nil && !errors.Is(c.broken, a.err) { // all who wrote to a file that has broken have the same
		c.broken = errors.Join(c.broken, a.err)
	}
	if !cut && c.summary.Owed.Servers == 1 {
		c.outage.heard(a.Failure != nil && a.Failure.Kind == failures.TransportUnreachable && c.config.Target.Delivery(a.Failure) == NotSent)
	}
	t := a.turn
	switch {
	case a.err != nil, cut:
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

// retry has a failed rollout tried again, or counts it as failed.
func (c *collector) retry(t *turn, f *failures.Failure) (again bool) {
	now := time.Now()
	if t.firstFailed.IsZero() {
		t.firstFailed = now
	}
	t.attempts++
	policy := c.config.Policy
	policy.MaxAttempts = t.limit
	wait, again := policy.Next(f, t.attempts, now.Sub(t.firstFailed))
	if !again {
		c.summary.addFailure(t.key.task, FailureGroup{f.Stage, f.Kind}, f.Reason, f.Terminal)
		return false
	}
	t.due = now.Add(wait)
	c.queue.push(*t)
	return true
}

// autoMarginFrom is how many attempts must have ended before they tell how long
// one takes.
const autoMarginFrom = 5

// margin is how long before the deadline no attempt begins any more.
func (c *collector) margin() time.Duration {
	if c.config.Margin > 0 || c.summary.times.Len() < autoMarginFrom {
		return c.config.Margin
	}
	return c.summary.times.Quantile(0.75)
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

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
