package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/progress"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

type runCommand struct {
	Dataset string `arg:"" help:"JSONL file with one task a line; .gz is unzipped, - is the standard input."`
	Output  string `short:"o" help:"Rollouts file to write; the others are named after it." placeholder:"OUT.jsonl"`
	serverFlags
	Embedded          string        `help:"Run against an embedded environment instead of --resources and --agent: weather." placeholder:"NAME"`
	Concurrency       int           `help:"How many episodes are in flight." default:"64"`
	Repeats           int           `help:"Rollouts of each row." default:"1"`
	Limit             int           `help:"Read only the first N rows (default: all)." placeholder:"N"`
	Taskset           string        `help:"Taskset of flat rows (default: their task_source, or the dataset's name)." placeholder:"NAME"`
	Param             []param       `help:"Set a field of responses_create_params in every row." placeholder:"NAME=JSON" sep:"none"`
	AllowDuplicateIDs bool          `name:"allow-duplicate-ids" help:"Let two different rows have one task id."`
	Resume            bool          `help:"Go on where an earlier run of the same dataset ended." xor:"output"`
	Overwrite         bool          `help:"Replace an earlier output." xor:"output"`
	AllowPartial      bool          `help:"Exit with 0 also when rollouts failed or are missing."`
	Grace             time.Duration `help:"How long running episodes may go on after SIGTERM or SIGINT." default:"60s"`
	Quiet             bool          `help:"Show no progress and no summary."`
	protocolFlags
}

func (runCommand) Help() string {
	return `Example:

    turn run testdata/weather.jsonl --embedded weather -o out/rollouts.jsonl

Results are written to OUT.jsonl, failed attempts to OUT_failures.jsonl, and what was owed to OUT_materialized_inputs.jsonl.

Exit status: 0 complete; 1 could not go on; 2 usage or input; 3 finished, but with failed or missing rollouts; 130 or 143 interrupted. On SIGINT or SIGTERM no new episode starts, running ones get --grace and are then cancelled, their sessions are closed; a second signal ends it at once.`
}

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
	if err := c.check(); err != nil {
		return err
	}
	policy, err := c.policy()
	if err != nil {
		return usage(runHint, "%w", err)
	}
	meter, screen := c.progress(p.Stderr)
	logger := newLogger(p.Stderr, screen)
	if c.Embedded != "" {
		e, err := serveEmbedded(c.Embedded, "127.0.0.1:0", "127.0.0.1:0", logger)
		if err != nil {
			return err
		}
		defer func() { _ = e.close() }() // its sessions end with this process
		c.drive(e)
	}
	driver, err := newDriver(driverConfig(c.serverFlags, c.protocolFlags, logger), runHint)
	if err != nil {
		return err
	}
	defer driver.Close()

	signalled, stop := untilSignal(ctx)
	defer stop()
	ctx, cancel := c.untilGrace(ctx, signalled, driver, logger)
	defer cancel()
	if !c.Quiet {
		c.logStart(logger, driver, policy)
		screen.Start()
	}
	config := c.config(driver, policy, logger)
	config.Observer, config.Stdin = meter, untilStopped(signalled, p.Stdin)
	summary, err := collect.Run(ctx, config)
	screen.Stop()
	if err != nil && !errors.Is(err, collect.ErrStopped) {
		return c.explain(err)
	}
	if !c.Quiet && err == nil {
		printSummary(p.Stderr, summary, c.Output)
	}
	return c.status(context.Cause(signalled), summary)
}

// policy is the redispatch policy that the flags and Gym's environment make.
func (c *runCommand) policy() (retry.Policy, error) {
	attempts, err := gymAttempts()
	if err != nil {
		return retry.Policy{}, err
	}
	return c.protocolFlags.policy(attempts)
}

func (c *runCommand) config(driver *episode.Driver, policy retry.Policy, logger zerolog.Logger) collect.Config {
	return collect.Config{
		Dataset:           c.Dataset,
		Output:            c.Output,
		Overwrite:         c.Overwrite,
		Resume:            c.Resume,
		Name:              c.Name,
		Taskset:           c.Taskset,
		Limit:             c.Limit,
		Repeats:           c.Repeats,
		Params:            c.params(),
		AllowDuplicateIDs: c.AllowDuplicateIDs,
		Driver:            driver,
		Concurrency:       c.Concurrency,
		Policy:            policy,
		Note:              func(text string) { logger.Warn().Msg(text) },
	}
}

