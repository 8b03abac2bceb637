package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/progress"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

type runCommand struct {
	Dataset string `arg:"" help:"JSONL file with one task a line; .gz is unzipped, - is the standard input."`
	Output  string `short:"o" help:"Rollouts file to write (required); the others are named after it." placeholder:"OUT.jsonl"`
	serverFlags
	environmentFlags
	Embedded            string        `help:"Run against an embedded environment instead of --resources and --agent: weather." placeholder:"NAME"`
	Concurrency         int           `help:"How many episodes are in flight." default:"64"`
	Repeats             int           `help:"Rollouts of each row." default:"1"`
	Limit               int           `help:"Read only the first N rows (default: all)." placeholder:"N"`
	Shard               string        `help:"Run part i of n of the tasks, into OUT.shard-i-of-n.jsonl: i/n, auto in a Slurm job array, auto/n in a Kubernetes Indexed Job." placeholder:"i/n"`
	Taskset             string        `help:"Taskset of flat rows (default: their task_source, or the dataset's name)." placeholder:"NAME"`
	Param               []param       `help:"Set a field of responses_create_params in every row." placeholder:"NAME=JSON" sep:"none"`
	AllowDuplicateIDs   bool          `name:"allow-duplicate-ids" help:"Let two different rows have one task id."`
	Resume              bool          `help:"Go on where an earlier run of the same dataset ended." xor:"output"`
	Overwrite           bool          `help:"Replace an earlier output." xor:"output"`
	RetryTerminal       bool          `help:"With --resume: try those once more whose failure was terminal."`
	AllowPartial        bool          `help:"Exit with 0 also when rollouts failed or are missing, or nothing is scored."`
	CountFailuresAsZero bool          `help:"Score a failed rollout with 0 instead of leaving it out."`
	Budget              time.Duration `help:"Time that the run has: what is in flight at its end is cancelled, and then closed, for which --cleanup-timeout gives each of two calls time (default: no limit)." placeholder:"D"`
	DrainMargin         time.Duration `help:"How long before the end of --budget no episode begins any more (default: as long as 3 of 4 episodes took, once 5 have ended)." placeholder:"D"`
	Grace               time.Duration `help:"How long running episodes may go on after SIGTERM or SIGINT; then their two closes run, each within --cleanup-timeout." default:"60s"`
	JSON                bool          `name:"json" help:"Write what happens to the standard output, one JSON object a line."`
	Quiet               bool          `help:"Show no progress and no summary."`
	protocolFlags
}

func (runCommand) Help() string {
	return `Example:

    turn run testdata/weather.jsonl --embedded weather -o out/rollouts.jsonl

Results are written to OUT.jsonl, failed attempts to OUT_failures.jsonl, what was owed to OUT_materialized_inputs.jsonl, and metrics of all results to OUT_aggregate_metrics.json.

A rollout that fails is tried again behind all others, --max-attempts times in all. An environment server may try again by itself, as turn serve does: start that with --max-attempts 1, or a rollout is tried 9 times.

Exit status: 0 complete; 1 could not go on; 2 usage or input; 3 finished, but with failed or missing rollouts, or with nothing scored; 129, 130 or 143 interrupted. On SIGINT, SIGTERM or SIGHUP no new episode starts, running ones get --grace and are then cancelled, their sessions are closed; a second signal ends it at once. SIGUSR1 prints how it stands.`
}

const waitingForDataset = "waiting for the dataset"

const runHint = "turn run --help"

// A param is a field of responses_create_params and its value in JSON.
type param collect.Param

// UnmarshalText reads NAME=JSON.
func (p *param) UnmarshalText(text []byte) error {
	name, value, ok := strings.Cut(string(text), "=")
	if !ok || name == "" {
		return fmt.Errorf("%q is not NAME=JSON", text)
	}
	if !rawjson.Valid([]byte(value)) {
		return fmt.Errorf("%q is not JSON; text needs quotes of its own: '%s=\"…\"'", value, name)
	}
	p.Name, p.Value = name, []byte(value)
	return nil
}

