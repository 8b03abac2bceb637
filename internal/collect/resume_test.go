package collect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
)

// atOnce is a stage whose attempts take no time. play may be nil: all have a reward
// of 1.
func atOnce(play func(r *episode.Request) (*episode.Result, *failures.Failure)) *stage {
	return &stage{play: func(_ context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if play == nil {
			return nil, nil
		}
		return play(r)
	}}
}

// played are the attempts since the last look, in an order that does not depend on
// who came first.
func (s *stage) played() []string {
	keys := s.keys()
	s.attempts = nil
	slices.Sort(keys)
	return keys
}

// resultRow and failureRow are rows as a run leaves them, as far as a resumption
// looks at them.
func resultRow(task, rollout int, reward string) string {
	return fmt.Sprintf(`{"reward":%s,"_ng_task_id":{"taskset":"tasks","task_id":"%[2]d"},"_ng_task_index":%[2]d,"_ng_rollout_index":%d,"_ng_environment_server":"env"}`+"\n", reward, task, rollout)
}

func failureRow(task, rollout int, terminal bool) string {
	return fmt.Sprintf(`{"_ng_task_index":%d,"_ng_rollout_index":%d,"_ng_failure_terminal":%t,"_ng_failure_stage":"agent","failure_kind":"agent_run_error","failure_reason":"boom"}`+"\n", task, rollout, terminal)
}

// left has the files of the output be what an earlier run has left.
func (b *bench) left(t *testing.T, results, failed string) {
	t.Helper()
	writeFile(t, b.files().Rollouts, results)
	writeFile(t, b.files().Failures, failed)
	_ = os.Remove(b.files().Aggregate) // where there is one
}

// The metrics of an output to which nothing is added stay when nobody is there to
// compute them anew: they may be a server's. Those of one that has changed do not.
func TestMetricsOfAnOutputThatStaysAsItIs(t *testing.T) {
	failed := func(r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "1-0") {
			return nil, refusal()
		}
		return nil, nil
	}
	const before = `[{"agent_metrics":{"the verifier's":1}}]`
	for _, test := range []struct {
		name   string
		play   func(*episode.Request) (*episode.Result, *failures.Failure)
		away   error // of whoever computes metrics
		change func(*testing.T, *bench)
		stays  bool
		note   string
	}{
		{name: "somebody is there", change: func(*testing.T, *bench) {}},
		{name: "nobody is there", away: errors.New("nobody"), change: func(*testing.T, *bench) {}, stays: true, note: "stays as it was"},
		{name: "a rollout has failed too often", play: failed, away: errors.New("nobody"), change: func(*testing.T, *bench) {}, stays: true, note: "stays as it was"},
		{name: "they were statistics of our own", away: errors.New("nobody"), change: func(t *testing.T, b *bench) {
			writeFile(t, b.files().Aggregate, `[{"agent_metrics":{"num_samples":7,"num_masked":0}}]`)
		}, note: "statistics of this program"},
		{name: "there are more results", away: errors.New("nobody"), change: func(_ *testing.T, b *bench) { b.config.Repeats = 2 }, note: "statistics of this program"},
		{name: "the failure is tried again", play: failed, away: errors.New("nobody"), change: func(_ *testing.T, b *bench) { b.config.Policy.MaxAttempts = 9 }, note: "statistics of this program"},
		{name: "somebody has changed the results", away: errors.New("nobody"), change: func(t *testing.T, b *bench) {
			b.left(t, resultRow(0, 0, "1")+resultRow(1, 0, "0"), "")
			writeFile(t, b.files().Aggregate, before)
			later := time.Now().Add(time.Hour)
			if err := os.Chtimes(b.files().Rollouts, later, later); err != nil {
				t.Fatal(err)
			}
		}, note: "statistics of this program"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := onStage(t, flat(2), atOnce(test.play))
			b.run(t)
			writeFile(t, b.files().Aggregate, before)
			test.change(t, b)
			b.config.Resume = true
			b.config.Target = asking{atOnce(test.play), func(context.Context, string, func() (io.ReadCloser, error)) ([]byte, error) {
				return []byte(`{"agent_metrics":{"anew":1}}`), test.away
			}}
			notes := b.noted()
			summary := b.run(t)
			got := read(t, b.files().Aggregate)
			if !summary.Aggregated || (got == before) != test.stays || strings.Contains(got, "anew") != (test.away == nil) {
				t.Errorf("aggregated: %t, the metrics are %s", summary.Aggregated, got)
			}
			if said := strings.Join(*notes, "\n"); !strings.Contains(said, test.note) || (test.note == "") != (said == "") {
				t.Errorf("notes %q, want %q", said, test.note)
			}
		})
	}
}

