package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/progress"
)

// A watch is what a person, and a machine, see of a run.
type watch struct {
	command *runCommand
	program program
	stderr  *progress.Outlet
	meter   *progress.Meter
	screen  *progress.Screen
	logger  zerolog.Logger // through the screen

	stdout  *progress.Outlet // of the events
	events  *progress.Events // nil: nobody wants them
	release []func()
}

func (c *runCommand) newWatch(p program) *watch {
	w := &watch{command: c, program: p, stderr: progress.NewOutlet(p.Stderr), meter: &progress.Meter{FailuresAsZero: c.CountFailuresAsZero}}
	w.screen = progress.NewScreen(w.meter, w.stderr)
	if file, ok := p.Stderr.(*os.File); ok && isTerminal(file) && !isDumb() && !(c.JSON && isTerminal(p.Stdout)) { // one line at a time there
		w.screen = progress.NewLiveScreen(w.meter, w.stderr, int(file.Fd()))
	}
	w.logger = p.newLogger(p.Stderr, w.screen)
	return w
}

// begin shows how the run stands from now on, and returns who is to be told of it.
func (w *watch) begin(signalled context.Context, plan plan, target *runTarget) collect.Observer {
	observers := progress.Observers{w.meter}
	if w.command.JSON {
		w.listen(signalled, plan.budget)
		observers = append(observers, w.events)
		w.screen.Every(eventInterval, w.events.Progress)
	}
	if len(w.command.Environment) > 0 {
		observers = append(observers, progress.FailureLog{Logger: w.logger})
	}
	w.release = append(w.release, whenAsked(w.screen))
	if w.command.Quiet {
		return observers
	}
	if collect.IsSlow(w.command.Dataset) {
		w.logger.Info().Str("dataset", w.command.Dataset).Msg(waitingForDataset)
	}
	w.screen.Start()
	return append(observers, beginning{told: func(owed collect.Owed) {
		w.command.logStart(w.logger, plan, target, owed)
		w.command.warnOfTools(w.logger, target, owed)
	}})
}

// eventInterval is how often a progress event is written.
const eventInterval = 10 * time.Second

// listen opens the standard output for events. Whoever reads them is waited for until a
// signal comes or the budget is used up.
func (w *watch) listen(signalled context.Context, budget collect.Budget) {
	listened, cancel := signalled, func() {}
	if !budget.Deadline.IsZero() {
		listened, cancel = context.WithDeadline(signalled, budget.Deadline)
	}
	w.stdout = progress.NewPatientOutlet(w.program.Stdout, listened.Done(), func() {
		w.logger.Warn().Msg("nobody reads the events on the standard output: the run waits until somebody does, or it is stopped")
	})
	w.events = progress.NewEvents(w.meter, w.stdout)
	w.release = append(w.release, cancel, w.stdout.Close)
}

// end says what came out of a run, if it has begun, and returns its error, or that
// events could not be written.
func (w *watch) end(summary *collect.Summary, err error) error {
	w.screen.Stop()
	if err != nil && summary.Attempts == 0 {
		return err
	}
	report := progress.Report{Summary: summary, Files: collect.FilesOf(w.command.Output), Next: next(summary)}
	if !w.command.Quiet {
		w.stderr.Drain()
		_ = report.WriteText(w.stderr) // nobody could be told
	}
	if w.events == nil {
		return err
	}
	w.events.Summary(report)
	w.stdout.Close()
	if broken := w.stdout.Err(); broken != nil && !errors.Is(broken, syscall.EPIPE) { // who has read enough may go
		err = errors.Join(err, fmt.Errorf("--json: %w", broken))
	}
	return err
}

func (w *watch) close() {
	for _, release := range w.release {
		release()
	}
	w.stderr.Close()
}

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

// beginning is told when a run has read its dataset and its first attempt is about
// to begin.
type beginning struct {
	collect.Unobserved
	told func(collect.Owed)
}

func (b beginning) Prepared(owed collect.Owed) { b.told(owed) }

// logStart says every limit that is in force.
func (c *runCommand) logStart(logger zerolog.Logger, plan plan, target *runTarget, owed collect.Owed) {
	event := logger.Info().Str("dataset", c.Dataset).Int("rollouts", owed.Rollouts).Int("tasks", owed.Tasks)
	if c.Resume {
		event.Int("done_before", owed.Done).Int("failed_before", owed.Tried)
	}
	event.Int("concurrency", c.Concurrency).Str("grace", c.Grace.String()).Str("budget", orNone(c.Budget))
	if !plan.shard.IsWhole() {
		event.Int("shard", plan.shard.Part).Int("shards", plan.shard.Of)
	}
	c.modelFlags.log(event)
	if target.limits != nil {
		logLimits(event, target.limits, c.protocolFlags, plan.policy).Msg("running")
		return
	}
	event.Bool("environment_token", c.EnvironmentTokenFile != "")
	event.Str("episode_timeout", orNone(c.episodeTimeout(0))).Stringer("max_reply_bytes", c.MaxReplyBytes)
	for _, route := range c.Environment {
		event.Str("environment_"+cmp.Or(route.taskset, c.Name), route.url)
	}
	event.Int("max_attempts", plan.policy.Attempts()).Str("retry_backoff", plan.policy.Backoff.String()).Msg("running")
}

// warnOfTools warns of what an agent will fail for: that it is offered tools and
// nobody has said how it may call them.
func (c *runCommand) warnOfTools(logger zerolog.Logger, target *runTarget, owed collect.Owed) {
	if owed.Tools && target.limits != nil && len(c.ToolTransport) == 0 {
		logger.Warn().Msg("rows offer the agent tools, and no --tool-transport says how it may call those of the resources server")
	}
}
