package collect_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/progress"
	"example.com/turn/internal/scripted"
)

// full has a file be on a disk that is full.
func full(t *testing.T, path string) {
	t.Helper()
	mkdir(t, filepath.Dir(path))
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
}

// When a line cannot be written, no further episode begins, and the error names the
// file.
func TestAnOutputThatCannotBeWrittenStopsTheRun(t *testing.T) {
	b := newBench(t, flat(50))
	b.config.Concurrency = 1
	full(t, b.config.Output)
	_, err := collect.Run(t.Context(), b.config)
	var output *collect.OutputError
	if !errors.As(err, &output) || output.File != b.config.Output {
		t.Errorf("got %v, want an error that names %s", err, b.config.Output)
	}
	seeds, closes := 0, 0
	for _, route := range b.Routes() {
		switch route {
		case scripted.Seed:
			seeds++
		case scripted.CloseSession:
			closes++
		}
	}
	if seeds != 1 || closes != 1 {
		t.Errorf("%d sessions were seeded and %d closed, want 1 and 1", seeds, closes)
	}
}

// What is in flight when one file can no longer be written is cancelled, and what
// comes of it all the same is kept where its own file can be.
func TestWhatIsInFlightWhenTheDiskIsFull(t *testing.T) {
	for _, test := range []struct {
		name    string
		full    func(collect.Files) string
		results []string // rollouts of the lines that are kept
		failed  []string
		done    int
	}{
		{"the failures", func(f collect.Files) string { return f.Failures }, []string{"1-0", "2-0"}, nil, 2},
		{"the results", func(f collect.Files) string { return f.Rollouts }, nil, []string{"1-0", "2-0"}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			resultsAreKept := test.results != nil
			begun := make(chan struct{}, 9)
			var causes []error
			s := &stage{}
			s.play = func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
				begun <- struct{}{}
				if is(r, "0-0") { // whose line cannot be written
					for range 4 {
						<-begun
					}
					if resultsAreKept {
						return nil, refusal()
					}
					return nil, nil
				}
				<-ctx.Done()
				s.mu.Lock()
				causes = append(causes, context.Cause(ctx))
				s.mu.Unlock()
				switch {
				case is(r, "3-0"): // it has no line
					return nil, failures.Interrupted(failures.StageAgent, context.Cause(ctx), "in a test")
				case resultsAreKept:
					return nil, nil
				}
				return nil, refusal()
			}
			b := onStage(t, flat(50), s)
			path := test.full(b.files())
			full(t, path)
			var events strings.Builder
			meter := &progress.Meter{}
			b.config.Observer = progress.Observers{meter, progress.NewEvents(meter, &events)}
			summary, err := collect.Run(t.Context(), b.config)
			// Nobody is told of what is on no disk.
			if got := strings.Count(events.String(), `"event":"result"`); got != test.done || meter.Counts(time.Now()).Done != test.done {
				t.Errorf("%d results are told of and %d counted, want %d", got, meter.Counts(time.Now()).Done, test.done)
			}
			if got := strings.Count(events.String(), `"event":"failure"`); got != len(test.failed) {
				t.Errorf("%d failures are told of, want %d:\n%s", got, len(test.failed), events.String())
			}
			var output *collect.OutputError
			if !errors.As(err, &output) || output.File != path || !strings.Contains(err.Error(), "no space left") {
				t.Errorf("got %v, want an error that names %s", err, path)
			}
			if diff := cmp.Diff([]string{"0-0", "1-0", "2-0", "3-0"}, s.played()); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
			for _, cause := range causes {
				var stop *failures.Stop
				if !errors.As(cause, &stop) || stop.Kind != failures.PersistenceFailed || !strings.Contains(stop.Reason, path) {
					t.Errorf("one was cancelled with %v, want that %s could not be written", cause, path)
				}
			}
			if summary.Done != test.done {
				t.Errorf("summary %+v, want %d done", summary, test.done)
			}
			for file, want := range map[string][]string{b.files().Rollouts: test.results, b.files().Failures: test.failed} {
				if file == path {
					continue
				}
				if diff := cmp.Diff(want, pairs(readLines(t, file))); diff != "" {
					t.Errorf("%s (-want +got):\n%s", filepath.Base(file), diff)
				}
			}
			if _, err := os.Stat(b.files().Aggregate); !os.IsNotExist(err) {
				t.Error("there are metrics of a run that was broken off")
			}
		})
	}
}

