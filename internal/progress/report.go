package progress

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/score"
)

// A Report tells what came out of a run.
type Report struct {
	Summary *collect.Summary
	Files   collect.Files
	// Notes are lines of what else there is to know.
	Notes []Note
	// Next are sentences that say what can be done now.
	Next []string
}

// A Note is a line of a report.
type Note struct{ Name, Text string }

// WriteText writes the report for a person.
func (r Report) WriteText(w io.Writer) error {
	t := &table{w: w}
	s := r.Summary
	t.line("done", "%d of %s of %s: %d masked, %d failed, %d missing", s.Done, count(s.Owed.Rollouts, "rollout", "rollouts"), count(s.Owed.Tasks, "task", "tasks"), s.Masked, s.Failed, s.Missing())
	failed := s.Failures()
	for _, f := range failed[:min(mostFailures, len(failed))] {
		t.line("failed", "%d in %s%s, such as: %s", f.Count, orUnknown(string(f.Stage)), inBrackets(string(f.Kind)), shortened(f.Example))
	}
	if more := len(failed) - mostFailures; more > 0 {
		t.line("failed", "in %d more ways: %s has them all", more, r.Files.Failures)
	}
	for _, note := range r.Notes {
		t.line(note.Name, "%s", note.Text)
	}
	if s.TimedOut > 0 {
		t.line("timed out", "%s in this run; what there was of an answer was verified", count(s.TimedOut, "agent", "agents"))
	}
	r.writeScores(t)
	r.writeTimes(t)
	t.line("results", "%s", r.Files.Rollouts)
	if s.Failed > 0 || s.Retries > 0 {
		t.line("failures", "%s", r.Files.Failures)
	}
	if s.Aggregated {
		t.line("metrics", "%s", r.Files.Aggregate)
	}
	for _, next := range r.Next {
		t.line("next", "%s", next)
	}
	return t.err
}

func (r Report) writeScores(t *table) {
	s := r.Summary
	zeros := s.FailuresAsZero && s.Failed > 0
	of := fmt.Sprintf("over %s, masked and failed ones left out", count(s.Scored(), "sample", "samples"))
	if zeros {
		of = fmt.Sprintf("over %s, %d failed ones as 0, masked ones left out", count(s.Scored(), "sample", "samples"), s.Failed)
	}
	mean, ok := s.Mean()
	switch {
	case s.Scored() == 0:
		t.line("reward", "none: nothing is scored")
		return
	case !ok:
		t.line("reward", "none: rewards are too large for a mean")
	case mean.Bounded:
		t.line("reward", "mean %.3f (95 %% interval %.3f to %.3f) %s", mean.Value, mean.Low, mean.High, of)
	default:
		t.line("reward", "mean %.3f (one task: no interval) %s", mean.Value, of)
	}
	for _, k := range collect.PassesOf(s.Owed.Repeats) {
		r.writePass(t, k)
	}
}

func (r Report) writePass(t *table, k int) {
	pass, ok := r.Summary.Pass(k)
	name := fmt.Sprintf("pass@%d", k)
	short := ""
	if pass.Short > 0 {
		short = fmt.Sprintf("; %d with fewer than %d samples left out", pass.Short, k)
	}
	if !ok {
		t.line(name, "none: no task has %d samples", k)
		return
	}
	t.line(name, "%.3f over %s (a reward from %g on passes%s)", pass.Value, count(pass.Tasks, "task", "tasks"), score.Passing, short)
}

func (r Report) writeTimes(t *table) {
	s := r.Summary
	if s.Times().Len() == 0 {
		return
	}
	t.line("time", "%s an attempt, in %s", quantiles(s.Times()), count(s.Times().Len(), "attempt", "attempts"))
	for stage, times := range s.Stages {
		if times.Len() > 0 {
			t.line("", "%s in %s", quantiles(times), stage)
		}
	}
}

func quantiles(times *score.Times) string {
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s", rounded(times.Quantile(0.5)), rounded(times.Quantile(0.9)), rounded(times.Quantile(0.99)))
}

// table is lines of a name and what there is to say.
type table struct {
	w   io.Writer
	err error
}

func (t *table) line(name, format string, args ...any) {
	if _, err := fmt.Fprintf(t.w, "%-9s %s\n", name, OnOneLine(fmt.Sprintf(format, args...))); t.err == nil {
		t.err = err
	}
}