func (c *runCommand) run(ctx context.Context, p program) error {
	began := time.Now()
	policy, err := c.policy()
	if err != nil {
		return usage(runHint, "%w", err)
	}
	shard, err := c.shard()
	if err != nil {
		return usage(runHint, "%w", err)
	}
	if err := c.check(); err != nil {
		return err
	}
	c.Output = shard.Output(c.Output)
	stderr := progress.NewOutlet(p.Stderr)
	defer stderr.Close()
	meter, screen := c.progress(p, stderr)
	logger := newLogger(p.Stderr, screen)
	target, err := c.target(logger)
	if err != nil {
		return err
	}
	defer target.release()

	signalled, stop := untilSignal(ctx)
	defer stop()
	ctx, cancel := c.untilGrace(ctx, signalled, logger)
	defer cancel()
	config := c.config(target, policy, logger)
	config.Shard, config.Budget = shard, c.budget(began)
	config.Drain, config.Stdin = signalled.Done(), p.Stdin
	listened, cancel := c.untilBudget(signalled, config.Budget)
	defer cancel()
	stdout := progress.NewPatientOutlet(p.Stdout, listened.Done(), func() {
		logger.Warn().Msg("nobody reads the events on the standard output: the run waits until somebody does, or it is stopped")
	})
	defer stdout.Close()
	observers, events := c.observers(meter, stdout)
	if len(c.Environment) > 0 {
		observers = append(observers, progress.FailureLog{Logger: logger})
	}
	config.Observer = observers
	if !c.Quiet {
		config.Observer = append(observers, beginning{told: func(owed collect.Owed) {
			c.logStart(logger, target, policy, shard, owed)
			c.warnOfTools(logger, target, owed)
		}})
		if collect.IsSlow(c.Dataset) {
			logger.Info().Str("dataset", c.Dataset).Msg(waitingForDataset)
		}
	}
	defer whenAsked(screen)()
	c.start(screen, events)
	summary, err := collect.Run(ctx, config)
	screen.Stop()
	if err == nil || summary.Attempts > 0 {
		report := progress.Report{Summary: summary, Files: collect.FilesOf(c.Output), Next: next(summary)}
		stderr.Drain()
		c.tell(report, events, stderr)
		stdout.Close()
		if broken := stdout.Err(); broken != nil && !errors.Is(broken, syscall.EPIPE) { // who has read enough may go
			err = errors.Join(err, fmt.Errorf("--json: %w", broken))
		}
	}
	if err != nil && !errors.Is(err, collect.ErrStopped) {
		return c.explain(err, summary)
	}
	return c.status(context.Cause(signalled), summary)
}

// tell says what came out, to whoever wants to know.
func (c *runCommand) tell(report progress.Report, events *progress.Events, stderr io.Writer) {
	if !c.Quiet {
		_ = report.WriteText(stderr) // nobody could be told
	}
	if events != nil {
		events.Summary(report)
	}
}

// untilBudget is for how long whoever reads the events is waited for.
func (c *runCommand) untilBudget(signalled context.Context, budget collect.Budget) (context.Context, context.CancelFunc) {
	if budget.Deadline.IsZero() {
		return context.WithCancel(signalled)
	}
	return context.WithDeadline(signalled, budget.Deadline)
}

// shard is the part of the dataset that the flag names.
func (c *runCommand) shard() (collect.Shard, error) {
	if c.Shard == "" {
		return collect.Shard{}, nil
	}
	return collect.ParseShard(c.Shard, os.Getenv)
}

func (c *runCommand) budget(began time.Time) collect.Budget {
	if c.Budget == 0 {
		return collect.Budget{}
	}
	return collect.Budget{Deadline: began.Add(c.Budget), Margin: c.DrainMargin}
}

// observers are told of what happens: the meter, and the events where they are
// wanted.
func (c *runCommand) observers(meter *progress.Meter, stdout io.Writer) (progress.Observers, *progress.Events) {
	if !c.JSON {
		return progress.Observers{meter}, nil
	}
	events := progress.NewEvents(meter, stdout)
	return progress.Observers{meter, events}, events
}

// start shows how the run stands every now and then, to whoever wants to know.
func (c *runCommand) start(screen *progress.Screen, events *progress.Events) {
	if events != nil {
		screen.Every(eventInterval, events.Progress)
	}
	if !c.Quiet {
		screen.Start()
	}
}

// eventInterval is how often a progress event is written.
const eventInterval = 10 * time.Second

