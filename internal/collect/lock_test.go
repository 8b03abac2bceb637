package collect_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
)

// One run owns an output at a time. Another changes nothing, and may go on when
// the first has ended.
func TestAnOutputHasOneOwner(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	first := onStage(t, flat(3), &stage{play: func(_ context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "2-0") {
			close(arrived)
			<-leave
			return nil, refusal()
		}
		return nil, nil
	}})
	first.config.Concurrency, first.config.Policy.MaxAttempts = 1, 1
	ended := make(chan error, 1)
	go func() {
		_, err := collect.Run(t.Context(), first.config)
		ended <- err
	}()
	<-arrived
	before := first.snapshot(t)
	for name, change := range map[string]func(*collect.Config){
		"a new run":    func(*collect.Config) {},
		"a resumption": func(c *collect.Config) { c.Resume = true },
		"an overwrite": func(c *collect.Config) { c.Overwrite = true },
		"another dataset": func(c *collect.Config) {
			c.Overwrite, c.Dataset, c.Stdin = true, "-", strings.NewReader(flat(1))
		},
	} {
		s := atOnce(nil)
		config := first.config
		config.Target = s
		change(&config)
		_, err := collect.Run(t.Context(), config)
		var owned *collect.OwnedError
		if !errors.As(err, &owned) || owned.File != first.config.Output {
			t.Errorf("%s: got %v, want that another run is writing to %s", name, err, first.config.Output)
		}
		if diff := cmp.Diff(before, first.snapshot(t)); diff != "" || len(s.played()) != 0 {
			t.Errorf("%s: it has begun; files (-before +after):\n%s", name, diff)
		}
	}
	close(leave)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s := atOnce(nil)
	first.config.Target, first.config.Resume, first.config.Policy.MaxAttempts = s, true, 2
	if summary := first.run(t); summary.Done != 3 {
		t.Errorf("summary %+v, want 3 done", summary)
	}
	if diff := cmp.Diff([]string{"2-0-a1"}, s.played()); diff != "" {
		t.Errorf("attempts of the resumption (-want +got):\n%s", diff)
	}
}

// Outputs in one folder are of no concern to each other.
func TestOutputsOfOneFolder(t *testing.T) {
	b := onStage(t, flat(1), atOnce(nil))
	other := b.config
	other.Output = filepath.Join(filepath.Dir(b.config.Output), "other.jsonl")
	var err error
	b.config.Target = atOnce(func(*episode.Request) (*episode.Result, *failures.Failure) {
		_, err = collect.Run(t.Context(), other)
		return nil, nil
	})
	b.run(t)
	if err != nil {
		t.Errorf("the other run: %v", err)
	}
}