// A report names so many ways of failing, and so many characters of an example.
const (
	mostFailures = 20
	mostExample  = 300
)

func shortened(words string) string {
	if characters := []rune(words); len(characters) > mostExample {
		return string(characters[:mostExample]) + "…"
	}
	return words
}

// OnOneLine is a text as a terminal may be given it within a line: words of servers and
// of datasets may hold what a terminal takes for orders.
func OnOneLine(words string) string { return Printable(strings.ReplaceAll(words, "\n", " ")) }

// Printable is a text of more than one line as a terminal may be given it.
func Printable(words string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
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

func orUnknown(stage string) string {
	if stage == "" {
		return "an unknown stage"
	}
	return stage
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

// summaryEvent is the last event of a run.
type summaryEvent struct {
	event
	Rollouts    int                 `json:"rollouts"`
	Tasks       int                 `json:"tasks"`
	Done        int                 `json:"done"`
	Masked      int                 `json:"masked"`
	Failed      int                 `json:"failed"`
	Missing     int                 `json:"missing"`
	TimedOut    int                 `json:"agents_timed_out"`
	Attempts    int                 `json:"attempts"`
	Retries     int                 `json:"retries"`
	Scored      int                 `json:"scored"`
	AsZero      bool                `json:"failures_as_zero"`
	MeanReward  *float64            `json:"mean_reward,omitempty"`
	Low         *float64            `json:"ci_low_95,omitempty"`
	High        *float64            `json:"ci_high_95,omitempty"`
	Passes      []passJSON          `json:"pass_at,omitempty"`
	Failures    []failureJSON       `json:"failures,omitempty"`
	Times       map[string]timeJSON `json:"seconds,omitempty"`
	RolloutFile string              `json:"rollouts_file"`
	FailureFile string              `json:"failures_file"`
	MetricsFile string              `json:"aggregate_metrics_file,omitempty"`
}

type passJSON struct {
	K     int     `json:"k"`
	Value float64 `json:"value"`
	Tasks int     `json:"tasks"`
	Short int     `json:"tasks_with_fewer_samples"`
}

type failureJSON struct {
	Stage   string `json:"stage,omitempty"`
	Kind    string `json:"kind,omitempty"`
	Count   int    `json:"count"`
	Example string `json:"example"`
}

type timeJSON struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Summary writes the report as the last event.
func (e *Events) Summary(r Report) {
	s := r.Summary
	out := summaryEvent{
		event: now("summary"), Rollouts: s.Owed.Rollouts, Tasks: s.Owed.Tasks,
		Done: s.Done, Masked: s.Masked, Failed: s.Failed, Missing: s.Missing(), TimedOut: s.TimedOut,
		Attempts: s.Attempts, Retries: s.Retries, Scored: s.Scored(), AsZero: s.FailuresAsZero,
		RolloutFile: r.Files.Rollouts, FailureFile: r.Files.Failures,
	}
	if s.Aggregated {
		out.MetricsFile = r.Files.Aggregate
	}
	mean, ok := s.Mean()
	if ok {
		out.MeanReward = finite(mean.Value)
	}
	if mean.Bounded {
		out.Low, out.High = finite(mean.Low), finite(mean.High)
	}
	for _, k := range collect.PassesOf(s.Owed.Repeats) {
		if pass, ok := s.Pass(k); ok {
			out.Passes = append(out.Passes, passJSON{pass.K, pass.Value, pass.Tasks, pass.Short})
		}
	}
	for _, f := range s.Failures() {
		out.Failures = append(out.Failures, failureJSON{string(f.Stage), string(f.Kind), f.Count, f.Example})
	}
	if s.Times().Len() > 0 {
		out.Times = map[string]timeJSON{"attempt": secondsOf(s.Times())}
		for stage, times := range s.Stages {
			if times.Len() > 0 {
				out.Times[string(stage)] = secondsOf(times)
			}
		}
	}
	e.write(out)
}

func secondsOf(times *score.Times) timeJSON {
	return timeJSON{times.Quantile(0.5).Seconds(), times.Quantile(0.9).Seconds(), times.Quantile(0.99).Seconds()}
}
