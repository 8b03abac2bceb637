package progress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/progress"
	"example.com/turn/retry"
)

// A cast plays the attempts of a run: it says what comes of the one with that id. Those
// of the first task take a second, those of the second two, and so on.
type cast func(rollout string, attempt int64) episode.Reply

func (c cast) Server(string) (string, error)               { return "env", nil }
func (c cast) Delivery(*failures.Failure) collect.Delivery { return collect.Delivered }
func (c cast) Away(*failures.Failure) bool                 { return false }
func (c cast) Attempt(_ context.Context, r *episode.Request) episode.Reply {
	task, _ := indexes(r.EpisodeID.RolloutID)
	time.Sleep(time.Duration(task+1) * time.Second)
	reply := c(r.EpisodeID.RolloutID, r.EpisodeID.Attempt)
	reply.EpisodeID, reply.TaskID = r.EpisodeID, r.TaskID
	return reply
}

func (c cast) AggregateMetrics(context.Context, string, func() (io.ReadCloser, error)) ([]byte, error) {
	return []byte(`{"agent_metrics":{"mean/reward":1},"key_metrics":{},"group_level_metrics":[],"repeat_level_metrics":[]}`), nil
}

// indexes are those in the id of a rollout.
func indexes(rollout string) (task, repeat int) {
	if _, err := fmt.Sscanf(rollout, "%d-%d", &task, &repeat); err != nil {
		panic(err)
	}
	return task, repeat
}

func rewarded(reward float64) episode.Reply {
	return episode.Reply{Result: &episode.Result{Reward: reward}}
}

func refused(stage failures.Stage, kind failures.Kind, reason string) episode.Reply {
	return episode.Reply{Failure: failures.New(stage, kind, reason)}
}

// A production is a run of a cast.
type production struct {
	tasks, repeats int
	asZero         bool
	attempts       int // of each rollout
	cast           cast
	notes          []progress.Note
	next           []string
}

