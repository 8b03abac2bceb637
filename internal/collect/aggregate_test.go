package collect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/protocol"
)

// shards runs a dataset of six tasks, two repeats each, in three shards. Task 3
// fails, for good; task 4 fails at its first attempt.
func shards(t *testing.T) *bench {
	t.Helper()
	b := onStage(t, flat(6), atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "3-0") || is(r, "4-1") && r.EpisodeID.Attempt == 0 {
			f := refusal()
			f.Terminal = is(r, "3-0")
			return nil, f
		}
		return nil, nil
	}))
	b.config.Repeats = 2
	output := b.config.Output
	for part := 1; part <= 3; part++ {
		b.config.Shard = collect.Shard{Part: part, Of: 3}
		b.config.Output = b.config.Shard.Output(output)
		b.run(t)
	}
	b.config.Output, b.config.Shard = output, collect.Shard{}
	return b
}

// part is the rollouts file of a shard.
func (b *bench) part(part int) string {
	return collect.Shard{Part: part, Of: 3}.Output(b.config.Output)
}

// joining is how the shards are joined.
func (b *bench) joining() (config collect.AggregateConfig, notes *[]string) {
	notes = &[]string{}
	return collect.AggregateConfig{
		Patterns: []string{filepath.Join(filepath.Dir(b.config.Output), "rollouts*.jsonl")},
		Output:   b.config.Output,
		Note:     func(note string) { *notes = append(*notes, note) },
	}, notes
}

// bases are paths without their folders.
func bases(paths []string) []string {
	var names []string
	for _, path := range paths {
		names = append(names, filepath.Base(path))
	}
	return names
}

func rollout(task string, index, rollout int64) collect.Rollout {
	return collect.Rollout{TaskID: protocol.TaskID{Taskset: "tasks", TaskID: task}, TaskIndex: index, RolloutIndex: rollout}
}

