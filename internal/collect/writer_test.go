package collect_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/scripted"
)

// A reader looks for the line of each attempt that it is told of.
type reader struct {
	collect.Unobserved
	t       *testing.T
	files   collect.Files
	results string // as far as they were read
	failed  string
	told    int
}

func (r *reader) Ended(rollout collect.Rollout, attempt episode.Attempt) {
	r.told++
	path, text := r.files.Rollouts, &r.results
	if attempt.Failure != nil {
		path, text = r.files.Failures, &r.failed
	}
	file, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(file), *text) {
		r.t.Errorf("%s does not hold what it held: %v", path, err)
	}
	*text = string(file)
	want := fmt.Sprintf(`"_ng_task_index":%d,`, rollout.TaskIndex)
	if attempt := attempt.EpisodeID.Attempt; attempt > 0 {
		want += fmt.Sprintf(`"_ng_rollout_index":0,"_ng_attempt_index":%d,`, attempt)
	} else {
		want += `"_ng_rollout_index":0,"_ng_env`
	}
	if at := strings.Index(*text, want); at < 0 || !strings.Contains((*text)[at:], "}\n") || strings.Contains((*text)[at+1:], want) {
		r.t.Errorf("attempt %d of task %d is told of, and its line is not in %s once", attempt.EpisodeID.Attempt, rollout.TaskIndex, path)
	}
}

// Lines of many attempts that end at once are whole, in their file once, and there
// before they count.
func TestLinesAreOnDiskBeforeTheyCount(t *testing.T) {
	const tasks = 300
	s := atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		var n int
		_, _ = fmt.Sscanf(r.EpisodeID.RolloutID, "%d-0", &n)
		if n%3 == 0 && r.EpisodeID.Attempt == 0 {
			return nil, failures.New(failures.StageAgent, "", strings.Repeat("é\n", n))
		}
		size := n
		if n%50 == 1 { // more than is written at once
			size = 200_000
		}
		return verdict(fmt.Sprintf(`"reward":%d,"pad":"%s"`, n, strings.Repeat("x", size))), nil
	})
	b := onStage(t, flat(tasks), s)
	b.config.Concurrency = 64
	r := &reader{t: t, files: b.files()}
	b.config.Observer = r
	summary := b.run(t)
	if summary.Done != tasks || summary.Retries != tasks/3 || r.told != tasks+tasks/3 {
		t.Errorf("summary %+v, and %d attempts were told of; want %d done with %d retries", summary, r.told, tasks, tasks/3)
	}
	results := b.results(t)
	for i, l := range results {
		if l.TaskIndex != int64(i) || l.Reward != float64(i) {
			t.Fatalf("line %d is of task %d with %g", i, l.TaskIndex, l.Reward)
		}
	}
	if failed := b.failures(t); len(results) != tasks || len(failed) != tasks/3 {
		t.Errorf("%d results and %d failures, want %d and %d", len(results), len(failed), tasks, tasks/3)
	}
}

// An output that vanishes stops the run: nothing begins any more, what runs is
// closed, and the error names the file.
func TestAnOutputThatVanishesStopsTheRun(t *testing.T) {
	for _, test := range []struct {
		name   string
		vanish func(f collect.Files) error
		file   func(f collect.Files) string
		says   string
		failed bool // it is a failure that cannot be written
	}{
		{"the results are taken away", func(f collect.Files) error { return os.Remove(f.Rollouts) }, func(f collect.Files) string { return f.Rollouts }, "no such file", false},
		{"the results are moved", func(f collect.Files) error { return os.Rename(f.Rollouts, f.Rollouts+".old") }, func(f collect.Files) string { return f.Rollouts }, "no such file", false},
		{"others take the place of the results", func(f collect.Files) error {
			return errors.Join(os.Remove(f.Rollouts), os.WriteFile(f.Rollouts, nil, 0o644))
		}, func(f collect.Files) string { return f.Rollouts }, "replaced", false},
		{"the failures are taken away", func(f collect.Files) error { return os.Remove(f.Failures) }, func(f collect.Files) string { return f.Failures }, "no such file", true},
		{"the folder is taken away", func(f collect.Files) error { return os.RemoveAll(filepath.Dir(f.Rollouts)) }, func(f collect.Files) string { return f.Rollouts }, "no such file", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &stage{}
			b := onStage(t, flat(9), s)
			b.config.Concurrency = 1
			b.config.Target = atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
				s.attempts = append(s.attempts, r.EpisodeID.CaptureKey()+"@")
				if is(r, "1-0") {
					if err := test.vanish(b.files()); err != nil {
						t.Error(err)
					}
					if test.failed {
						return nil, refusal()
					}
				}
				return nil, nil
			})
			summary, err := collect.Run(t.Context(), b.config)
			var output *collect.OutputError
			if !errors.As(err, &output) || output.File != test.file(b.files()) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want an error that names %s and says %q", err, test.file(b.files()), test.says)
			}
			if diff := cmp.Diff([]string{"0-0", "1-0"}, s.played()); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
			if summary.Done != 1 || summary.Failed != 0 {
				t.Errorf("summary %+v, want one done: the other is on no disk", summary)
			}
			if moved := b.files().Rollouts + ".old"; strings.HasSuffix(test.name, "moved") && len(readLines(t, moved)) != 1 {
				t.Error("the file that was moved has a line that does not count")
			}
		})
	}
}

