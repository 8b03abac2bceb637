package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"example.com/turn/episode"
	"example.com/turn/internal/filelock"
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
	// DoneBefore is a rollout of which an earlier run has left a result, FailedBefore
	// one of which it has left failures only, and which is not tried again.
	DoneBefore(reward float64, masked bool)
	FailedBefore()
	// Prepared is told next, when the dataset is read and no attempt has begun.
	Prepared(owed Owed)
	// Began is an attempt; again says that it is not the first at its rollout in this
	// run.
	Began(r Rollout, again bool)
	// Ended is an attempt, when its line is on disk; one that was cut short, or whose
	// line could not be written, has none, and a failure that says so (CutShort). Its
	// Again says that the rollout waits for another.
	Ended(r Rollout, attempt episode.Attempt)
	// Ending is told once, when no further attempt begins although there may be some
	// owed: the run was stopped, or cannot go on.
	Ending()
}

// Unobserved is an [Observer] that does nothing. Whoever wants to be told of some
// events only embeds it.
type Unobserved struct{}

func (Unobserved) Prepared(Owed)                  {}
func (Unobserved) DoneBefore(float64, bool)       {}
func (Unobserved) FailedBefore()                  {}
func (Unobserved) Began(Rollout, bool)            {}
func (Unobserved) Ended(Rollout, episode.Attempt) {}
func (Unobserved) Ending()                        {}

// Run runs the dataset and returns what came out. It stops early, with an error,
// when the dataset has a fault (*[InputError]), when there is an earlier output
// (*[ExistsError]), one of another dataset (*[ChangedError]) or one that another
// run is writing to (*[OwnedError]), when a file cannot be written
// (*[OutputError]), when the only server was away for too long (*[OutageError]), and
// when it is to drain before the first episode
// ([ErrStopped]).
//
// When it is to drain, no attempt begins any more; when ctx ends, those in flight
// are cancelled too. Rollouts that were cut short get no line. Run returns when
// every session is closed and every line on disk.
func Run(ctx context.Context, config Config) (*Summary, error) {
	if config.Observer == nil {
		config.Observer = Unobserved{}
	}
	if config.Note == nil {
		config.Note = func(string) {}
	}
	c := &collector{config: config, files: FilesOf(config.Output)}
	c.summary.FailuresAsZero = config.FailuresAsZero
	if err := c.prepare(); err != nil {
		return &c.summary, err
	}
	spare := spareDescriptors()
	err := c.run(ctx)
	spare.close()
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
	written, err := metrics{
		files:          c.files,
		repeated:       c.past.repeated,
		agent:          c.config.Agent,
		source:         c.config.Target,
		failuresAsZero: c.config.FailuresAsZero,
		theirs:         hasTheirs(c.files.Aggregate),
		note:           c.config.Note,
	}.write(ctx)
	c.summary.Aggregated = written
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
	jobs     chan job // for workers that are free
	workers  sync.WaitGroup
	ended    chan attempt
	inFlight int
	stopped  bool // no attempt begins any more
	outage   outage
	slow     slow
	broken   error // why nothing more can be written or read
	gaveUp   error // that an outage was too long
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
	if c.rollouts, err = own(c.files.Rollouts, filelock.Lock, c.config.Note); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.discard())
		}
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
	if err := replace(next, c.files.Inputs); err != nil {
		return err
	}
	if !c.config.Resume || isNewer(c.files.Rollouts, c.files.Aggregate) {
		if err := c.dropMetrics(); err != nil {
			return err
		}
	}
	if c.queue.rows, err = openInputs(c.files.Inputs); err != nil {
		return &OutputError{File: c.files.Inputs, Err: err}
	}
	c.config.Observer.Prepared(c.summary.Owed)
	return nil
}

// dropMetrics takes the metrics of an earlier run away: there may be other results
// from now on.
func (c *collector) dropMetrics() error {
	if err := os.Remove(c.files.Aggregate); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &OutputError{File: c.files.Aggregate, Err: err}
	}
	return nil
}

// isNewer reports whether a file was changed after another.
func isNewer(path, other string) bool {
	a, errA := os.Stat(path)
	b, errB := os.Stat(other)
	return errA != nil || errB != nil || a.ModTime().After(b.ModTime())
}

// prepareInputs writes what this run owes, and reads what an earlier one has left.
func (c *collector) prepareInputs(next string) (err error) {
	var before *earlier
	if c.config.Resume {
		if c.past, err = readPast(c.files, c.config.Drain); err != nil {
			return err
		}
		if before, err = openEarlier(c.files.Inputs, c.past, c.config.Note); err != nil {
			return &OutputError{File: c.files.Inputs, Err: err}
		}
		defer before.close()
		if before.inputs == nil && len(c.past.results)+len(c.past.failures) > 0 {
			c.config.Note(c.files.Inputs + " is not there: nothing shows that the dataset is the one that the output is of")
		}
	}
	if c.summary.Owed, err = prepare(c.config, next, before, c.countFailed); err == nil {
		c.countDone()
	}
	return err
}

// countFailed counts a rollout of which earlier runs have left failures only, when it is
// not tried again.
func (c *collector) countFailed(k key) {
	if _, owed := c.owes(k); owed {
		return
	}
	before, group := c.past.failed(k)
	c.summary.addFailure(k.task, group.FailureGroup, group.example, before.terminal)
	c.config.Observer.FailedBefore()
}

// countDone counts what earlier runs have done: whatever comes of this one, and however
// early it ends, is told together with that. All of it is owed, or this run would not
// begin.
func (c *collector) countDone() {
	for _, k := range slices.SortedFunc(maps.Keys(c.past.results), key.compare) { // sums of floats depend on their order
		result := c.past.results[k]
		c.summary.addResult(k.task, result)
		c.config.Observer.DoneBefore(result.reward, result.masked)
	}
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

func (c *collector) close() error { return c.end((*output).close) }

// discard closes the files of a run that does not go on.
func (c *collector) discard() error { return c.end((*output).discard) }

func (c *collector) end(end func(*output) error) error {
	var errs []error
	if c.queue.rows != nil {
		c.queue.rows.close()
	}
	for _, o := range []*output{c.failures, c.rollouts} { // the lock last
		if o != nil {
			errs = append(errs, end(o))
		}
	}
	return errors.Join(errs...)
}