// next says what can be done about rollouts that have no result.
func next(s *collect.Summary) []string {
	var next []string
	if s.Missing() > 0 {
		next = append(next, fmt.Sprintf("the same command with --resume runs the %d that are missing", s.Missing()))
	}
	if retryable := s.Failed - s.FailedForGood; retryable > 0 {
		next = append(next, fmt.Sprintf("with --resume and a higher --max-attempts, the %d that did not fail for good are tried again", retryable))
	}
	if s.FailedForGood > 0 {
		next = append(next, fmt.Sprintf("once their cause is mended, --resume --retry-terminal tries the %d that failed for good once more", s.FailedForGood))
	}
	return next
}

// policy is the redispatch policy that the flags and Gym's environment make.
func (c *runCommand) policy() (retry.Policy, error) {
	attempts, err := gymAttempts()
	if err != nil {
		return retry.Policy{}, err
	}
	return c.protocolFlags.policy(attempts)
}

func (c *runCommand) config(target *runTarget, policy retry.Policy, logger zerolog.Logger) collect.Config {
	return collect.Config{
		Dataset:           c.Dataset,
		Output:            c.Output,
		Overwrite:         c.Overwrite,
		Resume:            c.Resume,
		RetryTerminal:     c.RetryTerminal,
		Taskset:           c.Taskset,
		Limit:             c.Limit,
		Repeats:           c.Repeats,
		Params:            c.params(),
		AllowDuplicateIDs: c.AllowDuplicateIDs,
		FailuresAsZero:    c.CountFailuresAsZero,
		Target:            target,
		Agent:             target.agent,
		Concurrency:       c.Concurrency,
		Policy:            policy,
		Note:              func(text string) { logger.Warn().Msg(text) },
	}
}