// However soon a resumption ends, what earlier runs have left is in what it says.
func TestAResumptionThatEndsEarlyTellsOfAllThatIsDone(t *testing.T) {
	for name, end := range map[string]func(*collect.Config){
		"it is drained":         func(c *collect.Config) { c.Drain = afterwards(time.Second / 2) },
		"its budget is used up": func(c *collect.Config) { c.Deadline = time.Now().Add(time.Nanosecond) },
		"its output is gone":    func(c *collect.Config) { time.AfterFunc(time.Second/2, func() { _ = os.Remove(c.Output) }) },
	} {
		t.Run(name, func(t *testing.T) {
			watch := &watcher{}
			summary := playTo(t, 9, &stage{}, func(c *collect.Config) {
				files := collect.FilesOf(c.Output)
				// Nothing is known of the first two: an attempt at one of them begins and ends.
				writeFile(t, files.Rollouts, resultRow(2, 0, "1")+resultRow(7, 0, "0"))
				writeFile(t, files.Failures, failureRow(5, 0, true)+failureRow(8, 0, false))
				c.Resume, c.Observer = true, watch
				end(c)
			}, func(error, time.Duration) {})
			if watch.settled != 3 || watch.failed != 1 {
				t.Errorf("%d rollouts were settled before, %d of them failed, want 3 and 1", watch.settled, watch.failed)
			}
			if summary.Done < 2 || summary.Failed != 1 || summary.Missing() != 8-summary.Done || mean(summary) == "none" {
				t.Errorf("summary %+v, want two done and one failed at least", summary)
			}
		})
	}
}

// Metrics that are not whole are computed anew, whoever is there to do it.
func TestMetricsThatEndWithin(t *testing.T) {
	inMemory(t)
	s := atOnce(nil)
	b := onStage(t, flat(2), s)
	b.run(t)
	whole := read(t, b.files().Aggregate)
	b.config.Resume = true
	b.config.Target = asking{s, func(context.Context, string, func() (io.ReadCloser, error)) ([]byte, error) {
		return nil, errors.New("nobody")
	}}
	for end := range strings.TrimSuffix(whole, "\n") {
		writeFile(t, b.files().Aggregate, whole[:end])
		b.run(t)
		if got := read(t, b.files().Aggregate); !strings.Contains(got, "num_samples") || !json.Valid([]byte(got)) {
			t.Fatalf("cut at %d: the metrics are %s", end, got)
		}
	}
}

// A rollout that failed for good once is not tried again of itself, whatever its last
// failure was, and is counted so.
func TestARolloutThatFailedForGoodOnceStaysSo(t *testing.T) {
	b := onStage(t, flat(1), atOnce(func(*episode.Request) (*episode.Result, *failures.Failure) { return nil, refusal() }))
	b.run(t)
	b.left(t, "", failureRow(0, 0, true))
	b.config.Resume, b.config.RetryTerminal = true, true
	if summary := b.run(t); summary.Attempts != 1 || summary.FailedForGood != 1 {
		t.Errorf("summary %+v, want one attempt and one that failed for good", summary)
	}
}