// The joined output has every line of its parts, in their order, and can be resumed
// and joined again.
func TestAggregateJoinsShards(t *testing.T) {
	b := shards(t)
	config, notes := b.joining()
	for _, again := range []bool{false, true} { // the second time its own output matches too
		config.Overwrite = again
		joined, err := collect.Aggregate(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if joined.Parts != map[bool]int{false: 3, true: 4}[again] || joined.Done != 11 || joined.Failed != 1 || joined.FailedForGood != 1 || mean(&joined.Summary) != 1.0 || joined.Complete() ||
			joined.Owed != (collect.Owed{Rollouts: 12, Tasks: 6, Repeats: 2, Servers: 1}) || len(joined.Missing)+len(joined.Twice)+len(joined.MissingShards)+len(*notes) != 0 {
			t.Errorf("joined %+v, notes %q", joined, *notes)
		}
		want := []collect.FailureCount{{FailureGroup: collect.FailureGroup{Stage: failures.StageSeed}, Count: 1, Example: "busy"}}
		if diff := cmp.Diff(want, joined.Failures()); diff != "" {
			t.Errorf("failures (-want +got):\n%s", diff)
		}
		files := []func(collect.Files) string{
			func(f collect.Files) string { return f.Rollouts },
			func(f collect.Files) string { return f.Failures },
			func(f collect.Files) string { return f.Inputs },
		}
		for _, of := range files {
			var all string
			for part := 1; part <= 3; part++ {
				all += read(t, of(collect.FilesOf(b.part(part))))
			}
			if diff := cmp.Diff(all, read(t, of(b.files()))); diff != "" {
				t.Errorf("%s (-shards +joined):\n%s", filepath.Base(of(b.files())), diff)
			}
		}
		for name := range b.snapshot(t) {
			if strings.HasSuffix(name, ".next") {
				t.Errorf("%s is left", name)
			}
		}
	}

	s := atOnce(nil)
	b.config.Target, b.config.Resume, b.config.RetryTerminal = s, true, true
	if summary := b.run(t); summary.Done != 12 || summary.Failed != 0 {
		t.Errorf("resumed: %+v, want 12 done", summary)
	}
	if diff := cmp.Diff([]string{"3-0-a1"}, s.played()); diff != "" {
		t.Errorf("attempts of the resumption (-want +got):\n%s", diff)
	}
}

// What shards have left undone, or done twice, is named.
func TestAggregateNamesWhatIsMissing(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(t *testing.T, b *bench)
		check   func(t *testing.T, j *collect.Joined)
		notes   []string
		joined  int // results of the joined output
		lacking []collect.Rollout
	}{
		{"results that are not there", func(t *testing.T, b *bench) {
			writeFile(t, b.part(1), "")
			writeFile(t, collect.FilesOf(b.part(1)).Failures, "")
		}, func(t *testing.T, j *collect.Joined) {
			if j.Summary.Missing() != 4 || j.Failed != 0 || j.Owed.Rollouts != 12 {
				t.Errorf("joined %+v", j)
			}
		}, nil, 8, []collect.Rollout{rollout("0", 0, 0), rollout("0", 0, 1), rollout("3", 3, 0), rollout("3", 3, 1)}},
		{"a shard that is not there", func(t *testing.T, b *bench) {
			for _, path := range []string{b.part(2), collect.FilesOf(b.part(2)).Inputs, collect.FilesOf(b.part(2)).Failures} {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		}, func(t *testing.T, j *collect.Joined) {
			if diff := cmp.Diff([]string{"rollouts.shard-02-of-03.jsonl"}, bases(j.MissingShards)); diff != "" || j.Parts != 2 || j.Owed.Rollouts != 8 {
				t.Errorf("%d parts with %+v, want 2; missing shards (-want +got):\n%s", j.Parts, j.Owed, diff)
			}
		}, nil, 7, nil},
		{"a shard without its rollouts", func(t *testing.T, b *bench) {
			if err := os.Remove(b.part(2)); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, j *collect.Joined) {
			if diff := cmp.Diff([]string{"rollouts.shard-02-of-03.jsonl"}, bases(j.MissingShards)); diff != "" {
				t.Errorf("missing shards (-want +got):\n%s", diff)
			}
		}, nil, 7, nil},
		{"inputs that are not there", func(t *testing.T, b *bench) {
			for part := 1; part <= 2; part++ { // with a rollout that failed, and one that did first
				if err := os.Remove(collect.FilesOf(b.part(part)).Inputs); err != nil {
					t.Fatal(err)
				}
			}
		}, func(t *testing.T, j *collect.Joined) {
			if j.Owed != (collect.Owed{Rollouts: 12, Tasks: 6, Repeats: 2, Servers: 1}) || j.Done != 11 || j.Failed != 1 {
				t.Errorf("joined %+v, want what is known of all", j)
			}
		}, []string{"rollouts.shard-01-of-03_materialized_inputs.jsonl is not there: what is missing of that run cannot be said", "rollouts.shard-02-of-03_materialized_inputs.jsonl is not there"}, 11, nil},
		{"failures that are not there", func(t *testing.T, b *bench) {
			if err := os.Remove(collect.FilesOf(b.part(1)).Failures); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, j *collect.Joined) {
			if j.Failed != 0 || j.Summary.Missing() != 1 {
				t.Errorf("joined %+v, want one missing", j)
			}
		}, nil, 11, []collect.Rollout{rollout("3", 3, 0)}},
		{"a last line that was cut off", func(t *testing.T, b *bench) {
			whole := read(t, b.part(2))
			writeFile(t, b.part(2), whole[:len(whole)-10])
			writeFile(t, collect.FilesOf(b.part(2)).Failures, `{"_ng`)
		}, func(t *testing.T, j *collect.Joined) {
			if j.Done != 10 || j.Summary.Missing() != 1 {
				t.Errorf("joined %+v, want one missing", j)
			}
		}, []string{"rollouts.shard-02-of-03_failures.jsonl: left out a last line that was not whole (5 bytes)", "rollouts.shard-02-of-03.jsonl: left out a last line that was not whole ("}, 10, []collect.Rollout{rollout("", 0, 0)}},
		{"a last line that lacks only its end", func(t *testing.T, b *bench) {
			writeFile(t, b.part(2), strings.TrimSuffix(read(t, b.part(2)), "\n"))
		}, func(t *testing.T, j *collect.Joined) {
			if j.Done != 11 {
				t.Errorf("joined %+v, want 11 done", j)
			}
		}, nil, 11, nil},
		{"results in two shards", func(t *testing.T, b *bench) {
			first, _, _ := strings.Cut(read(t, b.part(2)), "\n")
			first = strings.Replace(first, `"reward":1`, `"reward":0`, 1)
			writeFile(t, b.part(3), first+"\n"+read(t, b.part(3)))
		}, func(t *testing.T, j *collect.Joined) {
			if len(j.Twice) != 1 || j.Twice[0].TaskIndex != 1 && j.Twice[0].TaskIndex != 4 || j.Twice[0].TaskID.Taskset != "tasks" || j.Done != 11 || mean(&j.Summary) != 1.0 {
				t.Errorf("joined %+v, want one that is there twice", j)
			}
		}, nil, 11, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := shards(t)
			test.change(t, b)
			config, notes := b.joining()
			joined, err := collect.Aggregate(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			test.check(t, joined)
			if got := len(b.results(t)); got != test.joined {
				t.Errorf("%d results are joined, want %d", got, test.joined)
			}
			if len(test.lacking) == 1 && test.lacking[0].TaskID.TaskID == "" { // whichever came last
				if len(joined.Missing) != 1 || joined.Missing[0].TaskIndex%3 != 1 || joined.Missing[0].TaskID.Taskset != "tasks" {
					t.Errorf("missing %+v, want one of the second shard", joined.Missing)
				}
			} else if diff := cmp.Diff(test.lacking, joined.Missing); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
			if len(*notes) != len(test.notes) {
				t.Fatalf("notes %q, want %q", *notes, test.notes)
			}
			for i := range test.notes {
				if !strings.Contains((*notes)[i], test.notes[i]) {
					t.Errorf("notes %q, want %q", *notes, test.notes)
				}
			}
		})
	}
}

// What is no output of one dataset is not joined, and nothing is written then.
func TestAggregateRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(t *testing.T, b *bench, c *collect.AggregateConfig)
		file   func(b *bench) string
		line   int
		says   string
	}{
		{"shards of two datasets", func(t *testing.T, b *bench, _ *collect.AggregateConfig) {
			other := collect.FilesOf(b.part(3)).Inputs
			writeFile(t, other, read(t, other)+strings.Replace(read(t, collect.FilesOf(b.part(1)).Inputs), `"task_id":"0"`, `"task_id":"a"`, 1))
		}, func(b *bench) string { return collect.FilesOf(b.part(3)).Inputs }, 5, "task 0 is another one"},
		{"a broken line of results", func(t *testing.T, b *bench, _ *collect.AggregateConfig) {
			writeFile(t, b.part(2), "{\n"+read(t, b.part(2)))
		}, func(b *bench) string { return b.part(2) }, 1, "JSON"},
		{"a result without a reward", func(t *testing.T, b *bench, _ *collect.AggregateConfig) {
			writeFile(t, b.part(2), `{"_ng_task_index":77,"_ng_rollout_index":0}`+"\n"+read(t, b.part(2)))
		}, func(b *bench) string { return b.part(2) }, 1, "reward"},
		{"a broken line of failures", func(t *testing.T, b *bench, _ *collect.AggregateConfig) {
			writeFile(t, collect.FilesOf(b.part(2)).Failures, "[]\n")
		}, func(b *bench) string { return collect.FilesOf(b.part(2)).Failures }, 1, "object"},
		{"a broken line of inputs", func(t *testing.T, b *bench, _ *collect.AggregateConfig) {
			writeFile(t, collect.FilesOf(b.part(2)).Inputs, "\n{}\n")
		}, func(b *bench) string { return collect.FilesOf(b.part(2)).Inputs }, 2, "lacks _ng_task_index"},
		{"no file", func(_ *testing.T, b *bench, c *collect.AggregateConfig) {
			c.Patterns = []string{filepath.Join(b.dir, "none*")}
		}, func(b *bench) string { return filepath.Join(b.dir, "none*") }, 0, "no file matches"},
		{"no file beside some", func(_ *testing.T, b *bench, c *collect.AggregateConfig) {
			c.Patterns = append(c.Patterns, filepath.Join(b.dir, "typo.jsonl"))
		}, func(b *bench) string { return filepath.Join(b.dir, "typo.jsonl") }, 0, "no file matches"},
		{"a name that no rollouts file has", func(t *testing.T, b *bench, c *collect.AggregateConfig) {
			writeFile(t, filepath.Join(b.dir, "rollouts.json"), resultRow(0, 0, "1"))
			c.Patterns = append(c.Patterns, filepath.Join(b.dir, "rollouts.json"))
		}, func(b *bench) string { return filepath.Join(b.dir, "rollouts.json") }, 0, "ends in .jsonl"},
		{"only the files beside them", func(_ *testing.T, b *bench, c *collect.AggregateConfig) {
			c.Patterns = []string{filepath.Join(b.dir, "out", "*s.jsonl")}
		}, func(b *bench) string { return filepath.Join(b.dir, "out", "*s.jsonl") }, 0, "no rollouts file matches"},
		{"no pattern", func(_ *testing.T, _ *bench, c *collect.AggregateConfig) { c.Patterns = []string{"["} }, func(*bench) string { return "[" }, 0, "syntax"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := shards(t)
			config, _ := b.joining()
			config.Overwrite = true
			test.change(t, b, &config)
			before := b.snapshot(t)
			_, err := collect.Aggregate(t.Context(), config)
			var input *collect.InputError
			if !errors.As(err, &input) || input.File != test.file(b) || input.Line != test.line || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want line %d of %s and %q", err, test.line, test.file(b), test.says)
			}
			if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
		})
	}
}