// report runs it, and reports it as of an output elsewhere.
func (p production) report(t *testing.T) progress.Report {
	t.Helper()
	dir := t.TempDir()
	var rows strings.Builder
	for i := range p.tasks {
		fmt.Fprintf(&rows, `{"responses_create_params":{"input":"%d"}}`+"\n", i)
	}
	dataset := filepath.Join(dir, "tasks.jsonl")
	if err := os.WriteFile(dataset, []byte(rows.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	summary, err := collect.Run(t.Context(), collect.Config{
		Dataset: dataset, Output: filepath.Join(dir, "r.jsonl"), Target: p.cast, Repeats: p.repeats, FailuresAsZero: p.asZero,
		Policy: retry.Policy{MaxAttempts: p.attempts, Backoff: time.Microsecond},
	})
	if err != nil && !errors.Is(err, collect.ErrStopped) {
		t.Fatal(err)
	}
	return progress.Report{Summary: summary, Files: collect.FilesOf("out/r.jsonl"), Notes: p.notes, Next: p.next}
}

// manyWays is a run of 28 tasks, in which there is one of everything.
func manyWays(rollout string, attempt int64) episode.Reply {
	task, repeat := indexes(rollout)
	switch {
	case task == 0: // fails for both
		return refused(failures.StageVerification, failures.VerifierError, "\x1b[2J\nno "+strings.Repeat("é", 400))
	case task == 1 && repeat == 0:
		return refused("", "", "who knows")
	case task < 25 && repeat == 0:
		return refused(failures.StageAgent, failures.Kind(fmt.Sprintf("kind_%02d", task)), "no")
	case task < 25:
		return rewarded(float64(task % 2))
	case task == 25:
		reply := rewarded(float64(repeat))
		reply.Result.AgentTimedOut = repeat == 1
		reply.Times = episode.Times{Seed: 40 * time.Millisecond, Verification: 1500 * time.Microsecond}
		return reply
	case task == 26:
		return episode.Reply{Result: &episode.Result{Reward: 1, Masked: true}}
	case repeat == 0 && attempt == 0:
		return refused(failures.StageSeed, "", "try again")
	case repeat == 0:
		return rewarded(1)
	}
	return episode.Reply{Failure: &failures.Failure{Reason: "given up", Err: context.Canceled}}
}

// each is a text for each number of some.
func each(format string, first, last int) string {
	var all strings.Builder
	for i := first; i <= last; i++ {
		fmt.Fprintf(&all, format, i)
	}
	return all.String()
}

// What came out of a run, as a person and as a machine read it.
func TestReports(t *testing.T) {
	for _, test := range []struct {
		name string
		production
		text  string
		event string
	}{
		{
			name: "everything there is", production: production{
				tasks: 28, repeats: 2, attempts: 2, cast: manyWays,
				notes: []progress.Note{{Name: "twice", Text: "0-0 (a/\x1bb)"}}, next: []string{"run it\nagain"},
			},
			text: `done      29 of 56 rollouts of 28 tasks: 2 masked, 26 failed, 1 missing
failed    2 in verification (verifier_error), such as:  [2J no ` + strings.Repeat("é", 292) + `…
failed    1 in an unknown stage, such as: who knows
` +
				each("failed    1 in agent (kind_%02d), such as: no\n", 2, 19) + `failed    in 5 more ways: out/r_failures.jsonl has them all
twice     0-0 (a/ b)
timed out 1 agent in this run; what there was of an answer was verified
reward    mean 0.519 (95 % interval 0.324 to 0.713) over 27 samples, masked and failed ones left out
pass@1    0.519 over 26 tasks (a reward from 1 on passes)
pass@2    1.000 over 1 task (a reward from 1 on passes; 25 with fewer than 2 samples left out)
time      p50 14s, p90 25s, p99 28s an attempt, in 82 attempts
          p50 40ms, p90 40ms, p99 40ms in seed
          p50 1.51ms, p90 1.51ms, p99 1.51ms in verification
results   out/r.jsonl
failures  out/r_failures.jsonl
metrics   out/r_aggregate_metrics.json
next      run it again
`,
			event: `{"agents_timed_out":1,"aggregate_metrics_file":"out/r_aggregate_metrics.json","attempts":83,"ci_high_95":0.7129032101791762,"ci_low_95":0.32413382685786074,"done":29,"event":"summary","failed":26,"failures":[{"count":2,"example":"\u001b[2J\nno ` + strings.Repeat("é", 400) + `","kind":"verifier_error","stage":"verification"},{"count":1,"example":"who knows"},` +
				strings.TrimSuffix(each(`{"count":1,"example":"no","kind":"kind_%02d","stage":"agent"},`, 2, 24), ",") + `],"failures_as_zero":false,"failures_file":"out/r_failures.jsonl","masked":2,"mean_reward":0.5185185185185185,"missing":1,"pass_at":[{"k":1,"tasks":26,"tasks_with_fewer_samples":0,"value":0.5192307692307693},{"k":2,"tasks":1,"tasks_with_fewer_samples":25,"value":1}],"retries":27,"rollouts":56,"rollouts_file":"out/r.jsonl","scored":27,"seconds":{"attempt":{"p50":14.000586751,"p90":25.014829055,"p99":28.001173503},"seed":{"p50":0.040009727,"p90":0.040009727,"p99":0.040009727},"verification":{"p50":0.001507327,"p90":0.001507327,"p99":0.001507327}},"tasks":28}`,
		},
		{
			name: "one task, and a failure that another attempt has mended", production: production{
				tasks: 1, attempts: 2, cast: func(_ string, attempt int64) episode.Reply {
					if attempt == 0 {
						return refused(failures.StageSeed, "", "not yet")
					}
					return rewarded(0.25)
				},
			},
			text: `done      1 of 1 rollout of 1 task: 0 masked, 0 failed, 0 missing
reward    mean 0.250 (one task: no interval) over 1 sample, masked and failed ones left out
pass@1    0.000 over 1 task (a reward from 1 on passes)
time      p50 1s, p90 1s, p99 1s an attempt, in 2 attempts
results   out/r.jsonl
failures  out/r_failures.jsonl
metrics   out/r_aggregate_metrics.json
`,
			event: `{"agents_timed_out":0,"aggregate_metrics_file":"out/r_aggregate_metrics.json","attempts":2,"done":1,"event":"summary","failed":0,"failures_as_zero":false,"failures_file":"out/r_failures.jsonl","masked":0,"mean_reward":0.25,"missing":0,"pass_at":[{"k":1,"tasks":1,"tasks_with_fewer_samples":0,"value":0}],"retries":1,"rollouts":1,"rollouts_file":"out/r.jsonl","scored":1,"seconds":{"attempt":{"p50":1.000341503,"p90":1.000341503,"p99":1.000341503}},"tasks":1}`,
		},
		{
			name: "failures as zero", production: production{
				tasks: 2, repeats: 2, asZero: true, attempts: 1, cast: func(rollout string, _ int64) episode.Reply {
					if rollout == "1-1" {
						return refused(failures.StageSeed, failures.VerifierError, "no")
					}
					return rewarded(1)
				},
			},
			text: `done      3 of 4 rollouts of 2 tasks: 0 masked, 1 failed, 0 missing
failed    1 in seed (verifier_error), such as: no
reward    mean 0.750 (95 % interval -2.426 to 3.926) over 4 samples, 1 failed ones as 0, masked ones left out
pass@1    0.750 over 2 tasks (a reward from 1 on passes)
pass@2    1.000 over 2 tasks (a reward from 1 on passes)
time      p50 1s, p90 2.001s, p99 2.001s an attempt, in 4 attempts
results   out/r.jsonl
failures  out/r_failures.jsonl
metrics   out/r_aggregate_metrics.json
`,
			event: `{"agents_timed_out":0,"aggregate_metrics_file":"out/r_aggregate_metrics.json","attempts":4,"ci_high_95":3.9265,"ci_low_95":-2.4265,"done":3,"event":"summary","failed":1,"failures":[{"count":1,"example":"no","kind":"verifier_error","stage":"seed"}],"failures_as_zero":true,"failures_file":"out/r_failures.jsonl","masked":0,"mean_reward":0.75,"missing":0,"pass_at":[{"k":1,"tasks":2,"tasks_with_fewer_samples":0,"value":0.75},{"k":2,"tasks":2,"tasks_with_fewer_samples":0,"value":1}],"retries":0,"rollouts":4,"rollouts_file":"out/r.jsonl","scored":4,"seconds":{"attempt":{"p50":1.000341503,"p90":2.000683007,"p99":2.000683007}},"tasks":2}`,
		},
		{
			name:       "nothing is scored",
			production: production{tasks: 2, attempts: 1, cast: func(string, int64) episode.Reply { return refused(failures.StageSeed, "", "no") }},
			text: `done      0 of 2 rollouts of 2 tasks: 0 masked, 2 failed, 0 missing
failed    2 in seed, such as: no
reward    none: nothing is scored
time      p50 1s, p90 2.001s, p99 2.001s an attempt, in 2 attempts
results   out/r.jsonl
failures  out/r_failures.jsonl
`,
			event: `{"agents_timed_out":0,"attempts":2,"done":0,"event":"summary","failed":2,"failures":[{"count":2,"example":"no","stage":"seed"}],"failures_as_zero":false,"failures_file":"out/r_failures.jsonl","masked":0,"missing":0,"retries":0,"rollouts":2,"rollouts_file":"out/r.jsonl","scored":0,"seconds":{"attempt":{"p50":1.000341503,"p90":2.000683007,"p99":2.000683007}},"tasks":2}`,
		},
		{
			name:       "rewards too large for a mean",
			production: production{tasks: 2, attempts: 1, cast: func(string, int64) episode.Reply { return rewarded(1e308) }},
			text: `done      2 of 2 rollouts of 2 tasks: 0 masked, 0 failed, 0 missing
reward    none: rewards are too large for a mean
pass@1    1.000 over 2 tasks (a reward from 1 on passes)
time      p50 1s, p90 2.001s, p99 2.001s an attempt, in 2 attempts
results   out/r.jsonl
metrics   out/r_aggregate_metrics.json
`,
			event: `{"agents_timed_out":0,"aggregate_metrics_file":"out/r_aggregate_metrics.json","attempts":2,"done":2,"event":"summary","failed":0,"failures_as_zero":false,"failures_file":"out/r_failures.jsonl","masked":0,"missing":0,"pass_at":[{"k":1,"tasks":2,"tasks_with_fewer_samples":0,"value":1}],"retries":0,"rollouts":2,"rollouts_file":"out/r.jsonl","scored":2,"seconds":{"attempt":{"p50":1.000341503,"p90":2.000683007,"p99":2.000683007}},"tasks":2}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				report := test.report(t)
				var text strings.Builder
				if err := report.WriteText(&text); err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(test.text, text.String()); diff != "" {
					t.Errorf("text (-want +got):\n%s", diff)
				}
				var out terminal
				e := progress.NewEvents(&progress.Meter{}, &out)
				e.Summary(report)
				if diff := cmp.Diff([]string{test.event}, events(t, out.String())); diff != "" {
					t.Errorf("event (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A report that cannot be written says why.
func TestAReportThatNobodyReads(t *testing.T) {
	if err := (progress.Report{Summary: &collect.Summary{}}).WriteText(&brokenPipe{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v, want that the pipe is closed", err)
	}
}