// Lines of both files that come at once do not share their fate.
func TestALineThatCannotBeWrittenStopsOnlyItsOwnFile(t *testing.T) {
	const tasks = 64
	for name, path := range map[string]func(collect.Files) string{
		"the failures": func(f collect.Files) string { return f.Failures },
		"the results":  func(f collect.Files) string { return f.Rollouts },
	} {
		t.Run(name, func(t *testing.T) {
			var begun sync.WaitGroup
			begun.Add(tasks)
			b := onStage(t, flat(tasks), atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
				begun.Done()
				begun.Wait()
				if strings.ContainsAny(r.TaskID.TaskID[len(r.TaskID.TaskID)-1:], "13579") {
					return nil, refusal()
				}
				return nil, nil
			}))
			b.config.Concurrency, b.config.Policy.MaxAttempts = tasks, 1
			full(t, path(b.files()))
			summary, err := collect.Run(t.Context(), b.config)
			var output *collect.OutputError
			if !errors.As(err, &output) || output.File != path(b.files()) {
				t.Errorf("got %v, want an error that names %s", err, path(b.files()))
			}
			kept, counted := b.files().Rollouts, summary.Done
			if name == "the results" {
				kept, counted = b.files().Failures, summary.Failed
			}
			if got := len(readLines(t, kept)); got != tasks/2 || counted != tasks/2 || summary.Missing() != tasks/2 {
				t.Errorf("%d lines are kept with %+v, want %d, which count", got, summary, tasks/2)
			}
		})
	}
}

// A disk that is full before the first episode stops the run there, and takes
// nothing of an earlier output. It is no fault of the dataset, wherever in it that shows.
func TestADiskThatIsFullFromTheBeginning(t *testing.T) {
	large := strings.Replace(flat(3), `"n"`, `"pad":"`+strings.Repeat("x", 300_000)+`","n"`, 3) // more than is written at once
	for _, test := range []struct {
		name, dataset string
		resume        bool
	}{
		{"resume", flat(3), true},
		{"overwrite", flat(3), false},
		{"resume a large dataset", large, true},
		{"overwrite a large dataset", large, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := atOnce(nil)
			b := onStage(t, test.dataset, s)
			b.run(t)
			s.played()
			before := b.snapshot(t)
			b.config.Resume, b.config.Overwrite = test.resume, !test.resume
			full(t, b.files().Inputs+".next")
			err := b.refused(t)
			var output *collect.OutputError
			if !errors.As(err, &output) || !strings.HasPrefix(output.File, b.files().Inputs) || errors.As(err, new(*collect.InputError)) {
				t.Errorf("got %v, want an error that names %s, and no dataset", err, b.files().Inputs)
			}
			if diff := cmp.Diff(before, b.snapshot(t)); diff != "" || len(s.played()) != 0 {
				t.Errorf("files (-before +after):\n%s", diff)
			}
		})
	}
}

// Metrics that cannot be written cost no result.
func TestMetricsThatCannotBeWritten(t *testing.T) {
	b := onStage(t, flat(3), atOnce(nil))
	full(t, b.files().Aggregate+".next")
	summary, err := collect.Run(t.Context(), b.config)
	var output *collect.OutputError
	if !errors.As(err, &output) || !strings.HasPrefix(output.File, b.files().Aggregate) {
		t.Errorf("got %v, want an error that names %s", err, b.files().Aggregate)
	}
	if summary.Done != 3 || len(b.results(t)) != 3 {
		t.Errorf("summary %+v with %d lines, want 3 and 3", summary, len(b.results(t)))
	}
}