// An output that is there is not written over unasked, and never one that a run is
// writing to.
func TestAggregateWritesOverNothing(t *testing.T) {
	b := shards(t)
	config, _ := b.joining()
	for _, path := range []string{b.files().Rollouts, b.files().Failures} {
		writeFile(t, path, failureRow(0, 0, false))
		before := b.snapshot(t)
		_, err := collect.Aggregate(t.Context(), config)
		var exists *collect.ExistsError
		if !errors.As(err, &exists) || exists.File != path {
			t.Errorf("got %v, want that %s is there", err, path)
		}
		if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
			t.Errorf("files (-before +after):\n%s", diff)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	b.config.Repeats = 1
	b.config.Target = atOnce(func(*episode.Request) (*episode.Result, *failures.Failure) {
		config.Overwrite = true
		_, err := collect.Aggregate(context.Background(), config)
		var owned *collect.OwnedError
		if !errors.As(err, &owned) || owned.File != b.config.Output {
			t.Errorf("got %v, want that a run is writing to %s", err, b.config.Output)
		}
		return nil, nil
	})
	b.config.Limit = 1
	if summary := b.run(t); summary.Done != 1 || len(b.results(t)) != 1 {
		t.Errorf("the run: %+v", summary)
	}
}

// A shard that a run is still writing to is joined as far as it is there, and told
// of.
func TestAggregateTellsOfAShardThatIsBeingWritten(t *testing.T) {
	b := shards(t)
	config, notes := b.joining()
	b.config.Shard, b.config.Overwrite, b.config.Concurrency = collect.Shard{Part: 2, Of: 3}, true, 1
	joinedOutput := b.config.Output
	b.config.Output = b.part(2)
	var joined *collect.Joined
	var err error
	b.config.Target = atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "4-0") { // when two of four are done
			joined, err = collect.Aggregate(context.Background(), config)
		}
		return nil, nil
	})
	b.run(t)
	if err != nil {
		t.Fatal(err)
	}
	if joined.Done != 9 || joined.Failed != 1 || joined.Summary.Missing() != 2 || len(readLines(t, joinedOutput)) != 9 {
		t.Errorf("joined %+v, want 9 done, 1 failed and 2 missing", joined)
	}
	if diff := cmp.Diff([]collect.Rollout{rollout("4", 4, 0), rollout("4", 4, 1)}, joined.Missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if len(*notes) != 1 || (*notes)[0] != b.config.Output+": a run is still writing to it" {
		t.Errorf("notes %q, want one that says so", *notes)
	}
}