// A run that is resumed runs what has neither a result nor failed for good, and
// counts all else as it was.
func TestAResumptionRunsWhatIsLeft(t *testing.T) {
	var results, failed string
	for task := range 5 {
		results += resultRow(task, 0, "1")
	}
	failed = failureRow(5, 0, false) + failureRow(6, 0, false) + failureRow(7, 0, true) + failureRow(6, 0, false) +
		failureRow(4, 0, false) + failureRow(3, 0, true) // that went well later
	for _, test := range []struct {
		name   string
		change func(*collect.Config)
		played []string
		failed int
	}{
		{"as it was", nil, []string{"5-0-a1", "6-0-a2", "8-0", "9-0"}, 1},
		{"with terminal failures once more", func(c *collect.Config) { c.RetryTerminal = true }, []string{"5-0-a1", "6-0-a2", "7-0-a1", "8-0", "9-0"}, 0},
		{"with two attempts in all", func(c *collect.Config) { c.Policy.MaxAttempts = 2 }, []string{"5-0-a1", "8-0", "9-0"}, 2},
		{"with one attempt in all", func(c *collect.Config) { c.Policy.MaxAttempts = 1 }, []string{"8-0", "9-0"}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := atOnce(nil)
			b := onStage(t, flat(10), s)
			b.run(t)
			s.played()
			b.left(t, results, failed)
			b.config.Resume = true
			if test.change != nil {
				test.change(&b.config)
			}
			watch := &watcher{}
			b.config.Observer = watch
			summary := b.run(t)
			if diff := cmp.Diff(test.played, s.played()); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
			if summary.Done != 10-test.failed || summary.Failed != test.failed || summary.Attempts != len(test.played) || summary.Retries != 0 || summary.Missing() != 0 {
				t.Errorf("summary %+v, want %d failed after %d attempts", summary, test.failed, len(test.played))
			}
			if !strings.HasPrefix(read(t, b.files().Rollouts), results) || read(t, b.files().Failures) != failed {
				t.Error("what was there is not there any more")
			}
			if watch.settled != 5+test.failed || watch.failed != test.failed {
				t.Errorf("%d rollouts were settled before, %d of them failed, want %d and %d", watch.settled, watch.failed, 5+test.failed, test.failed)
			}
		})
	}
}

// A watcher counts what it is told of earlier runs.
type watcher struct {
	stopper
	settled, failed int
}

func (w *watcher) DoneBefore(float64, bool)               { w.settled++ }
func (w *watcher) FailedBefore()                          { w.settled++; w.failed++ }
func (w *watcher) Ended(collect.Rollout, episode.Attempt) {}

// What failed for good is tried once more when that is asked for, and once only,
// whatever comes of it.
func TestATerminalFailureIsTriedOnceMore(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		t.Run(fmt.Sprintf("to a failure that is terminal: %t", terminal), func(t *testing.T) {
			s := atOnce(func(*episode.Request) (*episode.Result, *failures.Failure) {
				f := refusal()
				f.Terminal = terminal
				return nil, f
			})
			b := onStage(t, flat(1), s)
			b.left(t, "", failureRow(0, 0, false)+failureRow(0, 0, true))
			b.config.Resume, b.config.RetryTerminal = true, true
			b.config.Policy.MaxAttempts = 9
			for _, want := range []string{"0-0-a2", "0-0-a3"} {
				summary := b.run(t)
				if diff := cmp.Diff([]string{want}, s.played()); diff != "" {
					t.Fatalf("attempts (-want +got):\n%s", diff)
				}
				if summary.Failed != 1 || summary.Retries != 0 {
					t.Errorf("summary %+v, want one failed without a retry", summary)
				}
			}
			b.config.RetryTerminal = false
			if summary := b.run(t); summary.Failed != 1 || summary.FailedForGood != 1 || len(s.played()) != 0 {
				t.Errorf("summary %+v, want one failed for good and no attempt", summary)
			}
		})
	}
}

