package collect

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
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

	Name              string  // of the environment server, in every line
	Taskset           string  // of flat rows; "": their task_source, else the dataset's name
	Limit             int     // how many rows are read; 0: all
	Repeats           int     // rollouts of each row; 0: one
	Params            []Param // fields of responses_create_params to set
	AllowDuplicateIDs bool    // two different rows may have one task id

	Driver      *episode.Driver
	Concurrency int // episodes in flight
	Policy      retry.Policy

	// Observer is told of what happens. Nil: nobody is.
	Observer Observer
	// Note is told what a person should know of the files. Nil: nobody is.
	Note func(string)
}

// An Observer is told of a run's progress. Its methods are called from several
// goroutines.
type Observer interface {
	Prepared(owed int)
	Resumed(done bool)           // a rollout that an earlier run has settled, with a result or without
	Began()                      // a rollout
	Attempted(a episode.Attempt) // one attempt at a rollout
	Ended(last episode.Attempt)  // a rollout, by its last attempt
}

// Run runs the dataset and returns what came out. It stops early, with an error,
// when the dataset has a fault (*[InputError]), when there is an earlier output
// (*[ExistsError]) or one of another dataset (*[ChangedError]), when a file
// cannot be written (*[OutputError]), and when the driver drains before the first
// episode ([ErrStopped]).
//
// When the driver drains, no episode begins any more; when ctx ends, those in
// flight are cancelled too. Rollouts that were cut short get no line. Run returns
// when every session is closed and every line on disk.
func Run(ctx context.Context, config Config) (Summary, error) {
	if config.Observer == nil {
		config.Observer = nobody{}
	}
	if config.Note == nil {
		config.Note = func(string) {}
	}
	c := &collector{config: config, files: FilesOf(config.Output)}
	if err := c.prepare(); err != nil {
		return c.summary, err
	}
	return c.run(ctx)
}

type nobody struct{}

func (nobody) Prepared(int)              {}
func (nobody) Resumed(bool)              {}
func (nobody) Began()                    {}
func (nobody) Attempted(episode.Attempt) {}
func (nobody) Ended(episode.Attempt)     {}

type collector struct {
	config   Config
	files    Files
	rollouts *output
	failures *output
	giveUp   context.CancelCauseFunc // ends the run for an error of ours

	past past

	mu      sync.Mutex
	summary Summary
	broken  error // the first line that could not be written
}

// prepare settles what an earlier run has left and what this one owes.
func (c *collector) prepare() error {
	if err := c.files.checkApart(c.config.Dataset); err != nil {
		return err
	}
	if !c.config.Overwrite && !c.config.Resume {
		if err := c.files.CheckFree(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(c.config.Output), 0o755); err != nil {
		return &OutputError{File: c.config.Output, Err: err}
	}
	next := c.files.Inputs + ".next"
	owed, err := prepare(c.config, next)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(next) }() // where it still is, this run does not go on
	c.summary.Owed = owed
	if c.config.Resume {
		if err := checkUnchanged(c.files.Inputs, next); err != nil {
			return err
		}
		if c.past, err = readPast(c.files, c.config.Note); err != nil {
			return err
		}
		if err := c.past.checkOwed(next); err != nil {
			return err
		}
	}
	if err := c.open(); err != nil {
		return err
	}
	if err := os.Rename(next, c.files.Inputs); err != nil {
		return errors.Join(&OutputError{File: c.files.Inputs, Err: err}, c.close())
	}
	c.config.Observer.Prepared(owed)
	return nil
}

// open opens the output files. An earlier output is taken away only when both can be
// written, and before the inputs say that the output is of another dataset.
func (c *collector) open() (err error) {
	if c.rollouts, err = openOutput(c.files.Rollouts); err != nil {
		return err
	}
	if c.failures, err = openOutput(c.files.Failures); err != nil {
		return errors.Join(err, c.rollouts.close())
	}
	if c.config.Resume {
		return nil
	}
	if err := errors.Join(c.rollouts.empty(), c.failures.empty()); err != nil {
		return errors.Join(err, c.close())
	}
	return nil
}

func (c *collector) close() error { return errors.Join(c.rollouts.close(), c.failures.close()) }

func (c *collector) run(ctx context.Context) (Summary, error) {
	ctx, c.giveUp = context.WithCancelCause(ctx)
	defer c.giveUp(nil)
	err := c.dispatch(ctx)
	closed := c.close()
	switch {
	case c.broken != nil:
		return c.summary, c.broken
	case err != nil:
		return c.summary, err
	}
	return c.summary, closed
}

// dispatch drives the rollouts that are owed, as many at once as there is room
// for, and returns when all have ended.
func (c *collector) dispatch(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, max(c.config.Concurrency, 1))
	return readInputs(c.files.Inputs, func(r rollout) bool {
		if c.settled(r) {
			return true
		}
		select {
		case room <- struct{}{}:
		case <-c.config.Driver.Draining():
			return false
		case <-ctx.Done():
			return false
		}
		if ctx.Err() != nil || isClosed(c.config.Driver.Draining()) {
			return false
		}
		running.Go(func() {
			defer func() { <-room }()
			c.drive(ctx, r)
		})
		return true
	})
}

// settled reports whether an earlier run has done with a rollout, and counts it.
// One that failed before goes on with the next attempt.
func (c *collector) settled(r rollout) bool {
	before := c.past.failures[r.key()]
	if result, done := c.past.results[r.key()]; done {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.summary.addResult(result)
		c.config.Observer.Resumed(true)
		return true
	}
	if before.terminal || before.attempts >= c.config.Policy.Attempts() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.summary.addFailure(before.last, before.reason, before.terminal)
		c.config.Observer.Resumed(false)
		return true
	}
	r.request.EpisodeID.Attempt = int64(before.attempts)
	return false
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// drive has one rollout driven and writes what came of it.
func (c *collector) drive(ctx context.Context, r rollout) {
	c.config.Observer.Began()
	var last episode.Attempt
	attempts := 0
	policy := c.config.Policy
	policy.MaxAttempts = policy.Attempts() - int(r.request.EpisodeID.Attempt)
	for last = range episode.Attempts(ctx, c.config.Driver, r.request, policy) {
		attempts++
		c.config.Observer.Attempted(last)
		if last.Failure != nil && !last.Failure.CutShort() {
			c.write(c.failures, failureLine(r, c.config.Name, last.Failure, last.EpisodeID.Attempt, last.Took))
		}
	}
	if last.Result != nil {
		c.write(c.rollouts, resultLine(r, c.config.Name, last.Reply, last.EpisodeID.Attempt))
	}
	c.config.Observer.Ended(last)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.summary.add(last, attempts)
}

// write writes a line. When that fails nothing more could be kept, so that the run
// is given up.
func (c *collector) write(to *output, line rawjson.Body) {
	err := to.write(line)
	if err == nil {
		return
	}
	c.giveUp(&failures.Stop{Kind: failures.PersistenceFailed, Reason: err.Error()})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
	}
}