// Metrics that nobody waited for leave none of earlier results.
func TestAggregateLeavesNoMetricsOfOtherResults(t *testing.T) {
	b := shards(t)
	config, _ := b.joining()
	writeFile(t, b.files().Aggregate, "[]")
	config.Overwrite = true
	ctx, stop := context.WithCancel(t.Context())
	config.Metrics = asking{nil, func(ctx context.Context, _ string, _ func() (io.ReadCloser, error)) ([]byte, error) {
		stop()
		return nil, ctx.Err()
	}}
	joined, err := collect.Aggregate(ctx, config)
	if err != nil || joined.Done != 11 {
		t.Errorf("joined %+v, %v", joined, err)
	}
	if _, err := os.Stat(b.files().Aggregate); !os.IsNotExist(err) {
		t.Errorf("there are metrics: %v", err)
	}
}

// A part may be any output; what is owed in two of them is owed once.
func TestAggregateJoinsOutputsOfOneDataset(t *testing.T) {
	b := onStage(t, flat(3), atOnce(nil))
	b.config.Output = filepath.Join(b.dir, "out", "a.jsonl")
	b.run(t)
	b.config.Output, b.config.Repeats = filepath.Join(b.dir, "out", "b.jsonl"), 2
	b.config.Target = atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "0-0") || is(r, "2-1") { // of which the first is done elsewhere
			return nil, refusal()
		}
		return verdict(`"reward":0`), nil
	})
	b.run(t)
	joined, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{filepath.Join(b.dir, "out", "*.jsonl")}, Output: filepath.Join(b.dir, "joined", "all.jsonl")})
	if err != nil {
		t.Fatal(err)
	}
	want := collect.Owed{Rollouts: 6, Tasks: 3, Repeats: 2, Servers: 1}
	if joined.Owed != want || joined.Done != 5 || joined.Failed != 1 || mean(&joined.Summary) != 0.6 || joined.Parts != 2 {
		t.Errorf("joined %+v with mean %v, want 5 done and 1 failed of %+v", joined, mean(&joined.Summary), want)
	}
	if diff := cmp.Diff([]collect.Rollout{rollout("1", 1, 0), rollout("2", 2, 0)}, sortedRollouts(joined.Twice)); diff != "" {
		t.Errorf("twice (-want +got):\n%s", diff)
	}
	if got := len(readLines(t, collect.FilesOf(filepath.Join(b.dir, "joined", "all.jsonl")).Inputs)); got != 6 {
		t.Errorf("%d inputs are joined, want 6", got)
	}
}

