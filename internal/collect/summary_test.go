package collect_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/progress"
)

// verdict is a result as a verifier gives it.
func verdict(fields string) *episode.Result {
	id := &episode.Request{}
	id.EpisodeID.RolloutID, id.TaskID.Taskset, id.TaskID.TaskID = "a", "b", "c"
	body := `{"episode_id":{"rollout_id":"a"},"task_id":{"taskset":"b","task_id":"c"},"result":{"responses_create_params":{},"response":{},` + fields + `}}`
	reply, err := episode.ParseReply([]byte(body), id)
	if err != nil {
		panic(err)
	}
	return reply.Result
}

// playing is a stage that has a verdict for each task, and a failure where there is
// none.
func playing(verdicts ...string) *stage {
	return atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		for task, fields := range verdicts {
			if is(r, fmt.Sprintf("%d-0", task)) && fields != "" {
				return verdict(fields), nil
			}
		}
		return nil, refusal()
	})
}

// A masked or failed sample is no zero, unless failures are to be, which is said.
// What a person sees meanwhile agrees with what is said at the end, and with what
// is said of the files alone.
func TestScores(t *testing.T) {
	const none = "none"
	verdicts := []string{`"reward":1`, `"reward":1.0`, `"reward":0`, `"reward":0,"mask_sample":true`, ""}
	for _, test := range []struct {
		name                         string
		verdicts                     []string
		asZero                       bool
		mean                         any
		scored, done, masked, failed int
		line                         string // of the meter
	}{
		{"all kinds", verdicts, false, 2.0 / 3, 3, 4, 1, 1, "reward 0.667 (3) · 1 masked"},
		{"all kinds, failures as zero", verdicts, true, 0.5, 4, 4, 1, 1, "reward 0.500 (4, failures as 0) · 1 masked"},
		{"all masked", []string{`"reward":0,"mask_sample":true`, `"reward":1,"mask_sample":true`}, false, none, 0, 2, 2, 0, ""},
		{"all masked, failures as zero", []string{`"reward":0,"mask_sample":true`, `"reward":1,"mask_sample":true`}, true, none, 0, 2, 2, 0, ""},
		{"all failed", []string{"", ""}, false, none, 0, 0, 0, 2, ""},
		{"all failed, as zero", []string{"", ""}, true, 0.0, 2, 0, 0, 2, "reward 0.000 (2, failures as 0)"},
		{"no failure to be zero", []string{`"reward":0.25`}, true, 0.25, 1, 1, 0, 0, "reward 0.250 (1)"},
		{"nothing that a float holds", []string{`"reward":1.7e308`, `"reward":1.7e308`}, false, none, 2, 2, 0, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := onStage(t, flat(len(test.verdicts)), playing(test.verdicts...))
			b.config.FailuresAsZero = test.asZero
			check := func(what string, s *collect.Summary) {
				t.Helper()
				if mean(s) != test.mean || s.Scored() != test.scored || s.Done != test.done || s.Masked != test.masked || s.Failed != test.failed || s.Owed.Rollouts != len(test.verdicts) {
					t.Errorf("%s: mean %v over %d of %+v; want %v over %d, %d done, %d masked, %d failed of %d",
						what, mean(s), s.Scored(), s, test.mean, test.scored, test.done, test.masked, test.failed, len(test.verdicts))
				}
				if s.FailuresAsZero != test.asZero || s.Missing() != 0 || s.Complete() != (test.failed == 0) {
					t.Errorf("%s: failures as zero %t, %d missing, complete %t", what, s.FailuresAsZero, s.Missing(), s.Complete())
				}
			}
			meets := func(what string, m *progress.Meter) {
				t.Helper()
				c := m.Counts(time.Now())
				metered := any(c.Mean)
				if math.IsNaN(c.Mean) || math.IsInf(c.Mean, 0) {
					metered = none
				}
				if metered != test.mean || c.Scored != test.scored || c.Done != test.done || c.Masked != test.masked || c.Failed != test.failed || c.Owed != len(test.verdicts) || c.InFlight != 0 || c.Waiting != 0 {
					t.Errorf("%s: the meter counts %+v", what, c)
				}
				if line := m.Line(time.Now()); !strings.Contains(line, test.line) || test.line == "" && strings.Contains(line, "reward") {
					t.Errorf("%s: line %q, want one with %q", what, line, test.line)
				}
			}
			meter := &progress.Meter{FailuresAsZero: test.asZero}
			b.config.Observer = meter
			check("run", b.run(t))
			meets("run", meter)

			meter = &progress.Meter{FailuresAsZero: test.asZero}
			b.config.Observer, b.config.Resume = meter, true
			check("resumed", b.run(t))
			meets("resumed", meter)

			joined, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{b.config.Output}, Output: filepath.Join(b.dir, "joined.jsonl"), FailuresAsZero: test.asZero})
			if err != nil {
				t.Fatal(err)
			}
			check("aggregated", &joined.Summary)
		})
	}
}