// untilGrace is the context of the episodes: a signal lets none begin any more, and
// ends those under way when the grace is over.
func (c *runCommand) untilGrace(ctx, signalled context.Context, driver *episode.Driver, logger zerolog.Logger) (context.Context, context.CancelFunc) {
	ctx, giveUp := context.WithCancelCause(ctx)
	stop := context.AfterFunc(signalled, func() {
		driver.Drain()
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
func (c *runCommand) logStart(logger zerolog.Logger, driver *episode.Driver, policy retry.Policy) {
	event := logger.Info().Str("dataset", c.Dataset).Int("concurrency", c.Concurrency).Str("grace", c.Grace.String())
	logLimits(event, driver, c.protocolFlags, policy).Msg("running")
}

// check reports flags that do not go together.
func (c *runCommand) check() error {
	switch {
	case c.Output == "":
		return usage(runHint, "run needs -o OUT.jsonl")
	case !strings.HasSuffix(c.Output, ".jsonl"):
		return usage(runHint, "the output %s should end in .jsonl: the other files are named after it", c.Output)
	case c.Embedded != "" && (c.Resources != "" || c.Agent != ""):
		return usage(runHint, "--embedded brings servers of its own: leave out --resources and --agent")
	case c.Embedded == "" && (c.Resources == "" || c.Agent == ""):
		return usage(runHint, "run needs --resources URL and --agent URL, or --embedded NAME")
	case c.Concurrency < 1:
		return usage(runHint, "--concurrency must be at least 1")
	case c.Repeats < 1:
		return usage(runHint, "--repeats must be at least 1")
	case c.Limit < 0:
		return usage(runHint, "--limit must not be negative")
	case c.Grace < 0:
		return usage(runHint, "--grace must not be negative")
	}
	if c.Dataset != "-" {
		if _, err := os.Stat(c.Dataset); err != nil {
			return usage(runHint, "no dataset: %w", err)
		}
	}
	if !c.Resume && !c.Overwrite {
		if err := collect.FilesOf(c.Output).CheckFree(); err != nil {
			return c.explain(err)
		}
	}
	return nil
}

// drive points the flags at an embedded environment.
func (c *runCommand) drive(e *embedded) {
	c.Resources, c.Agent = e.resourcesURL(), e.agentURL()
	c.ResourcesName, c.AgentName = e.environment.ResourcesName, e.environment.AgentName
	if len(c.ToolTransport) == 0 {
		c.ToolTransport = e.environment.ToolTransports
	}
}

func (c *runCommand) params() []collect.Param {
	params := make([]collect.Param, len(c.Param))
	for i, p := range c.Param {
		params[i] = collect.Param(p)
	}
	return params
}

// untilStopped reads from r until ctx ends, also when r has nothing to give: a
// terminal, or a pipe that nobody writes to. What is read of r is then lost, as it
// is when the process ends.
func untilStopped(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	var begin sync.Once
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(collect.ErrStopped) }) // it never fails
	return readerFunc(func(p []byte) (int, error) {
		begin.Do(func() {
			go func() { // ends with its input, at the latest with the process
				_, err := io.Copy(in, r)
				_ = in.CloseWithError(err) // it never fails
			}()
		})
		return out.Read(p)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// progress makes the meter of the run and the screen that shows it.
func (c *runCommand) progress(w io.Writer) (*progress.Meter, *progress.Screen) {
	meter := &progress.Meter{}
	if file, ok := w.(*os.File); ok && isTerminal(w) {
		return meter, progress.NewLiveScreen(meter, w, int(file.Fd()))
	}
	return meter, progress.NewScreen(meter, w)
}

// explain gives an error of the run its exit status and says what to try.
func (c *runCommand) explain(err error) error {
	var (
		input   *collect.InputError
		exists  *collect.ExistsError
		changed *collect.ChangedError
		output  *collect.OutputError
	)
	switch {
	case errors.As(err, &input):
		return &exitError{status: exitUsage, err: err}
	case errors.As(err, &exists):
		return usage("--resume to go on where it ended, --overwrite to replace it, or another -o", "%w", err)
	case errors.As(err, &changed):
		return usage("--overwrite to begin anew, or another -o", "%w", err)
	case errors.As(err, &output):
		return &exitError{status: exitFailed, err: err, hint: "mend that, then the same command with --resume: what was written is kept"}
	}
	return err
}

// status is the exit status of a run that came to its end.
func (c *runCommand) status(stopped error, summary collect.Summary) error {
	var signal stopSignal
	if errors.As(stopped, &signal) {
		return &exitError{status: signal.status()}
	}
	if !c.AllowPartial && (summary.Failed > 0 || summary.Missing() > 0) {
		return &exitError{status: exitPartly}
	}
	return nil
}

func printSummary(w io.Writer, s collect.Summary, output string) {
	files := collect.FilesOf(output)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(w, "%-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("done", "%d of %d rollouts (%d masked, %d failed, %d missing), in %d attempts", s.Done, s.Owed, s.Masked, s.Failed, s.Missing(), s.Attempts)
	for _, f := range s.Failures() {
		line("failed", "%d in %s%s, such as: %s", f.Count, f.Stage, inBrackets(string(f.Kind)), onOneLine(f.Example))
	}
	if s.TimedOut > 0 {
		line("timed out", "%d agents; what there was of their answers was verified", s.TimedOut)
	}
	if mean, ok := s.Mean(); ok {
		line("reward", "mean %.3f over %d results that are not masked", mean, s.Scored())
	} else {
		line("reward", "none: there is no result that is not masked")
	}
	if s.Attempts > 0 {
		line("time", "p50 %s, p90 %s, p99 %s an episode", rounded(s.Quantile(0.5)), rounded(s.Quantile(0.9)), rounded(s.Quantile(0.99)))
	}
	line("results", "%s", files.Rollouts)
	if s.Failed > 0 {
		line("failures", "%s", files.Failures)
	}
	if s.Missing() > 0 {
		line("next", "the same command with --resume runs the %d that are missing", s.Missing())
	}
	if retryable := s.Failed - s.FailedForGood; retryable > 0 {
		line("next", "with --resume and a higher --max-attempts, the %d that did not fail for good are tried again", retryable)
	}
}

// onOneLine is a server's words as a terminal may be given them.
func onOneLine(words string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, words)
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// rounded is a duration in three digits or so.
func rounded(d time.Duration) time.Duration {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond)
	case d < 10*time.Second:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