// An earlier joined output that matches is joined too: it may have been resumed, and
// what it alone has must not be lost.
func TestAggregateKeepsWhatAJoinedOutputAloneHas(t *testing.T) {
	b := shards(t)
	config, _ := b.joining()
	if _, err := collect.Aggregate(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	alone := strings.Replace(resultRow(99, 0, "1"), `"_ng_environment_server":"env"`, `"_ng_environment_server":"env","alone":true`, 1)
	failures := read(t, b.files().Failures)
	writeFile(t, b.files().Rollouts, read(t, b.files().Rollouts)+alone)
	config.Overwrite = true
	joined, err := collect.Aggregate(t.Context(), config)
	if err != nil || joined.Done != 12 || len(joined.Twice) != 0 || !strings.HasSuffix(read(t, b.files().Rollouts), alone) {
		t.Errorf("joined %+v, %v, want 12 done, nothing twice, and the last line as it was", joined, err)
	}
	if got := read(t, b.files().Failures); got != failures {
		t.Errorf("failures %s, want them once:\n%s", got, failures)
	}
}

// A joined output that has got more meanwhile is not replaced by one that lacks it.
func TestAggregateDoesNotReplaceWhatWouldBeLost(t *testing.T) {
	for name, more := range map[string]struct{ results, failures, says string }{
		"a result":  {resultRow(99, 0, "1"), "", "1 results and 0 failed attempts that they lack"},
		"a failure": {"", strings.Replace(failureRow(3, 0, false), "boom", "again", 1), "0 results and 1 failed attempts that they lack"},
	} {
		t.Run(name, func(t *testing.T) {
			b := shards(t)
			config, _ := b.joining()
			config.Patterns = []string{filepath.Join(filepath.Dir(b.config.Output), "rollouts.shard-*.jsonl")}
			config.Overwrite = true
			for range 2 { // the same again replaces the same
				if _, err := collect.Aggregate(t.Context(), config); err != nil {
					t.Fatal(err)
				}
			}
			writeFile(t, b.files().Rollouts, read(t, b.files().Rollouts)+more.results)
			writeFile(t, b.files().Failures, read(t, b.files().Failures)+more.failures)
			before := b.snapshot(t)
			_, err := collect.Aggregate(t.Context(), config)
			var changed *collect.ChangedError
			if !errors.As(err, &changed) || !strings.HasSuffix(err.Error(), more.says) {
				t.Errorf("got %v, want a refusal with %s", err, more.says)
			}
			if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
		})
	}
}

// Names that a shell has put in the place of a pattern are taken for what they are, and
// a file that has two of them is one, with the files beside it.
func TestAggregateOfNames(t *testing.T) {
	b := shards(t)
	config, notes := b.joining()
	dir := filepath.Dir(b.config.Output)
	writeFile(t, collect.FilesOf(b.part(2)).Inputs+".next", "half a li")
	writeFile(t, b.config.Output+".next", "half a li")
	if err := os.Symlink(filepath.Base(b.part(1)), filepath.Join(dir, "latest.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(b.dir, "alias")); err != nil {
		t.Fatal(err)
	}
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	third := filepath.Join(b.dir, "alias", filepath.Base(b.part(3)))
	config.Patterns = append([]string{third, dir + "/./" + filepath.Base(b.part(1))}, entries...)
	joined, err := collect.Aggregate(t.Context(), config)
	if err != nil || joined.Parts != 3 || joined.Done != 11 || joined.Failed != 1 || len(joined.Twice)+len(joined.MissingShards)+len(*notes) != 0 {
		t.Errorf("joined %+v, %v, notes %q; want three parts, none missing, and nothing twice", joined, err, *notes)
	}
}

// A name may be one that would be no pattern, or another.
func TestAggregateOfANameThatIsAPattern(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a[1]", "r.jsonl")
	writeFile(t, path, resultRow(0, 0, "1"))
	joined, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{path}, Output: filepath.Join(t.TempDir(), "joined.jsonl")})
	if err != nil || joined.Done != 1 {
		t.Errorf("joined %+v, %v, want one done", joined, err)
	}
}