// A run that cannot begin leaves nothing that was not there before.
func TestARunThatCannotBeginLeavesNothing(t *testing.T) {
	drained := make(chan struct{})
	close(drained)
	for _, test := range []struct {
		name  string
		spoil func(t *testing.T, b *bench)
		is    func(err error) bool
	}{
		{"no dataset", func(_ *testing.T, b *bench) { b.config.Dataset += ".gone" }, func(err error) bool {
			var input *collect.InputError
			return errors.As(err, &input) && errors.Is(err, os.ErrNotExist)
		}},
		{"no dataset, with an output that somebody else has made", func(t *testing.T, b *bench) {
			writeFile(t, b.config.Output, "")
			b.config.Dataset += ".gone"
		}, func(err error) bool { return errors.Is(err, os.ErrNotExist) }},
		{"a dataset that is a folder", func(_ *testing.T, b *bench) { b.config.Dataset = b.dir }, func(err error) bool {
			var input *collect.InputError
			return errors.As(err, &input)
		}},
		{"a fault in the last row", func(t *testing.T, b *bench) { b.write(t, flat(3)+"{") }, func(err error) bool {
			var input *collect.InputError
			return errors.As(err, &input) && input.Line == 4
		}},
		{"it is to drain", func(_ *testing.T, b *bench) { b.config.Drain = drained }, func(err error) bool { return errors.Is(err, collect.ErrStopped) }},
		{"failures that are a folder", func(t *testing.T, b *bench) {
			mkdir(t, b.files().Failures)
			b.config.Overwrite = true
		}, func(err error) bool {
			var output *collect.OutputError
			return errors.As(err, &output) && strings.HasSuffix(output.File, "_failures.jsonl")
		}},
		{"inputs that are a folder", func(t *testing.T, b *bench) { mkdir(t, b.files().Inputs) }, func(err error) bool {
			var output *collect.OutputError
			return errors.As(err, &output) && strings.HasSuffix(output.File, "_materialized_inputs.jsonl")
		}},
		{"inputs that cannot be begun", func(t *testing.T, b *bench) { mkdir(t, b.files().Inputs+".next") }, func(err error) bool {
			var output *collect.OutputError
			return errors.As(err, &output) && strings.Contains(output.File, "_materialized_inputs.jsonl")
		}},
		{"an output that is a folder", func(t *testing.T, b *bench) { mkdir(t, b.files().Rollouts) }, func(err error) bool {
			var output *collect.OutputError
			return errors.As(err, &output) && strings.HasSuffix(output.File, "rollouts.jsonl")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := atOnce(nil)
			b := onStage(t, flat(3), s)
			test.spoil(t, b)
			mkdir(t, filepath.Dir(b.config.Output))
			before := names(t, b.dir)
			if err := b.refused(t); !test.is(err) {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(before, names(t, b.dir)); diff != "" {
				t.Errorf("what is there (-before +after):\n%s", diff)
			}
			if len(s.played()) != 0 {
				t.Error("an attempt has begun")
			}
		})
	}
}

// A resumption that cannot begin leaves what was there.
func TestAResumptionThatIsStoppedAtOnceLeavesWhatWasThere(t *testing.T) {
	b := onStage(t, flat(3), atOnce(nil))
	b.run(t)
	before := b.snapshot(t)
	drained := make(chan struct{})
	close(drained)
	b.config.Drain = drained
	for name, change := range map[string]func(*collect.Config){
		"a resumption": func(c *collect.Config) { c.Resume, c.Overwrite = true, false },
		"an overwrite": func(c *collect.Config) { c.Resume, c.Overwrite = false, true },
	} {
		change(&b.config)
		if err := b.refused(t); !errors.Is(err, collect.ErrStopped) {
			t.Errorf("%s: got %v", name, err)
		}
		if diff := cmp.Diff(before, b.snapshot(t)); diff != "" {
			t.Errorf("%s: files (-before +after):\n%s", name, diff)
		}
	}
}

// A dataset may come slowly: the output is owned meanwhile.
func TestAnOutputIsOwnedFromTheBeginning(t *testing.T) {
	b := onStage(t, flat(1), atOnce(nil))
	second := b.config
	r, w := io.Pipe()
	b.config.Dataset, b.config.Stdin = "-", r
	ended := make(chan error, 1)
	go func() {
		_, err := collect.Run(t.Context(), b.config)
		ended <- err
	}()
	say(w, flat(1)) // returns when it is being read
	_, err := collect.Run(t.Context(), second)
	var owned *collect.OwnedError
	if !errors.As(err, &owned) {
		t.Errorf("got %v, want that another run is writing", err)
	}
	_ = w.Close()
	if err := <-ended; err != nil || len(b.results(t)) != 1 {
		t.Errorf("the first run: %v", err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// names are the files and folders below a folder.
func names(t *testing.T, path string) []string {
	t.Helper()
	var out []string
	err := filepath.Walk(path, func(p string, _ os.FileInfo, err error) error {
		out = append(out, strings.TrimPrefix(p, path+"/"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Of many runs that are begun at once on a new output one writes it, and none of the
// others takes anything away.
func TestRunsThatAreBegunAtOnce(t *testing.T) {
	inMemory(t)
	for range 30 {
		b := onStage(t, flat(3), atOnce(nil))
		var running sync.WaitGroup
		var went atomic.Int64
		for range 16 {
			running.Go(func() {
				config := b.config
				config.Target = atOnce(nil)
				_, err := collect.Run(t.Context(), config)
				var owned *collect.OwnedError
				var exists *collect.ExistsError
				switch {
				case err == nil:
					went.Add(1)
				case !errors.As(err, &owned) && !errors.As(err, &exists):
					t.Errorf("a run that is too late: %v", err)
				}
			})
		}
		running.Wait()
		if got := len(b.results(t)); went.Load() != 1 || got != 3 {
			t.Fatalf("%d runs went through and left %d results, want 1 and 3", went.Load(), got)
		}
	}
}

// Whoever only looks whether an output is owned, as an aggregation does, turns nobody
// away.
func TestALookAtAnOutputTurnsNobodyAway(t *testing.T) {
	b := onStage(t, flat(1), atOnce(nil))
	writeFile(t, b.config.Output, "")
	looking, err := os.Open(b.config.Output)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(looking.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = looking.Close() })
	b.run(t)
}

// So it is with outputs that are joined.
func TestOutputsThatAreJoinedAtOnce(t *testing.T) {
	inMemory(t)
	b := onStage(t, flat(200), atOnce(nil))
	b.run(t)
	for range 10 {
		joined := filepath.Join(t.TempDir(), "joined.jsonl")
		var running sync.WaitGroup
		var went atomic.Int64
		for range 8 {
			running.Go(func() {
				_, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{b.config.Output}, Output: joined, Overwrite: true})
				var owned *collect.OwnedError
				if err == nil {
					went.Add(1)
				} else if !errors.As(err, &owned) {
					t.Errorf("one that is too late: %v", err)
				}
			})
		}
		running.Wait()
		if went.Load() == 0 || read(t, joined) != read(t, b.config.Output) {
			t.Fatalf("%d went through, and the joined output has %d bytes, want %d", went.Load(), len(read(t, joined)), len(read(t, b.config.Output)))
		}
		if litter, _ := filepath.Glob(joined + "*.next"); len(litter) > 0 {
			t.Errorf("%v are left", litter)
		}
	}
}

// An output may be a link to a file that is not there yet.
func TestAnOutputThatIsALink(t *testing.T) {
	b := onStage(t, flat(2), atOnce(nil))
	mkdir(t, filepath.Dir(b.config.Output))
	there := filepath.Join(b.dir, "elsewhere.jsonl")
	if err := os.Symlink(there, b.config.Output); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	if got := len(readLines(t, there)); got != 2 {
		t.Errorf("%d results are where the link points to, want 2", got)
	}
}