// A fresh run has nothing to do with what an earlier one failed at.
func TestAFreshRunOverLeftoverFailures(t *testing.T) {
	s := atOnce(nil)
	b := onStage(t, flat(2), s)
	failed := strings.Repeat(failureRow(0, 0, false), 3)
	writeFile(t, b.files().Failures, failed)
	err := b.refused(t)
	var exists *collect.ExistsError
	if !errors.As(err, &exists) || exists.File != b.files().Failures {
		t.Errorf("got %v, want an error that names %s", err, b.files().Failures)
	}
	if diff := cmp.Diff(map[string]string{filepath.Base(b.files().Failures): failed}, b.snapshot(t)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	b.config.Overwrite = true
	if summary := b.run(t); summary.Done != 2 || summary.Failed != 0 {
		t.Errorf("summary %+v, want 2 done", summary)
	}
	if diff := cmp.Diff([]string{"0-0", "1-0"}, s.played()); diff != "" || len(b.failures(t)) != 0 {
		t.Errorf("%d failures are left; attempts (-want +got):\n%s", len(b.failures(t)), diff)
	}
}

// Each file may end at any byte of its last line: what is half there is taken away,
// and what is whole is kept, with its line end or without.
func TestFilesThatEndWithinTheirLastLine(t *testing.T) {
	inMemory(t)
	s := atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "2-0") || is(r, "3-0") {
			return nil, refusal()
		}
		return nil, nil
	})
	b := onStage(t, flat(4), s)
	b.config.Concurrency, b.config.Policy.MaxAttempts = 1, 1
	b.run(t)
	b.config.Resume, b.config.Concurrency = true, 4
	b.config.Policy.MaxAttempts = 2
	full := map[string]string{}
	for _, path := range []string{b.files().Rollouts, b.files().Failures, b.files().Inputs} {
		full[path] = read(t, path)
	}
	s.play = func(context.Context, *episode.Request) (*episode.Result, *failures.Failure) { return nil, nil }
	s.played()
	for _, test := range []struct {
		path        string
		whole, torn []string // attempts of the resumption
	}{
		{b.files().Rollouts, []string{"2-0-a1", "3-0-a1"}, []string{"1-0", "2-0-a1", "3-0-a1"}},
		{b.files().Failures, []string{"2-0-a1", "3-0-a1"}, []string{"2-0-a1", "3-0"}},
		{b.files().Inputs, []string{"2-0-a1", "3-0-a1"}, []string{"2-0-a1", "3-0-a1"}},
	} {
		name := filepath.Base(test.path)
		begin := strings.LastIndex(strings.TrimSuffix(full[test.path], "\n"), "\n") + 1
		for end := begin; end <= len(full[test.path]); end++ {
			for _, tail := range []string{"", "\x00\x00\x00"} {
				if tail != "" && end%16 != 0 && end != begin && end != len(full[test.path]) {
					continue // any byte is like another
				}
				for path, text := range full {
					writeFile(t, path, text)
				}
				writeFile(t, test.path, full[test.path][:end]+tail)
				notes := b.noted()
				summary := b.run(t)
				atEnd := end == len(full[test.path])                                                // what comes then is a line of its own
				want, torn := test.torn, tail != "" || end > begin || test.path == b.files().Inputs // a rollout that has failed is not among them
				if atEnd || end == len(full[test.path])-1 && tail == "" {
					want, torn = test.whole, tail != "" && test.path != b.files().Inputs // which are read as far as they say something
				}
				if diff := cmp.Diff(want, s.played()); diff != "" {
					t.Fatalf("%s cut at %d, then %q: attempts (-want +got):\n%s", name, end, tail, diff)
				}
				if summary.Done != 4 || torn != (len(*notes) == 1) {
					t.Fatalf("%s cut at %d, then %q: summary %+v, notes %q; want 4 done, and a note when a line is cut away", name, end, tail, summary, *notes)
				}
				if diff := cmp.Diff([]string{"0-0", "1-0", "2-0", "3-0"}, pairs(b.results(t))); diff != "" {
					t.Fatalf("%s cut at %d, then %q: results (-want +got):\n%s", name, end, tail, diff)
				}
				b.failures(t) // each line is whole
				if got := read(t, b.files().Inputs); got != full[b.files().Inputs] {
					t.Fatalf("%s cut at %d, then %q: the inputs are\n%s", name, end, tail, got)
				}
			}
		}
	}
}