// Of two results of one rollout the first counts, in a resumption and in an
// aggregation, and both say that there are two.
func TestAResultThatIsThereTwiceCountsOnce(t *testing.T) {
	for _, first := range []string{"0", "1"} {
		second := map[string]string{"0": "1", "1": "0"}[first]
		t.Run("first "+first, func(t *testing.T) {
			s := atOnce(nil)
			b := onStage(t, flat(3), s)
			b.run(t)
			s.played()
			rows := resultRow(0, 0, first) + resultRow(1, 0, "1") + resultRow(0, 0, second) + resultRow(2, 0, "0.5") + resultRow(0, 0, second)
			b.left(t, rows, failureRow(0, 0, true))
			notes := b.noted()
			b.config.Resume = true
			summary := b.run(t)
			want := map[string]float64{"0": 0.5, "1": 2.5 / 3}[first]
			if summary.Done != 3 || summary.Scored() != 3 || summary.Failed != 0 || mean(summary) != want || len(s.played()) != 0 {
				t.Errorf("summary %+v with mean %v, want 3 done with %v and no attempt", summary, mean(summary), want)
			}
			if len(*notes) != 1 || !strings.Contains((*notes)[0], b.config.Output+": 2 results are there twice") {
				t.Errorf("notes %q, want one that says so", *notes)
			}
			if read(t, b.files().Rollouts) != rows {
				t.Error("the output has changed")
			}
			joined, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{b.config.Output}, Output: filepath.Join(b.dir, "joined.jsonl")})
			if err != nil || joined.Done != 3 || joined.Scored() != 3 || joined.Failed != 0 || mean(&joined.Summary) != want {
				t.Errorf("aggregated: %v, %+v with mean %v, want 3 done with %v", err, joined, mean(&joined.Summary), want)
			}
			rollout := collect.Rollout{TaskIndex: 0, RolloutIndex: 0}
			rollout.TaskID.Taskset, rollout.TaskID.TaskID = "tasks", "0"
			if diff := cmp.Diff([]collect.Rollout{rollout}, joined.Twice); diff != "" {
				t.Errorf("twice (-want +got):\n%s", diff)
			}
			if got := read(t, filepath.Join(b.dir, "joined.jsonl")); got != resultRow(0, 0, first)+resultRow(1, 0, "1")+resultRow(2, 0, "0.5") {
				t.Errorf("joined\n%s", got)
			}
		})
	}
}

// Failures are told by stage and kind: the most frequent ones first, those that are
// alike in that in an order that does not change.
func TestTheOrderOfFailures(t *testing.T) {
	kinds := []struct {
		stage failures.Stage
		kind  failures.Kind
	}{
		{failures.StageSeed, "a_kind"},
		{failures.StageAgent, failures.AgentTimeout},
		{failures.StageAgent, failures.AgentRunError},
		{failures.StageVerification, ""},
		{"", ""},
		{failures.StageVerification, ""},
	}
	s := atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		for task, k := range kinds {
			if is(r, fmt.Sprintf("%d-0", task)) {
				f := failures.New(k.stage, k.kind, fmt.Sprintf("attempt %d", r.EpisodeID.Attempt))
				f.Terminal = k.kind == failures.AgentTimeout
				return nil, f
			}
		}
		return nil, nil
	})
	b := onStage(t, flat(7), s)
	b.config.Policy.MaxAttempts = 2
	group := func(stage failures.Stage, kind failures.Kind, count int, example string) collect.FailureCount {
		return collect.FailureCount{FailureGroup: collect.FailureGroup{Stage: stage, Kind: kind}, Count: count, Example: example}
	}
	summary := b.run(t)
	want := []collect.FailureCount{
		group("verification", "", 2, "attempt 1"),
		group("", "", 1, "attempt 1"),
		group("agent", "agent_run_error", 1, "attempt 1"),
		group("agent", "agent_timeout", 1, "attempt 0"),
		group("seed", "a_kind", 1, "attempt 1"),
	}
	if diff := cmp.Diff(want, summary.Failures()); diff != "" || summary.FailedForGood != 1 || summary.Failed != 6 {
		t.Errorf("%d failed, %d for good, want 6 and 1; failures (-want +got):\n%s", summary.Failed, summary.FailedForGood, diff)
	}
	b.config.Resume = true
	summary = b.run(t)
	for i := range want { // the files have the first reason of each first
		want[i].Example = "attempt 0"
	}
	if diff := cmp.Diff(want, summary.Failures()); diff != "" || summary.FailedForGood != 1 || summary.Failed != 6 {
		t.Errorf("resumed: %d failed, %d for good, want 6 and 1; failures (-want +got):\n%s", summary.Failed, summary.FailedForGood, diff)
	}
}

