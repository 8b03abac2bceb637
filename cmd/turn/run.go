package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

type runCommand struct {
	Dataset string `arg:"" help:"JSONL file with one task a line; .gz is unzipped, - is the standard input."`
	Output  string `short:"o" help:"Rollouts file to write (required); the others are named after it." placeholder:"OUT.jsonl"`
	serverFlags
	accessFlags
	environmentFlags
	Embedded string `help:"Run against an embedded environment instead of --resources and --agent: ${environments}." placeholder:"NAME"`
	modelFlags
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
	Journal             string        `help:"Folder in which open sessions are noted: should this run die, the next one with that folder closes them, before it begins (default: OUT_journal; none: they are not noted)." placeholder:"DIR"`
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
	plan, err := c.plan(time.Now())
	if err != nil {
		return err
	}
	c.Output = plan.shard.Output(c.Output)
	w := c.newWatch(p)
	defer w.close()
	tracing, err := startTracing(w.logger)
	if err != nil {
		return usage(runHint, "%w", err)
	}
	defer tracing.stop()
	target, err := c.target(tracing, w.logger)
	if err != nil {
		return err
	}
	defer target.release()
	signalled, stop := untilSignal(ctx)
	defer stop()
	ctx, cancel := c.untilGrace(ctx, signalled, w.logger)
	defer cancel()
	defer plan.closeLeft(signalled, target.limits)()

	config := c.config(plan, target, w.logger)
	config.Drain, config.Stdin = signalled.Done(), p.Stdin
	config.Observer = w.begin(signalled, plan, target)
	summary, err := collect.Run(ctx, config)
	if err = w.end(summary, err); err != nil && !errors.Is(err, collect.ErrStopped) {
		return c.explain(err, summary)
	}
	return c.status(context.Cause(signalled), summary)
}

// A plan is what the flags and the environment come to.
type plan struct {
	policy retry.Policy
	shard  collect.Shard // the part of the dataset
	budget collect.Budget
}

// plan makes the plan of a run that has begun then.
func (c *runCommand) plan(began time.Time) (plan, error) {
	var p plan
	attempts, err := gymAttempts()
	if err == nil {
		p.policy, err = c.protocolFlags.policy(attempts)
	}
	if err == nil && c.Shard != "" {
		p.shard, err = collect.ParseShard(c.Shard, os.Getenv)
	}
	if err != nil {
		return p, usage(runHint, "%w", err)
	}
	if c.Budget > 0 {
		p.budget = collect.Budget{Deadline: began.Add(c.Budget), Margin: c.DrainMargin}
	}
	return p, c.check()
}

// closeLeft closes what runs have left open that died, and goes on to do so until stop is
// called. A driver that is nil is another program's.
func (p plan) closeLeft(ctx context.Context, driver *episode.Driver) (stop func()) {
	if driver == nil {
		return func() {}
	}
	end := func() {}
	if !p.budget.Deadline.IsZero() {
		ctx, end = context.WithDeadline(ctx, p.budget.Deadline)
	}
	looked, stopLooking := driver.KeepClosingLeft(ctx)
	<-looked
	return func() {
		stopLooking()
		end()
	}
}

// check reports all that is wrong with the flags.
func (c *runCommand) check() error {
	if err := checkOutput(c.Output, runHint); err != nil {
		return err
	}
	var errs []error
	for _, fault := range []struct {
		there bool
		text  string
	}{
		{c.Concurrency < 1, "--concurrency must be at least 1"},
		{c.Repeats < 1, "--repeats must be at least 1"},
		{c.Limit < 0, "--limit must not be negative"},
		{c.Grace < 0 || c.Budget < 0 || c.DrainMargin < 0, "--grace, --budget and --drain-margin must not be negative"},
		{c.DrainMargin > 0 && c.Budget == 0, "--drain-margin is the end of a --budget: give that too"},
		{c.RetryTerminal && !c.Resume, "--retry-terminal is for failures of an earlier run: it needs --resume"},
	} {
		if fault.there {
			errs = append(errs, errors.New(fault.text))
		}
	}
	if len(errs) > 0 {
		return usage(runHint, "%w", errors.Join(errs...))
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

func (c *runCommand) config(plan plan, target *runTarget, logger zerolog.Logger) collect.Config {
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
		Policy:            plan.policy,
		Shard:             plan.shard,
		Budget:            plan.budget,
		Note:              func(text string) { logger.Warn().Msg(text) },
	}
}

func (c *runCommand) params() []collect.Param {
	params := make([]collect.Param, len(c.Param))
	for i, p := range c.Param {
		params[i] = collect.Param(p)
	}
	return params
}

// untilGrace is the context of the episodes: a signal lets none begin any more, and
// ends those under way when the grace is over.
func (c *runCommand) untilGrace(ctx, signalled context.Context, logger zerolog.Logger) (context.Context, context.CancelFunc) {
	ctx, giveUp := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	stop := context.AfterFunc(signalled, func() {
		defer close(ended)
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
		giveUp(nil)
		if !stop() { // it logs
			<-ended
		}
	}
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