// untilGrace is the context of the episodes: a signal lets none begin any more, and
// ends those under way when the grace is over.
func (c *runCommand) untilGrace(ctx, signalled context.Context, logger zerolog.Logger) (context.Context, context.CancelFunc) {
	ctx, giveUp := context.WithCancelCause(ctx)
	stop := context.AfterFunc(signalled, func() {
		logger.Warn().Str("grace", c.Grace.String()).Msg("stopping: no new episode starts; a second signal ends at once")
		timer := time.NewTimer(c.Grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			giveUp(&failures.Stop{Kind: failures.Shutdown, Reason: "the run was stopped"})
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		stop()
		giveUp(nil)
	}
}

// logStart says every limit that is in force.
func (c *runCommand) logStart(logger zerolog.Logger, target *runTarget, policy retry.Policy, shard collect.Shard, owed collect.Owed) {
	event := logger.Info().Str("dataset", c.Dataset).Int("rollouts", owed.Rollouts).Int("tasks", owed.Tasks)
	if c.Resume {
		event.Int("done_before", owed.Done).Int("failed_before", owed.Tried)
	}
	event.Int("concurrency", c.Concurrency).Str("grace", c.Grace.String()).Str("budget", orNone(c.Budget))
	if !shard.IsWhole() {
		event.Int("shard", shard.Part).Int("shards", shard.Of)
	}
	if target.limits != nil {
		logLimits(event, target.limits, c.protocolFlags, policy).Msg("running")
		return
	}
	event.Str("episode_timeout", orNone(c.episodeTimeout(0))).Stringer("max_reply_bytes", c.MaxReplyBytes)
	for _, route := range c.Environment {
		event.Str("environment_"+cmp.Or(route.taskset, c.Name), route.url)
	}
	event.Int("max_attempts", policy.Attempts()).Str("retry_backoff", policy.Backoff.String()).Msg("running")
}

// checkOutput reports an output that no files could be named after.
func checkOutput(output, hint string) error {
	switch {
	case output == "":
		return usage(hint, "-o OUT.jsonl is missing: where the results go")
	case !strings.HasSuffix(output, ".jsonl"):
		return usage(hint, "the output %s should end in .jsonl: the other files are named after it", output)
	case collect.IsBeside(output):
		return usage(hint, "the output %s has the name of a file that belongs to another output", output)
	}
	return nil
}

// warnOfTools warns of what an agent will fail for: that it is offered tools and
// nobody has said how it may call them.
func (c *runCommand) warnOfTools(logger zerolog.Logger, target *runTarget, owed collect.Owed) {
	if owed.Tools && target.limits != nil && len(c.ToolTransport) == 0 {
		logger.Warn().Msg("rows offer the agent tools, and no --tool-transport says how it may call those of the resources server")
	}
}

// check reports flags that do not go together.
func (c *runCommand) check() error {
	if err := checkOutput(c.Output, runHint); err != nil {
		return err
	}
	switch {
	case c.Concurrency < 1:
		return usage(runHint, "--concurrency must be at least 1")
	case c.Repeats < 1:
		return usage(runHint, "--repeats must be at least 1")
	case c.Limit < 0:
		return usage(runHint, "--limit must not be negative")
	case c.Grace < 0 || c.Budget < 0 || c.DrainMargin < 0:
		return usage(runHint, "--grace, --budget and --drain-margin must not be negative")
	case c.DrainMargin > 0 && c.Budget == 0:
		return usage(runHint, "--drain-margin is the end of a --budget: give that too")
	case c.RetryTerminal && !c.Resume:
		return usage(runHint, "--retry-terminal is for failures of an earlier run: it needs --resume")
	}
	if err := c.checkTarget(); err != nil {
		return err
	}
	if c.Dataset != "-" {
		if _, err := os.Stat(c.Dataset); err != nil {
			return usage(runHint, "no dataset: %w", err)
		}
	}
	return nil
}

func (c *runCommand) params() []collect.Param {
	params := make([]collect.Param, len(c.Param))
	for i, p := range c.Param {
		params[i] = collect.Param(p)
	}
	return params
}

// progress makes the meter of the run and the screen that shows it, on out, which
// stands before the program's standard error.
func (c *runCommand) progress(p program, out io.Writer) (*progress.Meter, *progress.Screen) {
	meter := &progress.Meter{FailuresAsZero: c.CountFailuresAsZero}
	if file, ok := p.Stderr.(*os.File); ok && isTerminal(file) && !isDumb() && !(c.JSON && isTerminal(p.Stdout)) { // one line at a time there
		return meter, progress.NewLiveScreen(meter, out, int(file.Fd()))
	}
	return meter, progress.NewScreen(meter, out)
}

// explain gives an error of the run its exit status and says what to try.
func (c *runCommand) explain(err error, summary *collect.Summary) error {
	var (
		input   *collect.InputError
		exists  *collect.ExistsError
		changed *collect.ChangedError
		owned   *collect.OwnedError
		output  *collect.OutputError
		outage  *collect.OutageError
	)
	switch {
	case errors.As(err, &input):
		return &exitError{status: exitUsage, err: err, hint: c.hintOnInput(input)}
	case errors.As(err, &exists):
		return usage("--resume to go on where it ended, --overwrite to replace it, or another -o", "%w", err)
	case errors.As(err, &outage):
		return &exitError{status: exitFailed, err: err, hint: "once the server is there, the same command with --resume"}
	case errors.As(err, &owned):
		return &exitError{status: exitFailed, err: err, hint: "wait until it has ended, or another -o"}
	case errors.As(err, &changed):
		return usage("--overwrite to begin anew, or another -o", "%w", err)
	case errors.As(err, &output) && summary.Attempts == 0:
		return &exitError{status: exitFailed, err: err, hint: "mend that, or another -o"}
	case errors.As(err, &output):
		return &exitError{status: exitFailed, err: err, hint: "mend that, then the same command with --resume: what was written is kept"}
	}
	return err
}

// hintOnInput says what to try when a file is not what it should be.
func (c *runCommand) hintOnInput(input *collect.InputError) string {
	files := collect.FilesOf(c.Output)
	if input.Line > 0 && slices.Contains([]string{files.Rollouts, files.Failures, files.Inputs}, input.File) {
		return "mend or remove that line, or --overwrite to begin anew"
	}
	return ""
}

// beginning is told when a run has read its dataset and its first attempt is about
// to begin.
type beginning struct {
	collect.Unobserved
	told func(collect.Owed)
}

func (b beginning) Prepared(owed collect.Owed) { b.told(owed) }

// status is the exit status of a run that came to its end.
func (c *runCommand) status(stopped error, summary *collect.Summary) error {
	var signal stopSignal
	if errors.As(stopped, &signal) {
		return &exitError{status: signal.status()}
	}
	return partly(summary, summary.Complete(), c.AllowPartial)
}

// partly is the exit status of what lacks results, or has none to score: whatever
// goes by it must not go on without any data.
func partly(summary *collect.Summary, complete, allowed bool) error {
	nothing := summary.Owed.Rollouts > 0 && summary.Scored() == 0
	if (nothing || !complete) && !allowed {
		return &exitError{status: exitPartly}
	}
	return nil
}