// timed is a stage whose attempts have times of their own.
type timed struct {
	*stage
	times func(r *episode.Request) episode.Times
}

func (s timed) Attempt(ctx context.Context, r *episode.Request) episode.Reply {
	reply := s.stage.Attempt(ctx, r)
	reply.Times = s.times(r)
	return reply
}

// The times of attempts, failed ones too, and of the stages that they got to. One
// that was cut short tells nothing.
func TestTimesOfStages(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "2-0") {
			_ = after(ctx, 9*time.Second)
			return nil, refusal()
		}
		return nil, after(ctx, map[bool]time.Duration{true: 2 * time.Second, false: 4 * time.Second}[is(r, "0-0")])
	}}
	summary := play(t, 4, s, func(c *collect.Config) {
		c.Concurrency, c.Policy.MaxAttempts = 4, 1
		c.Target = timed{s, func(r *episode.Request) episode.Times {
			if is(r, "2-0") {
				return episode.Times{Seed: 9 * time.Second}
			}
			return episode.Times{Seed: time.Second, Agent: 2 * time.Second, Verification: 3 * time.Millisecond}
		}}
	})
	if summary.Times().Len() != 4 {
		t.Fatalf("%d times, want 4", summary.Times().Len())
	}
	near := func(got, want time.Duration) bool {
		return math.Abs(float64(got-want)) <= float64(want)/100
	}
	for part, want := range map[float64]time.Duration{0.25: 2 * time.Second, 0.5: 4 * time.Second, 0.75: 4 * time.Second, 0.9: 9 * time.Second, 1: 9 * time.Second} {
		if got := summary.Times().Quantile(part); !near(got, want) {
			t.Errorf("quantile %g of the attempts is %s, want %s", part, got, want)
		}
	}
	var got []string
	for stage, times := range summary.Stages {
		got = append(got, fmt.Sprintf("%s %d", stage, times.Len()))
		want := map[failures.Stage]time.Duration{"seed": time.Second, "agent": 2 * time.Second, "verification": 3 * time.Millisecond}[stage]
		if !near(times.Quantile(0.5), want) {
			t.Errorf("the median of %s is %s, want %s", stage, times.Quantile(0.5), want)
		}
	}
	if diff := cmp.Diff([]string{"seed 4", "agent 3", "cleanup 0", "verification 3"}, got); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	for stage := range summary.Stages { // it can be left
		if stage != failures.StageSeed {
			t.Errorf("the first stage is %s", stage)
		}
		break
	}
}

// An attempt that was cut short has no time.
func TestAnAttemptThatWasCutShortHasNoTime(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		return nil, after(ctx, map[bool]time.Duration{true: time.Second, false: time.Hour}[is(r, "0-0")])
	}}
	summary := play(t, 2, s, func(c *collect.Config) {
		c.Deadline = time.Now().Add(time.Minute)
		c.Target = timed{s, func(*episode.Request) episode.Times { return episode.Times{Seed: time.Second} }}
	})
	for _, times := range summary.Stages {
		if times.Len() > 1 {
			t.Errorf("%d times of a stage, want at most one", times.Len())
		}
	}
	if summary.Times().Len() != 1 || summary.Attempts != 2 || summary.Missing() != 1 {
		t.Errorf("%d times with %+v, want one of two attempts", summary.Times().Len(), summary)
	}
}