// Nothing is mended before all files are found to be in order.
func TestABrokenFileStopsAResumption(t *testing.T) {
	s := atOnce(nil)
	for _, test := range []struct {
		name   string
		change func(lines []string) []string
		line   int
		says   string
	}{
		{"a half line", func(l []string) []string { l[1] = "{\"half\":\n"; return l }, 2, "JSON"},
		{"no object", func(l []string) []string { l[1] = "[1]\n"; return l }, 2, "an object"},
		{"no index", func(l []string) []string { l[1] = "{\"reward\":1}\n"; return l }, 2, "lacks _ng_task_index"},
		{"no rollout index", func(l []string) []string { l[1] = "{\"reward\":1,\"_ng_task_index\":1}\n"; return l }, 2, "lacks _ng_rollout_index"},
		{"an index that is none", func(l []string) []string {
			l[1] = "{\"reward\":1,\"_ng_task_index\":1.5,\"_ng_rollout_index\":0}\n"
			return l
		}, 2, "_ng_task_index is no whole number"},
		{"NUL bytes", func(l []string) []string { l[1] = "\x00\x00\n"; return l }, 2, "JSON"},
		{"behind blank lines", func(l []string) []string { return slices.Concat(l[:1], []string{"\n", "  \r\n", "{\n"}, l[1:]) }, 4, "JSON"},
	} {
		for _, which := range []string{"results", "failures"} {
			t.Run(test.name+" among the "+which, func(t *testing.T) {
				b := onStage(t, flat(4), s)
				b.run(t)
				results := test.change([]string{resultRow(0, 0, "1"), resultRow(1, 0, "1"), resultRow(2, 0, "1")})
				failed := []string{failureRow(3, 0, false), failureRow(3, 0, false)}
				path := b.files().Rollouts
				if which == "failures" {
					results = []string{resultRow(0, 0, "1")}
					failed = test.change([]string{failureRow(3, 0, false), failureRow(3, 0, false), failureRow(3, 0, false)})
					path = b.files().Failures
				}
				// Both end in half a line, which would be mended.
				b.left(t, strings.Join(results, "")+`{"rew`, strings.Join(failed, "")+`{"_ng`)
				before := b.snapshot(t)
				b.config.Resume = true
				err := b.refused(t)
				var input *collect.InputError
				if !errors.As(err, &input) || input.Line != test.line || input.File != path || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v, want line %d of %s and %q", err, test.line, path, test.says)
				}
				if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
					t.Errorf("files (-before +after):\n%s", diff)
				}
			})
		}
	}
}

// A resumption whose inputs are broken, or whose dataset is, changes nothing
// either.
func TestAResumptionThatCannotBegin(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(t *testing.T, b *bench) (file string, line int)
	}{
		{"broken inputs", func(t *testing.T, b *bench) (string, int) {
			lines := strings.SplitAfter(read(t, b.files().Inputs), "\n")
			lines[1] = "{\"half\":\n"
			writeFile(t, b.files().Inputs, strings.Join(lines, ""))
			return b.files().Inputs, 2
		}},
		{"inputs without an index", func(t *testing.T, b *bench) (string, int) {
			writeFile(t, b.files().Inputs, strings.Replace(read(t, b.files().Inputs), `"_ng_task_index":0,`, "", 1))
			return b.files().Inputs, 1
		}},
		{"inputs whose last line says nothing", func(t *testing.T, b *bench) (string, int) {
			lines := strings.SplitAfter(read(t, b.files().Inputs), "\n")
			writeFile(t, b.files().Inputs, lines[0]+"{}")
			return b.files().Inputs, 2
		}},
		{"a broken dataset", func(t *testing.T, b *bench) (string, int) {
			b.write(t, flat(3)+"{")
			return b.config.Dataset, 4
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := onStage(t, flat(3), atOnce(nil))
			b.run(t)
			b.left(t, resultRow(0, 0, "1")+resultRow(1, 0, "1")+`{"rew`, `{"_ng`)
			b.config.Resume = true
			file, number := test.change(t, b)
			before := b.snapshot(t)
			err := b.refused(t)
			var input *collect.InputError
			if !errors.As(err, &input) || input.Line != number || input.File != file {
				t.Errorf("got %v, want line %d of %s", err, number, file)
			}
			if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
		})
	}
}

