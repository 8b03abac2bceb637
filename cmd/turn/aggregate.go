package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/progress"
	"example.com/turn/resourcesclient"
)

type aggregateCommand struct {
	Patterns []string `arg:"" name:"glob" help:"Rollouts files to join, such as 'out/rollouts.shard-*.jsonl'. The files beside them are found by their names."`
	Output   string   `short:"o" help:"Rollouts file to write (required); the others are named after it." placeholder:"OUT.jsonl"`

	Overwrite           bool   `help:"Replace an earlier output."`
	AllowPartial        bool   `help:"Exit with 0 also when rollouts failed or are missing, or nothing is scored."`
	CountFailuresAsZero bool   `help:"Score a failed rollout with 0 instead of leaving it out."`
	Resources           string `help:"Have this resources server compute the metrics." placeholder:"URL"`
	accessFlags
	environmentFlags
	Name          string   `help:"Name of the environment server, in the rollouts." default:"single_agent_turn"`
	AgentName     string   `help:"Name of the agent server, in the metrics." default:"agent" placeholder:"NAME"`
	MaxReplyBytes byteSize `help:"Limit on the size of a reply." default:"1GiB" placeholder:"SIZE"`
	Quiet         bool     `help:"Show no summary."`
}

func (aggregateCommand) Help() string {
	return `Example, after the runs with --shard 1/2 and --shard 2/2:

    turn aggregate 'out/rollouts.shard-*.jsonl' -o out/rollouts.jsonl

It joins the rollouts, the failures and what was owed, says what is missing or there twice (the first counts), and writes metrics of all results: those of --resources or --environment, or statistics of its own. The joined output can be resumed by turn run.

Exit status: 0 complete; 1 could not go on; 2 usage or input; 3 rollouts failed or are missing, or nothing is scored.`
}

const aggregateHint = "turn aggregate --help"

func (c *aggregateCommand) run(ctx context.Context, p program) error {
	if err := checkOutput(c.Output, aggregateHint); err != nil {
		return err
	}
	if c.Resources != "" && len(c.Environment) > 0 {
		return usage(aggregateHint, "--resources and --environment: one of them computes the metrics")
	}
	if err := c.checkAccess(); err != nil {
		return err
	}
	logger := p.newLogger(p.Stderr, p.Stderr)
	metrics, err := c.metrics(logger)
	if err != nil {
		return usage(aggregateHint, "%w", err)
	}
	signalled, stop := untilSignal(ctx)
	defer stop()
	joined, err := collect.Aggregate(signalled, collect.AggregateConfig{
		Patterns:       c.Patterns,
		Output:         c.Output,
		Overwrite:      c.Overwrite,
		FailuresAsZero: c.CountFailuresAsZero,
		Agent:          c.AgentName,
		Metrics:        metrics,
		Note:           func(text string) { logger.Warn().Msg(text) },
	})
	if joined != nil && !c.Quiet {
		_ = c.report(joined).WriteText(p.Stderr) // nobody could be told
	}
	if err != nil && !errors.Is(err, collect.ErrStopped) {
		return explainAggregate(err)
	}
	var signal stopSignal
	if errors.As(context.Cause(signalled), &signal) && (joined == nil || !joined.Aggregated) {
		return &exitError{status: signal.status()}
	}
	return partly(&joined.Summary, joined.Complete() && len(joined.MissingShards) == 0, c.AllowPartial)
}

// checkAccess reports flags for calls that are not made.
func (c *aggregateCommand) checkAccess() error {
	switch {
	case c.ServerTokenFile != "" && c.Resources == "":
		return usage(aggregateHint, "--server-token-file is for the server of --resources: it needs that")
	case c.CAFile != "" && c.Resources == "" && len(c.Environment) == 0:
		return usage(aggregateHint, "--ca-file is for the servers of --resources or --environment: it needs one of them")
	}
	return c.checkToken(aggregateHint)
}

// metrics is who computes the metrics; nil: nobody else does.
func (c *aggregateCommand) metrics(logger zerolog.Logger) (collect.MetricsSource, error) {
	if len(c.Environment) > 0 {
		return c.environments(c.Name, c.caFlags, int64(c.MaxReplyBytes), logger)
	}
	if c.Resources == "" {
		return nil, nil
	}
	access, err := c.access()
	if err != nil {
		return nil, err
	}
	config := resourcesclient.Config{
		URL:           c.Resources,
		Token:         access.token,
		Transport:     pool.Trusting(access.roots),
		MaxReplyBytes: int64(c.MaxReplyBytes),
		Logger:        logger,
	}
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("--resources: %w", err)
	}
	return collect.Resources{Client: resourcesclient.New(config)}, nil
}

func explainAggregate(err error) error {
	var (
		input  *collect.InputError
		exists *collect.ExistsError
		owned  *collect.OwnedError
		lost   *collect.ChangedError
	)
	switch {
	case errors.As(err, &lost):
		return usage("a pattern that matches that output too, or another -o, or remove it", "%w", err)
	case errors.As(err, &owned):
		return &exitError{status: exitFailed, err: err, hint: "wait until it has ended, or another -o"}
	case errors.As(err, &input):
		return &exitError{status: exitUsage, err: err}
	case errors.As(err, &exists):
		return usage("--overwrite to replace it, or another -o", "%w", err)
	}
	return err
}

// report is what came out of the joined runs.
func (c *aggregateCommand) report(joined *collect.Joined) progress.Report {
	report := progress.Report{Summary: &joined.Summary, Files: collect.FilesOf(c.Output)}
	if len(joined.MissingShards) > 0 {
		report.Notes = append(report.Notes, progress.Note{Name: "no shard", Text: someOf(joined.MissingShards) + ": no such file was joined, and what it owed is counted nowhere"})
	}
	if n := len(joined.Missing); n > 0 {
		report.Notes = append(report.Notes, progress.Note{Name: "missing", Text: someOf(namesOf(joined.Missing))})
		report.Next = append(report.Next, fmt.Sprintf("turn run with --resume on the shard, or on the joined output, runs the %d that are missing", n))
	}
	if retryable := joined.Failed - joined.FailedForGood; retryable > 0 {
		report.Next = append(report.Next, fmt.Sprintf("turn run with --resume and a higher --max-attempts, on the joined output, tries the %d again that did not fail for good", retryable))
	}
	if len(joined.Twice) > 0 {
		report.Notes = append(report.Notes, progress.Note{Name: "twice", Text: someOf(namesOf(joined.Twice)) + ": the first result of each counts"})
	}
	return report
}

// namesOf are the names of rollouts, in their order.
func namesOf(rollouts []collect.Rollout) []string {
	var names []string
	for _, r := range slices.SortedFunc(slices.Values(rollouts), collect.Rollout.Compare) {
		names = append(names, fmt.Sprintf("%d-%d (%s)", r.TaskIndex, r.RolloutIndex, r.TaskID))
	}
	return names
}

// someOf are names, the first ten at most.
func someOf(names []string) string {
	const most = 10
	if more := len(names) - most; more > 0 {
		names = append(names[:most:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