// Shards that are run anew are joined anew: that an earlier join has had other failures
// is no loss.
func TestAggregateOfShardsThatAreRunAnew(t *testing.T) {
	b := shards(t)
	config, _ := b.joining()
	config.Patterns = []string{b.part(1), b.part(2), b.part(3)}
	config.Overwrite = true
	if _, err := collect.Aggregate(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for name, failed := range map[string]string{"as often as before": strings.Replace(failureRow(3, 0, true), "boom", "in another way", 1), "not at all": ""} {
		writeFile(t, collect.FilesOf(b.part(1)).Failures, failed)
		if failed == "" {
			writeFile(t, b.part(1), read(t, b.part(1))+resultRow(3, 0, "1"))
		}
		if _, err := collect.Aggregate(t.Context(), config); err != nil {
			t.Errorf("a rollout that has failed %s: %v", name, err)
		}
	}
}

// Shards are those of their own output; what another division of it has left is noted.
func TestShardsOfSeveralOutputs(t *testing.T) {
	for _, test := range []struct {
		name    string
		there   []string
		missing []string
		notes   int
	}{
		{"all of one", []string{"a.shard-01-of-02.jsonl", "a.shard-02-of-02.jsonl"}, nil, 0},
		{"a half of each of two", []string{"a.shard-01-of-02.jsonl", "b.shard-02-of-02.jsonl"}, []string{"a.shard-02-of-02.jsonl", "b.shard-01-of-02.jsonl"}, 0},
		{"two divisions", []string{"a.shard-01-of-02.jsonl", "a.shard-02-of-02.jsonl", "a.shard-01-of-03.jsonl", "a.shard-03-of-03.jsonl"}, []string{"a.shard-02-of-03.jsonl"}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for i, name := range test.there {
				path := filepath.Join(dir, name)
				writeFile(t, path, resultRow(i, 0, "1"))
				writeFile(t, collect.FilesOf(path).Inputs, fmt.Sprintf(`{"_ng_task_index":%d,"_ng_rollout_index":0,"task_id":{}}`+"\n", i))
			}
			var notes []string
			joined, err := collect.Aggregate(t.Context(), collect.AggregateConfig{
				Patterns: []string{filepath.Join(dir, "*.shard-*.jsonl")}, Output: filepath.Join(dir, "joined.jsonl"),
				Note: func(note string) { notes = append(notes, note) },
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.missing, bases(joined.MissingShards)); diff != "" {
				t.Errorf("missing shards (-want +got):\n%s", diff)
			}
			if len(notes) != test.notes || len(notes) > 0 && !strings.Contains(notes[0], "some may be left from another run") {
				t.Errorf("notes %q, want %d", notes, test.notes)
			}
		})
	}
}

// An earlier joined output that matches is known as such, however its name is spelled.
func TestAggregateKnowsItsOutputByAnyName(t *testing.T) {
	for name, spell := range map[string]func(t *testing.T, path string) string{
		"with dots": func(_ *testing.T, path string) string {
			return filepath.Dir(path) + "/./" + filepath.Base(path)
		},
		"through a link to its folder": func(t *testing.T, path string) string {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(filepath.Dir(path), link); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(link, filepath.Base(path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := shards(t)
			config, notes := b.joining()
			if _, err := collect.Aggregate(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			before := b.snapshot(t)
			config.Output, config.Overwrite = spell(t, config.Output), true
			joined, err := collect.Aggregate(t.Context(), config)
			if err != nil || joined.Parts != 4 || joined.Done != 11 || len(joined.Twice)+len(*notes) != 0 {
				t.Errorf("joined %+v, %v, notes %q; want four parts, and nothing twice", joined, err, *notes)
			}
			if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
		})
	}
}

// block has a folder be where a file is to be, which nothing takes away.
func block(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(path, "something"), "")
}

// Inputs that cannot take their place leave the results as they were, which come last.
func TestAggregatePutsTheResultsLast(t *testing.T) {
	b := shards(t)
	config, _ := b.joining()
	config.Patterns, config.Overwrite = []string{filepath.Join(filepath.Dir(b.config.Output), "rollouts.shard-*.jsonl")}, true
	before, _, _ := strings.Cut(read(t, b.part(1)), "\n") // the shards have it too
	writeFile(t, b.files().Rollouts, before+"\n")
	block(t, b.files().Inputs)
	_, err := collect.Aggregate(t.Context(), config)
	var output *collect.OutputError
	if !errors.As(err, &output) || output.File != b.files().Inputs {
		t.Errorf("got %v, want an error that names %s", err, b.files().Inputs)
	}
	if got := read(t, b.files().Rollouts); got != before+"\n" {
		t.Errorf("the results are\n%s, want\n%s", got, before)
	}
}

// An aggregation that fails at the last owns nothing any more.
func TestAggregateThatFailsOwnsNothing(t *testing.T) {
	b := shards(t)
	config, _ := b.joining()
	config.Overwrite = true
	block(t, b.files().Aggregate)
	_, err := collect.Aggregate(t.Context(), config)
	var output *collect.OutputError
	if !errors.As(err, &output) || output.File != b.files().Aggregate {
		t.Errorf("got %v, want an error that names %s", err, b.files().Aggregate)
	}
	if err := os.RemoveAll(b.files().Aggregate); err != nil {
		t.Fatal(err)
	}
	b.config.Resume = true
	if summary := b.run(t); summary.Done != 11 {
		t.Errorf("summary %+v, want 11 done", summary)
	}
}

// A shard may be resumed while the metrics of what was joined are computed: no more
// than a look was taken at it.
func TestAggregateOwnsNoShard(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which closes what is forgotten
	b := shards(t)
	config, _ := b.joining()
	resumed := b.config
	resumed.Output, resumed.Shard, resumed.Resume, resumed.RetryTerminal = b.part(1), collect.Shard{Part: 1, Of: 3}, true, true
	resumed.Target = atOnce(nil)
	var summary *collect.Summary
	var ran error
	config.Metrics = asking{nil, func(ctx context.Context, _ string, _ func() (io.ReadCloser, error)) ([]byte, error) {
		summary, ran = collect.Run(ctx, resumed)
		return []byte(`{}`), nil
	}}
	if _, err := collect.Aggregate(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if ran != nil || summary.Done != 4 {
		t.Errorf("the shard was resumed with %v and %+v, want all four done", ran, summary)
	}
}

// An aggregation that is stopped before the outputs are joined writes nothing.
func TestAggregateThatIsStopped(t *testing.T) {
	b := shards(t)
	config, _ := b.joining()
	before := b.snapshot(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := collect.Aggregate(ctx, config); !errors.Is(err, collect.ErrStopped) {
		t.Errorf("got %v, want that it was stopped", err)
	}
	if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}