// A resumption may ask for more of the same, however it is spelled, and not for
// something else.
func TestAResumptionOfAnotherDataset(t *testing.T) {
	const rows = `{"responses_create_params":{"input":"a","temperature":1.0},"n":[1,{"x":100}],"m":"é"}` + "\n" +
		`{"responses_create_params":{"input":"b"},"n":2}` + "\n"
	lines := strings.SplitAfter(rows, "\n")
	indexed := func(index int, row string) string {
		return fmt.Sprintf(`{"_ng_task_index":%d,`, index) + row[1:]
	}
	for _, test := range []struct {
		name    string
		dataset string
		change  func(*collect.Config)
		refused string // "": it is not
		played  []string
	}{
		{"the same", rows, nil, "", nil},
		{"spelled otherwise", "{ \"m\" : \"\\u00e9\",\t\"n\":[1.0, {\"x\":1e2}],\"responses_create_params\":{\"temperature\":1,\"input\":\"\\u0061\"}}\r\n" + lines[1], nil, "", nil},
		{"one row more", rows + `{"responses_create_params":{},"n":3}`, nil, "", []string{"2-0"}},
		{"a row again", rows + lines[0], nil, "", []string{"0-1"}},
		{"three repeats more", rows, func(c *collect.Config) { c.Repeats = 4 }, "", []string{"0-1", "0-2", "0-3", "1-1", "1-2", "1-3"}},
		{"reordered, with indexes of their own", indexed(1, lines[1]) + indexed(0, lines[0]), nil, "", nil},
		{"reordered, with indexes of their own, and more", indexed(2, `{"responses_create_params":{},"n":3}`+"\n") + indexed(1, lines[1]) + indexed(0, lines[0]), nil, "", []string{"2-0"}},
		{"reordered, with indexes of their own, and edited", indexed(1, lines[1]) + indexed(0, strings.Replace(lines[0], "100", "101", 1)), nil, "task tasks/0 (index 0) is not what it was", nil},
		{"reordered, without", lines[1] + lines[0], nil, "task tasks/0 (index 0) is not what it was", nil},
		{"reordered, with indexes of others", indexed(0, lines[1]) + indexed(1, lines[0]), nil, "task tasks/0 (index 0) is not what it was", nil},
		{"an edited row", strings.Replace(rows, `"n":2`, `"n":3`, 1), nil, "task tasks/1 (index 1) is not what it was", nil},
		{"an edited list", strings.Replace(rows, `{"x":100}`, `{"x":100},{}`, 1), nil, "task tasks/0 (index 0)", nil},
		{"a new field", strings.Replace(rows, `"n":2`, `"n":2,"k":null`, 1), nil, "task tasks/1 (index 1)", nil},
		{"another input of the agent", strings.Replace(rows, `"input":"b"`, `"input":"c"`, 1), nil, "task tasks/1 (index 1)", nil},
		{"another time of the agent", strings.Replace(rows, `"n":2`, `"n":2,"agent_timeout_seconds":5`, 1), nil, "task tasks/1 (index 1)", nil},
		{"another task id", strings.Replace(rows, `"n":2`, `"n":2,"task_id":"b"`, 1), nil, "task tasks/b (index 1)", nil},
		{"another taskset", rows, func(c *collect.Config) { c.Taskset = "mine" }, "task mine/0 (index 0)", nil},
		{"a parameter", rows, func(c *collect.Config) { c.Params = []collect.Param{{Name: "model", Value: []byte(`"m"`)}} }, "the dataset or a parameter has changed", nil},
		{"a parameter that was so", lines[0], func(c *collect.Config) {
			c.Params = []collect.Param{{Name: "temperature", Value: []byte(`1`)}}
		}, "1 results in the output are of rollouts that this run does not ask for", nil},
		{"fewer rows", lines[0], nil, "1 results in the output are of rollouts that this run does not ask for", nil},
		{"a smaller limit", rows, func(c *collect.Config) { c.Limit = 1 }, "does not ask for", nil},
		{"a shard", rows, func(c *collect.Config) { c.Shard = collect.Shard{Part: 1, Of: 2} }, "does not ask for", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := atOnce(nil)
			b := onStage(t, rows, s)
			b.run(t)
			s.played()
			before := b.snapshot(t)
			b.config.Resume = true
			b.write(t, test.dataset)
			if test.change != nil {
				test.change(&b.config)
			}
			summary, err := collect.Run(t.Context(), b.config)
			var changed *collect.ChangedError
			switch {
			case test.refused == "" && (err != nil || !summary.Complete()):
				t.Errorf("it was not resumed: %v, %+v", err, summary)
			case test.refused != "" && (!errors.As(err, &changed) || !strings.Contains(err.Error(), test.refused)):
				t.Errorf("got %v, want a refusal with %q", err, test.refused)
			case test.refused != "":
				if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
					t.Errorf("files (-before +after):\n%s", diff)
				}
			}
			if diff := cmp.Diff(test.played, s.played()); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
		})
	}
}