// A file that could not be written once gets no further line, also when it is there
// again: nothing shows what its last line is.
func TestAnOutputThatBrokeStaysAsItWas(t *testing.T) {
	b := onStage(t, flat(9), nil)
	away := b.files().Rollouts + ".away"
	begun := make(chan struct{}, 2)
	b.config.Concurrency = 2
	b.config.Target = &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		begun <- struct{}{}
		var err error
		if is(r, "0-0") {
			err = os.Rename(b.files().Rollouts, away)
		} else {
			<-ctx.Done() // it could not be written
			err = os.Rename(away, b.files().Rollouts)
		}
		if err != nil {
			t.Error(err)
		}
		return nil, nil
	}}
	summary, err := collect.Run(t.Context(), b.config)
	var output *collect.OutputError
	if !errors.As(err, &output) || output.File != b.config.Output || summary.Done != 0 {
		t.Errorf("got %v and %+v, want an error that names %s", err, summary, b.config.Output)
	}
	if got := read(t, b.files().Rollouts); got != "" || len(begun) != 2 {
		t.Errorf("after %d attempts the file holds %q, want two and nothing", len(begun), got)
	}
}

// What runs when an output vanishes is closed, and leaves no line.
func TestWhatRunsWhenAnOutputVanishesIsClosed(t *testing.T) {
	b := newBench(t, flat(20))
	b.config.Concurrency = 4
	var once sync.Once
	b.Play(scripted.Script{scripted.Responses: {
		{Do: func(scripted.Call) {
			if _, err := b.Wait(t.Context(), scripted.Responses, 4); err != nil { // the others hang by then
				t.Error(err)
			}
			once.Do(func() { _ = os.Remove(b.config.Output) })
		}},
		{Hang: true},
	}})
	summary, err := collect.Run(t.Context(), b.config)
	var output *collect.OutputError
	if !errors.As(err, &output) || output.File != b.config.Output || summary.Done+summary.Failed != 0 {
		t.Errorf("got %v and %+v, want an error that names %s", err, summary, b.config.Output)
	}
	b.allClosed(t)
	if seeds := strings.Count(fmt.Sprint(b.Routes()), "seed"); seeds != 8 || len(b.failures(t)) != 0 { // of both servers
		t.Errorf("%d seeds and %d failures, want those of four episodes and none", seeds, len(b.failures(t)))
	}
}

// A file that is cut while the run writes to it is not written on behind a hole.
func TestAnOutputThatIsCut(t *testing.T) {
	b := onStage(t, flat(3), nil)
	b.config.Target, b.config.Concurrency = atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "1-0") {
			writeFile(t, b.files().Rollouts, "")
		}
		return nil, nil
	}), 1
	_, err := collect.Run(t.Context(), b.config)
	var output *collect.OutputError
	if !errors.As(err, &output) || output.File != b.files().Rollouts || !strings.Contains(err.Error(), "has been cut") {
		t.Errorf("got %v, want that it has been cut", err)
	}
	if got := read(t, b.files().Rollouts); got != "" {
		t.Errorf("it holds %q", got)
	}
}

// What a resumption needs has to be there, also when nothing is written to it any more.
func TestFilesThatOnlyAResumptionNeeds(t *testing.T) {
	inputs := func(f collect.Files) string { return f.Inputs }
	failed := func(f collect.Files) string { return f.Failures }
	replace := func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o644)) }
	for _, test := range []struct {
		name  string
		file  func(collect.Files) string
		spoil func(path string) error
		says  string
	}{
		{"the inputs are taken away", inputs, os.Remove, "no such file"},
		{"others take the place of the inputs", inputs, replace, "replaced"},
		{"the inputs are cut", inputs, func(path string) error { return os.Truncate(path, 100) }, "has been cut"},
		{"the failures are cut", failed, func(path string) error { return os.Truncate(path, 0) }, "has been cut"},
		{"the failures are taken away", failed, os.Remove, "no such file"},
		{"others take the place of the failures", failed, replace, "replaced"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := onStage(t, flat(9), nil)
			path := test.file(b.files())
			s := atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
				if is(r, "0-0") {
					return nil, refusal()
				}
				if is(r, "1-0") {
					if err := test.spoil(path); err != nil {
						t.Error(err)
					}
				}
				return nil, nil
			})
			b.config.Target, b.config.Concurrency, b.config.Policy.MaxAttempts = s, 1, 1
			summary, err := collect.Run(t.Context(), b.config)
			var output *collect.OutputError
			if !errors.As(err, &output) || output.File != path || !strings.Contains(err.Error(), test.says) || summary.Done != 1 {
				t.Errorf("got %v with %d done, want an error that names %s and says %q, with 1", err, summary.Done, path, test.says)
			}
			if diff := cmp.Diff([]string{"0-0", "1-0"}, s.played()); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
		})
	}
}