// Repeats that were run are not given up.
func TestAResumptionWithFewerRepeats(t *testing.T) {
	s := atOnce(nil)
	b := onStage(t, flat(2), s)
	b.config.Repeats = 3
	b.run(t)
	before := b.snapshot(t)
	b.config.Resume, b.config.Repeats = true, 2
	err := b.refused(t)
	var changed *collect.ChangedError
	if !errors.As(err, &changed) || !strings.Contains(err.Error(), "2 results in the output are of rollouts that this run does not ask for") {
		t.Errorf("got %v, want a refusal", err)
	}
	if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}

// A row of which nothing is known may change: it has not begun.
func TestARowThatHasNotBegunMayChange(t *testing.T) {
	s := atOnce(nil)
	b := onStage(t, flat(3), s)
	b.run(t)
	b.left(t, resultRow(0, 0, "1"), failureRow(1, 0, false))
	s.played()
	b.config.Resume = true
	b.write(t, strings.Replace(flat(3), `"n":2`, `"n":3`, 1))
	if summary := b.run(t); summary.Done != 3 {
		t.Errorf("summary %+v, want 3 done", summary)
	}
	if diff := cmp.Diff([]string{"1-0-a1", "2-0"}, s.played()); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	// One that has failed is what it was when it did.
	b.left(t, resultRow(0, 0, "1"), failureRow(1, 0, false))
	b.write(t, strings.Replace(flat(3), `"n":1`, `"n":9`, 1))
	if err := b.refused(t); !strings.Contains(err.Error(), "index 1") {
		t.Errorf("got %v, want a refusal of task 1", err)
	}
}

// Without the inputs nothing shows what the results are of, which is said.
func TestAResumptionWithoutItsInputs(t *testing.T) {
	s := atOnce(nil)
	b := onStage(t, flat(3), s)
	b.run(t)
	if err := os.Remove(b.files().Inputs); err != nil {
		t.Fatal(err)
	}
	s.played()
	b.config.Resume, b.config.Limit = true, 2
	notes := b.noted()
	if err := b.refused(t); !strings.Contains(err.Error(), "does not ask for") {
		t.Errorf("got %v, want a refusal of the smaller limit", err)
	}
	b.config.Limit, *notes = 0, nil
	if summary := b.run(t); summary.Done != 3 || len(s.played()) != 0 {
		t.Errorf("summary %+v, want 3 done without an attempt", summary)
	}
	if len(*notes) != 1 || !strings.Contains((*notes)[0], b.files().Inputs+" is not there") {
		t.Errorf("notes %q, want one that says so", *notes)
	}
	if got := len(b.inputs(t)); got != 3 {
		t.Errorf("%d inputs, want 3", got)
	}
}

// To resume what was never begun is to begin it.
func TestAResumptionOfNothing(t *testing.T) {
	b := onStage(t, flat(2), atOnce(nil))
	b.config.Resume = true
	notes := b.noted()
	if summary := b.run(t); summary.Done != 2 || len(*notes) != 0 {
		t.Errorf("summary %+v, notes %q; want 2 done and no note", summary, *notes)
	}
}

// A byte order mark that an editor has left is no part of a result.
func TestAnOutputThatAnEditorHasSaved(t *testing.T) {
	b := onStage(t, flat(2), atOnce(nil))
	b.left(t, "\uFEFF"+resultRow(0, 0, "1")+`{"half`, "\uFEFF")
	notes := b.noted()
	b.config.Resume = true
	if summary := b.run(t); summary.Done != 2 || summary.Attempts != 1 || !strings.HasPrefix(read(t, b.files().Rollouts), "\uFEFF"+resultRow(0, 0, "1")+"{\"reward\":1,") {
		t.Errorf("summary %+v, notes %q, want 2 done, one of them before", summary, *notes)
	}
}

// Inputs that lack what there are results of show nothing, and that is said.
func TestInputsThatLackWhatIsDone(t *testing.T) {
	b := onStage(t, flat(3), atOnce(nil))
	b.run(t)
	inputs := strings.SplitAfter(read(t, b.files().Inputs), "\n")
	writeFile(t, b.files().Inputs, inputs[0])
	notes := b.noted()
	b.config.Resume = true
	b.run(t)
	if len(*notes) != 1 || !strings.Contains((*notes)[0], "lacks 2 rollouts of which there are results") {
		t.Errorf("notes %q, want one that says so", *notes)
	}
}

// Metrics go only when all files can be written: a run that cannot begin leaves those
// that are there.
func TestARunThatCannotBeginLeavesTheMetrics(t *testing.T) {
	for _, name := range []string{"resume", "overwrite"} {
		t.Run(name, func(t *testing.T) {
			b := onStage(t, flat(2), atOnce(nil))
			b.run(t)
			metrics := read(t, b.files().Aggregate)
			later := time.Now().Add(time.Hour) // metrics that are older than the results go
			nowhere := filepath.Join(b.dir, "nowhere", "failures.jsonl")
			if err := errors.Join(os.Chtimes(b.files().Rollouts, later, later), os.Remove(b.files().Failures), os.Symlink(nowhere, b.files().Failures)); err != nil {
				t.Fatal(err)
			}
			b.config.Resume, b.config.Overwrite = name == "resume", name == "overwrite"
			err := b.refused(t)
			var output *collect.OutputError
			if !errors.As(err, &output) || output.File != b.files().Failures {
				t.Errorf("got %v, want an error that names %s", err, b.files().Failures)
			}
			if got := read(t, b.files().Aggregate); got != metrics {
				t.Errorf("the metrics are %s, want what they were:\n%s", got, metrics)
			}
		})
	}
}

// Another program may have named the stage of a failure as it liked: what is no name is
// told to nobody.
func TestAFailureWithAStageThatIsNoName(t *testing.T) {
	for _, stage := range []string{`\u001b[2J`, strings.Repeat("x", 101), "two words"} {
		b := onStage(t, flat(1), atOnce(nil))
		b.left(t, "", strings.Replace(failureRow(0, 0, true), `"agent"`, `"`+stage+`"`, 1))
		b.config.Resume = true
		want := []collect.FailureCount{{FailureGroup: collect.FailureGroup{Kind: failures.AgentRunError}, Count: 1, Example: "boom"}}
		if diff := cmp.Diff(want, b.run(t).Failures()); diff != "" {
			t.Errorf("stage %q: failures (-want +got):\n%s", stage, diff)
		}
	}
}

// A resumption that is to drain does not first read all that earlier runs have left: it
// does not come to a line that is broken.
func TestAResumptionIsStoppedWhileItReads(t *testing.T) {
	for name, left := range map[string][2]string{
		"results":  {resultRow(0, 0, "1") + "{\n", ""},
		"failures": {"", failureRow(0, 0, false) + "{\n"},
	} {
		t.Run(name, func(t *testing.T) {
			b := onStage(t, flat(2), atOnce(nil))
			b.left(t, left[0], left[1])
			drained := make(chan struct{})
			close(drained)
			b.config.Resume, b.config.Drain = true, drained
			if err := b.refused(t); !errors.Is(err, collect.ErrStopped) {
				t.Errorf("got %v, want that it was stopped", err)
			}
		})
	}
}
