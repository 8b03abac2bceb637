package collect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/retry"
)

// stage is a target that plays attempts without a server, so that a run of it can
// be watched in a bubble of time.
type stage struct {
	// play is one attempt; nil: it takes a second and has a reward of 1.
	play func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure)

	mu       sync.Mutex
	began    time.Time
	attempts []string // "rollout id @ when it began", in their order
	inFlight int
	most     int
}

func (s *stage) Server(string) (string, error) { return "env", nil }
func (s *stage) Delivery(f *failures.Failure) collect.Delivery {
	return collect.Servers{}.Delivery(f)
}
func (s *stage) Away(f *failures.Failure) bool { return collect.Servers{}.Away(f) }
func (s *stage) AggregateMetrics(context.Context, string, func() (io.ReadCloser, error)) ([]byte, error) {
	return []byte(`{}`), nil
}

func (s *stage) Attempt(ctx context.Context, r *episode.Request) episode.Reply {
	s.mu.Lock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	s.attempts = append(s.attempts, fmt.Sprintf("%s@%s", r.EpisodeID.CaptureKey(), time.Since(s.began)))
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	s.mu.Unlock()
	reply := episode.Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID}
	if s.play == nil {
		time.Sleep(time.Second)
	} else {
		reply.Result, reply.Failure = s.play(ctx, r)
	}
	if reply.Failure == nil && reply.Result == nil {
		reply.Result = scored(1)
	}
	s.mu.Lock()
	s.inFlight--
	s.mu.Unlock()
	return reply
}

// scored is a result with a reward.
func scored(reward float64) *episode.Result {
	id := &episode.Request{}
	id.EpisodeID.RolloutID, id.TaskID.Taskset, id.TaskID.TaskID = "a", "b", "c"
	body := fmt.Sprintf(`{"episode_id":{"rollout_id":"a"},"task_id":{"taskset":"b","task_id":"c"},"result":{"reward":%g,"responses_create_params":{},"response":{}}}`, reward)
	reply, err := episode.ParseReply([]byte(body), id)
	if err != nil {
		panic(err)
	}
	return reply.Result
}

func refusal() *failures.Failure { return failures.New(failures.StageSeed, "", "busy") }

// away is the failure of an attempt that nobody was there for.
func away() *failures.Failure {
	f := failures.New(failures.StageSeed, failures.TransportUnreachable, "nobody is there")
	f.Unsent = true
	return f
}

// after takes a time, or less when the context ends, which is the failure then.
func after(ctx context.Context, took time.Duration) *failures.Failure {
	select {
	case <-time.After(took):
		return nil
	case <-ctx.Done():
		return failures.Interrupted(failures.StageAgent, context.Cause(ctx), "in a test")
	}
}

// play runs n rows on the stage in a bubble of time, by a configuration that change
// has changed.
func play(t *testing.T, n int, s *stage, change func(*collect.Config)) *collect.Summary {
	t.Helper()
	return playTo(t, n, s, change, func(err error, _ time.Duration) {
		if err != nil {
			t.Fatal(err)
		}
	})
}

// playTo is play of a run that may end with an error.
func playTo(t *testing.T, n int, s *stage, change func(*collect.Config), ended func(error, time.Duration)) (summary *collect.Summary) {
	t.Helper()
	dir := t.TempDir()
	config := collect.Config{
		Dataset:     filepath.Join(dir, "tasks.jsonl"),
		Output:      filepath.Join(dir, "rollouts.jsonl"),
		Target:      s,
		Concurrency: 1,
		// Without luck: each wait is the longest that it may be.
		Policy: retry.Policy{Backoff: 10 * time.Second, Random: func() float64 { return 0.999999 }},
	}
	if err := os.WriteFile(config.Dataset, []byte(flat(n)), 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		if change != nil {
			change(&config)
		}
		began := time.Now()
		var err error
		summary, err = collect.Run(t.Context(), config)
		ended(err, time.Since(began))
	})
	return summary
}

// keys are the attempts without their times.
func (s *stage) keys() []string {
	var keys []string
	for _, attempt := range s.attempts {
		key, _, _ := strings.Cut(attempt, "@")
		keys = append(keys, key)
	}
	return keys
}

func is(r *episode.Request, rollout string) bool { return r.EpisodeID.RolloutID == rollout }

// A panickingObserver has a bug.
type panickingObserver struct{ collect.Unobserved }

func (panickingObserver) Ended(collect.Rollout, episode.Attempt) { panic("a bug") }

// A bug in the run itself ends it: what is in flight is given up, and not waited for to
// be settled by what has panicked.
func TestABugInTheRunEndsIt(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan any, 1)
	b := onStage(t, flat(2), &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "0-0") {
			<-begun
			return nil, nil
		}
		close(begun)
		<-ctx.Done()
		return nil, failures.Interrupted("", failures.Cause(ctx), "in this test")
	}})
	b.config.Observer = panickingObserver{}
	go func() {
		defer func() { ended <- recover() }()
		_, _ = collect.Run(t.Context(), b.config)
	}()
	select {
	case bug := <-ended:
		if bug != "a bug" {
			t.Errorf("got %v, want the bug", bug)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the run does not end")
	}
}

// What failed goes behind the rows that have not begun, and holds nobody's place
// while it waits.
func TestAFailedRolloutGoesBehindTheOthers(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if err := after(ctx, time.Second); err != nil || is(r, "0-0") || is(r, "2-0") && r.EpisodeID.Attempt == 0 {
			return nil, refusal()
		}
		return nil, nil
	}}
	summary := play(t, 4, s, nil)
	want := []string{
		"0-0@0s", "1-0@1s", "2-0@2s", "3-0@3s",
		"0-0-a1@11s", // ten seconds after it failed at 1 s
		"2-0-a1@13s",
		"0-0-a2@32s", // twenty after 12 s
	}
	if diff := cmp.Diff(want, rounded(s.attempts)); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if summary.Done != 3 || summary.Failed != 1 || summary.Attempts != 7 || summary.Retries != 3 {
		t.Errorf("summary %+v, want 3 done, 1 failed in 7 attempts, 3 of them retries", summary)
	}
}

// rounded are attempts with their times to the second.
func rounded(attempts []string) []string {
	var out []string
	for _, attempt := range attempts {
		key, at, _ := strings.Cut(attempt, "@")
		d, err := time.ParseDuration(at)
		if err != nil {
			panic(err)
		}
		out = append(out, key+"@"+d.Round(time.Second).String())
	}
	return out
}

// One task that hangs for a second and fails, each time, costs the others one place
// at most, and no more attempts than it may have.
func TestAPoisonTaskDelaysNobody(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "0-0") {
			_ = after(ctx, time.Second)
			return nil, refusal()
		}
		return nil, after(ctx, 100*time.Millisecond)
	}}
	summary := play(t, 50, s, func(c *collect.Config) { c.Concurrency = 4 })
	if summary.Done != 49 || summary.Failed != 1 || s.most != 4 {
		t.Errorf("summary %+v with %d in flight, want 49 done and 1 failed with 4", summary, s.most)
	}
	attempts := rounded(s.attempts)
	if diff := cmp.Diff([]string{"0-0-a1@11s", "0-0-a2@32s"}, attempts[50:]); diff != "" {
		t.Errorf("attempts after the others (-want +got):\n%s", diff)
	}
	// Three places serve 49 episodes of 0.1 s in 17 rounds, four for a while.
	last, err := time.ParseDuration(strings.SplitN(s.attempts[49], "@", 2)[1])
	if err != nil || last > 1700*time.Millisecond {
		t.Errorf("the last of the others began after %s, %v", last, err)
	}
}

// A task that will be refused for good is tried once.
func TestATerminalFailureIsTriedOnce(t *testing.T) {
	s := &stage{play: func(context.Context, *episode.Request) (*episode.Result, *failures.Failure) {
		f := refusal()
		f.Terminal = true
		return nil, f
	}}
	if summary := play(t, 1, s, nil); summary.Attempts != 1 || summary.FailedForGood != 1 {
		t.Errorf("summary %+v, want one attempt", summary)
	}
}

// Every row is dispatched in order, and no more are in flight than may be.
func TestRowsBeginInOrder(t *testing.T) {
	s := &stage{}
	play(t, 7, s, func(c *collect.Config) { c.Concurrency = 3 })
	want := []string{"0s", "0s", "0s", "1s", "1s", "1s", "2s"}
	var times []string
	for _, attempt := range rounded(s.attempts) {
		_, at, _ := strings.Cut(attempt, "@")
		times = append(times, at)
	}
	if diff := cmp.Diff(want, times); diff != "" || s.most != 3 {
		t.Errorf("%d in flight, began at (-want +got):\n%s", s.most, diff)
	}
	for i, key := range s.keys()[3:6] {
		if !strings.Contains("3-0 4-0 5-0", key) {
			t.Errorf("attempt %d is %s, which comes later", i, key)
		}
	}
}

// Near the end of the budget nothing begins that would not end in time.
func TestABudget(t *testing.T) {
	for _, test := range []struct {
		name           string
		budget, margin time.Duration
		took, later    time.Duration // of the first five attempts, and of the others
		attempts, done int
		notes          bool
	}{
		{"enough", time.Minute, 0, time.Second, time.Second, 20, 20, false},
		{"a margin of its own", 10 * time.Second, 3 * time.Second, time.Second, time.Second, 7, 7, true},
		{"as long as attempts take, once there are five", 10500 * time.Millisecond, 0, 2 * time.Second, 2 * time.Second, 5, 5, true},
		{"as long as attempts take by now", 23500 * time.Millisecond, 0, time.Second, 5 * time.Second, 8, 8, true},
		{"nothing to go by yet: the last is cut off", 7 * time.Second, 0, 2 * time.Second, 2 * time.Second, 4, 3, true},
		{"used up before it began", time.Nanosecond, time.Second, time.Second, time.Second, 0, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &stage{}
			s.play = func(ctx context.Context, _ *episode.Request) (*episode.Result, *failures.Failure) {
				if len(s.keys()) > 5 { // one at a time
					return nil, after(ctx, test.later)
				}
				return nil, after(ctx, test.took)
			}
			var notes []string
			summary := play(t, 20, s, func(c *collect.Config) {
				c.Budget = collect.Budget{Deadline: time.Now().Add(test.budget), Margin: test.margin}
				c.Note = func(note string) { notes = append(notes, note) }
			})
			if len(s.attempts) != test.attempts || summary.Done != test.done || summary.Missing() != 20-test.done || summary.Failed != 0 {
				t.Errorf("%d attempts, summary %+v; want %d attempts, %d done and the rest missing", len(s.attempts), summary, test.attempts, test.done)
			}
			if got := len(notes) > 0 && strings.Contains(notes[0], "the budget"); got != test.notes {
				t.Errorf("notes %q", notes)
			}
		})
	}
}

// The budget ends a run also while it waits for a rollout's next attempt.
func TestABudgetEndsAWait(t *testing.T) {
	s := &stage{play: func(context.Context, *episode.Request) (*episode.Result, *failures.Failure) { return nil, refusal() }}
	var took time.Duration
	summary := play(t, 1, s, func(c *collect.Config) {
		began := time.Now()
		c.Budget = collect.Budget{Deadline: began.Add(8 * time.Second), Margin: 3 * time.Second}
		c.Note = func(string) { took = time.Since(began) }
	})
	if took != 5*time.Second || summary.Missing() != 1 || summary.Failed != 0 {
		t.Errorf("it ended after %s with %+v, want 5 s and one missing", took, summary)
	}
}

// Drained, a run begins nothing more; what is in flight goes on.
func TestADrainedRun(t *testing.T) {
	s := &stage{}
	summary := play(t, 9, s, func(c *collect.Config) {
		drain := make(chan struct{})
		c.Concurrency, c.Drain = 2, drain
		time.AfterFunc(1500*time.Millisecond, func() { close(drain) })
	})
	if summary.Done != 4 || summary.Missing() != 5 || len(s.attempts) != 4 {
		t.Errorf("summary %+v after %d attempts, want 4 done and 5 missing", summary, len(s.attempts))
	}
}

// An endings counts how often it is told that no further attempt begins, and those
// that begin after that.
type endings struct {
	collect.Unobserved
	told, late int
}

func (e *endings) Ending() { e.told++ }
func (e *endings) Began(collect.Rollout, bool) {
	if e.told > 0 {
		e.late++
	}
}

// Whoever watches a run is told once that it does not go on, and never when it does.
func TestTheEndingOfARun(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*collect.Config)
		told   int
	}{
		"to the end":                  {func(*collect.Config) {}, 0},
		"drained when all have begun": {func(c *collect.Config) { c.Concurrency, c.Drain = 9, afterwards(time.Second/2) }, 0},
		"within its time":             {func(c *collect.Config) { c.Deadline, c.Margin = time.Now().Add(5500*time.Millisecond), time.Second }, 0},
		"drained":                     {func(c *collect.Config) { c.Drain = afterwards(2500 * time.Millisecond) }, 1},
		"out of time":                 {func(c *collect.Config) { c.Deadline = time.Now().Add(2500 * time.Millisecond) }, 1},
		"the output is gone":          {func(c *collect.Config) { time.AfterFunc(2500*time.Millisecond, func() { _ = os.Remove(c.Output) }) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			watch := &endings{}
			playTo(t, 9, &stage{}, func(c *collect.Config) {
				c.Concurrency, c.Observer = 2, watch
				test.change(c)
			}, func(error, time.Duration) {})
			if watch.told != test.told || watch.late != 0 {
				t.Errorf("told %d times, and %d attempts began after that; want %d and none", watch.told, watch.late, test.told)
			}
		})
	}
}

// afterwards is closed after a while.
func afterwards(while time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(while, func() { close(done) })
	return done
}

// A run that is drained while all it has left waits ends at once.
func TestADrainEndsAWait(t *testing.T) {
	s := &stage{play: func(context.Context, *episode.Request) (*episode.Result, *failures.Failure) { return nil, refusal() }}
	var began, drained time.Time
	summary := play(t, 2, s, func(c *collect.Config) {
		drain := make(chan struct{})
		c.Drain = drain
		began = time.Now()
		time.AfterFunc(4*time.Second, func() { drained = time.Now(); close(drain) })
	})
	if summary.Missing() != 2 || drained.Sub(began) != 4*time.Second || len(s.attempts) != 2 {
		t.Errorf("summary %+v after %d attempts", summary, len(s.attempts))
	}
}

// A cap on elapsed time counts from a rollout's first failure in this run.
func TestACapOnElapsedTime(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		_ = after(ctx, time.Hour) // before the first failure it does not count
		return nil, refusal()
	}}
	summary := play(t, 1, s, func(c *collect.Config) { c.Policy.MaxAttempts, c.Policy.MaxElapsed = 9, 90*time.Minute })
	if summary.Attempts != 3 || summary.Failed != 1 {
		t.Errorf("summary %+v, want three attempts: when the second failed, an hour had passed since the first had, and when the third did, two", summary)
	}
}

// Nobody is there for a while: the rows that have met that look out for the server,
// and the others wait for it with all their attempts.
func TestAnOutageDoesNotUseUpTheDataset(t *testing.T) {
	var began time.Time
	down := func() bool { return time.Since(began) < 100*time.Second }
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if err := after(ctx, time.Second); err != nil || !down() {
			return nil, err
		}
		return nil, away()
	}}
	summary := play(t, 50, s, func(c *collect.Config) { c.Concurrency = 4; began = time.Now() })
	// Four rows at first, and one more every ten seconds. Those that began less than
	// 30 s before the end have an attempt left then.
	if summary.Failed < 4 || summary.Failed > 12 || summary.Done != 50-summary.Failed {
		t.Errorf("%d failed and %d done of 50, want about ten failed", summary.Failed, summary.Done)
	}
}

// Whoever is not there, or about to go, is waited for.
func TestWhoIsAway(t *testing.T) {
	neverSent := func(stage failures.Stage, kind failures.Kind) *failures.Failure {
		f := failures.New(stage, kind, "nobody is there")
		f.Unsent = true
		return f
	}
	unsent := func(stage failures.Stage) *failures.Failure { return neverSent(stage, failures.TransportUnreachable) }
	status := func(status int) *failures.Failure {
		f := failures.New("", "", "refused")
		f.Status = status
		return f
	}
	for _, test := range []struct {
		name                  string
		failure               *failures.Failure
		servers, environments bool
	}{
		{"the resources server", unsent(failures.StageSeed), true, true},
		{"the agent server", unsent(failures.StageAgent), true, true},
		{"a disk that has no room for a note", neverSent(failures.StageSeed, failures.PersistenceFailed), true, false},
		{"a server whose own disk is full", failures.New(failures.StageSeed, failures.PersistenceFailed, "disk full"), false, false},
		{"a connection that was made", failures.New(failures.StageSeed, failures.TransportPeerDrop, "dropped"), false, false},
		{"an environment server that is told of another", failures.New(failures.StageSeed, failures.TransportUnreachable, "nobody is there"), false, false},
		{"an environment server that is going", failures.New(failures.StageAdmission, failures.Shutdown, "it is shutting down"), false, true},
		{"an episode that was cut by that", failures.New(failures.StageAgent, failures.Shutdown, "it is shutting down"), false, false},
		{"a full one", failures.New(failures.StageAdmission, "", "Episode admission timed out"), false, false},
		{"a proxy's 502", status(502), false, true},
		{"a proxy's 503", status(503), false, true},
		{"a 500", status(500), false, false},
		{"an episode that failed", failures.New(failures.StageAgent, failures.AgentRunError, "x"), false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := (collect.Servers{}).Away(test.failure); got != test.servers {
				t.Errorf("of servers: %v, want %v", got, test.servers)
			}
			if got := (collect.Environments{}).Away(test.failure); got != test.environments {
				t.Errorf("of environment servers: %v, want %v", got, test.environments)
			}
		})
	}
}

// What cannot be read any more ends what runs, and not when it ends by itself.
func TestInputsThatBreakEndWhatRuns(t *testing.T) {
	dir := t.TempDir()
	inputs := filepath.Join(dir, "rollouts_materialized_inputs.jsonl")
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "0-0") {
			if err := os.WriteFile(inputs, bytes.Repeat([]byte("{}\n"), 500_000), 0o644); err != nil {
				t.Error(err)
			}
			return nil, nil
		}
		return nil, after(ctx, time.Hour)
	}}
	rows := strings.Repeat("x", 300_000) // more than is read ahead
	var dataset strings.Builder
	for i := range 4 {
		fmt.Fprintf(&dataset, `{"responses_create_params":{"input":"%s"},"n":%d}`+"\n", rows, i)
	}
	config := collect.Config{Dataset: filepath.Join(dir, "tasks.jsonl"), Output: filepath.Join(dir, "rollouts.jsonl"), Target: s, Concurrency: 2}
	if err := os.WriteFile(config.Dataset, []byte(dataset.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := collect.Run(t.Context(), config)
		var input *collect.InputError
		if took := time.Since(began); took > time.Minute || !errors.As(err, &input) || input.File != inputs {
			t.Errorf("ended after %s with %v, want at once, with an error that names %s", took, err, inputs)
		}
	})
}

// An outage that does not end ends the run: a row looks every ten seconds, and what
// has not begun is left to a resumption.
func TestAnOutageThatDoesNotEnd(t *testing.T) {
	s := &stage{play: func(context.Context, *episode.Request) (*episode.Result, *failures.Failure) { return nil, away() }}
	var notes []string
	var took time.Duration
	var gaveUp error
	summary := playTo(t, 1000, s, func(c *collect.Config) {
		c.Concurrency = 4
		c.Note = func(note string) { notes = append(notes, note) }
	}, func(err error, after time.Duration) { gaveUp, took = err, after })
	var outage *collect.OutageError
	if took < 10*time.Minute || took > 10*time.Minute+10*time.Second || summary.Missing() < 900 || !errors.As(gaveUp, &outage) {
		t.Errorf("ended after %s with %d missing and %v, want 10 m or little more, most of them missing, and that it gave up", took, summary.Missing(), gaveUp)
	}
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "nobody is there: rows that have not begun wait") {
		t.Errorf("notes %q, want that it waits", notes)
	}
	// Four begin, and one for each of the two that fail before the third makes it an
	// outage; then one each ten seconds, for ten minutes.
	looks := s.first()
	for i, at := range looks {
		if want := max(0, time.Duration(i-5)*10*time.Second); at != want {
			t.Fatalf("row %d begins after %s, want %s: %s", i, at, want, looks)
		}
	}
	if len(looks) != 66 {
		t.Errorf("%d rows have begun, want 66", len(looks))
	}
}

// first is when the first attempt of each rollout began, in their order.
func (s *stage) first() []time.Duration {
	var times []time.Duration
	for _, attempt := range s.attempts {
		if key, at, _ := strings.Cut(attempt, "@"); !strings.Contains(key, "-a") {
			began, _ := time.ParseDuration(at) // as it was written
			times = append(times, began)
		}
	}
	return times
}

// An outage ends with the first attempt that somebody takes, and that is said.
func TestAnOutageThatEnds(t *testing.T) {
	var began time.Time
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if time.Since(began) < 25*time.Second {
			return nil, away()
		}
		return nil, after(ctx, time.Second)
	}}
	var notes []string
	summary := play(t, 20, s, func(c *collect.Config) {
		began = time.Now()
		c.Concurrency, c.Policy.MaxAttempts = 4, 9
		c.Note = func(note string) { notes = append(notes, note) }
	})
	if summary.Done != 20 || len(notes) != 2 || notes[1] != "attempts get through again: rows begin" {
		t.Errorf("%d done and notes %q, want all of 20, and a word of its end", summary.Done, notes)
	}
	// The look at 30 s, or a retry before it, finds the server; the rest follows at once.
	if looks := s.first(); looks[len(looks)-1] > 40*time.Second {
		t.Errorf("the last row begins after %s, want soon after 25 s", looks[len(looks)-1])
	}
}

// With more than one environment server nobody waits: the others' rows could go on.
func TestAnOutageOfOneServerOfTwo(t *testing.T) {
	s := byTaskset{&stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if r.TaskID.Taskset == "a" {
			return nil, away()
		}
		return nil, after(ctx, time.Second)
	}}}
	var rows strings.Builder
	for n := range 20 {
		fmt.Fprintf(&rows, `{"responses_create_params":{},"task_source":"%c","n":%d}`+"\n", 'a'+n/10, n)
	}
	var notes []string
	var took time.Duration
	summary := playTo(t, 0, s.stage, func(c *collect.Config) {
		writeFile(t, c.Dataset, rows.String())
		c.Target, c.Policy.MaxAttempts = s, 1
		c.Note = func(note string) { notes = append(notes, note) }
	}, func(_ error, after time.Duration) { took = after })
	if summary.Done != 10 || summary.Failed != 10 || len(notes) != 0 || took != 10*time.Second {
		t.Errorf("%d done and %d failed after %s, with notes %q; want ten of each after 10 s, and no word", summary.Done, summary.Failed, took, notes)
	}
}

// byTaskset has an environment server for each taskset.
type byTaskset struct{ *stage }

func (byTaskset) Server(taskset string) (string, error) { return taskset, nil }

// A server that was away for a moment, and then takes hours for what it was given, is
// no outage.
func TestLongEpisodesAfterAnOutage(t *testing.T) {
	var began time.Time
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if time.Since(began) < 5*time.Second {
			return nil, away()
		}
		return nil, after(ctx, 2*time.Hour)
	}}
	summary := play(t, 12, s, func(c *collect.Config) { c.Concurrency = 4; began = time.Now() })
	if summary.Done != 12 || summary.Failed != 0 {
		t.Errorf("summary %+v, want 12 done", summary)
	}
}

// A server that goes down serves what it has: that these episodes end well is no sign
// that it is back.
func TestAnOutageIsNotEndedByWhatBeganBeforeIt(t *testing.T) {
	var began atomic.Int64
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if n := began.Add(1); n <= 32 { // one ends every 15 s, all before the run gives up
			return nil, after(ctx, time.Minute+time.Duration(n)*15*time.Second)
		}
		_ = after(ctx, 10*time.Millisecond)
		return nil, away()
	}}
	var notes []string
	var gaveUp error
	summary := playTo(t, 2000, s, func(c *collect.Config) {
		c.Concurrency = 32
		c.Note = func(note string) { notes = append(notes, note) }
	}, func(err error, _ time.Duration) { gaveUp = err })
	// It begins with the first that ends well, and each ten seconds a row looks.
	if summary.Done != 32 || summary.Failed > 70 || len(notes) != 1 || gaveUp == nil {
		t.Errorf("%d done, %d failed, notes %q and %v; want 32, at most 70, one and that it gave up", summary.Done, summary.Failed, notes, gaveUp)
	}
}

// Refusals that are far apart are no outage, whatever takes its time meanwhile: each is
// tried as often as it may be, and nobody gives up.
func TestScatteredFailuresAreNoOutage(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if !is(r, "3-0") {
			return nil, after(ctx, time.Hour)
		}
		f := away()
		f.RetryAfter = 5 * time.Minute
		return nil, f
	}}
	var notes []string
	summary := play(t, 4, s, func(c *collect.Config) {
		c.Concurrency, c.Policy.MaxAttempts = 4, 5
		c.Note = func(note string) { notes = append(notes, note) }
	})
	if summary.Done != 3 || summary.Failed != 1 || summary.Attempts != 8 || len(notes) != 0 {
		t.Errorf("summary %+v, notes %q; want three done, one that failed five times, and no word", summary, notes)
	}
}

// That the resources server refuses a row says nothing of an agent server that is away.
func TestAnOutageOfTheAgentServer(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if strings.HasSuffix(strings.TrimSuffix(r.EpisodeID.RolloutID, "-0"), "5") {
			f := refusal()
			f.Terminal = true
			return nil, f
		}
		f := away()
		f.Stage = failures.StageAgent
		return nil, f
	}}
	var gaveUp error
	summary := playTo(t, 2000, s, func(c *collect.Config) { c.Concurrency = 16 }, func(err error, _ time.Duration) { gaveUp = err })
	if summary.Missing() < 1900 || gaveUp == nil {
		t.Errorf("%d failed and %d missing with %v, want nearly all missing, and that it gave up", summary.Failed, summary.Missing(), gaveUp)
	}
}

// A server that is away for as long as it takes to start one costs no rollout: those
// that have met that are not tried again at once.
func TestAShortOutageCostsNothing(t *testing.T) {
	for _, test := range []struct {
		away, finding time.Duration
		concurrency   int
	}{{14 * time.Second, 0, 1}, {14 * time.Second, 0, 64}, {11 * time.Second, time.Second, 64}} {
		var began time.Time
		s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
			if time.Since(began) < test.away {
				_ = after(ctx, test.finding)
				return nil, away()
			}
			return nil, after(ctx, time.Second)
		}}
		summary := play(t, 100, s, func(c *collect.Config) {
			began = time.Now()
			c.Concurrency, c.Policy = test.concurrency, retry.Policy{}
		})
		if summary.Done != 100 {
			t.Errorf("%+v: %d done and %d failed, want all done", test, summary.Done, summary.Failed)
		}
	}
}

// Waits for an outage do not add up: where one begins again and again, as with a disk
// that now and then has room, a rollout waits for the one that it has met.
func TestOutagesInARowPostponeOnce(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		index, _, _ := strings.Cut(r.EpisodeID.RolloutID, "-")
		if n, _ := strconv.Atoi(index); n%5 != 0 && r.EpisodeID.Attempt == 0 {
			return nil, away()
		}
		return nil, after(ctx, time.Millisecond)
	}}
	var begun int
	var took time.Duration
	summary := playTo(t, 100, s, func(c *collect.Config) {
		c.Concurrency, c.Policy = 4, retry.Policy{}
		c.Note = func(note string) {
			if strings.Contains(note, "rows that have not begun wait") {
				begun++
			}
		}
	}, func(_ error, after time.Duration) { took = after })
	if summary.Done != 100 || begun < 10 || took < 5*time.Second || took > 10*time.Second {
		t.Errorf("%d done after %s and %d outages, want all of 100 after 5 to 10 s, and ten outages or more", summary.Done, took, begun)
	}
}

// Of long episodes some meet a moment in which their server is away. Those that end well
// between such moments show that it is not away for all that time.
func TestMomentsOfAbsenceWithinLongEpisodes(t *testing.T) {
	for name, isAway := range map[string]func(r *episode.Request, at time.Duration) bool{
		"two moments": func(_ *episode.Request, at time.Duration) bool {
			return at >= 70*time.Minute && at < 72*time.Minute || at >= 85*time.Minute && at < 87*time.Minute
		},
		"single episodes": func(r *episode.Request, _ time.Duration) bool { return is(r, "5-0") || is(r, "11-0") || is(r, "17-0") },
	} {
		t.Run(name, func(t *testing.T) {
			var began time.Time
			var started atomic.Int64
			s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
				if f := after(ctx, time.Hour+time.Duration(started.Add(1)%64)*time.Minute); f != nil {
					return nil, f
				}
				if isAway(r, time.Since(began)) {
					f := away()
					f.Stage = failures.StageVerification
					return nil, f
				}
				return nil, nil
			}}
			summary := play(t, 300, s, func(c *collect.Config) {
				began = time.Now()
				c.Concurrency, c.Policy = 64, retry.Policy{}
			})
			if summary.Missing() != 0 || summary.Failed > 3 {
				t.Errorf("%d done, %d failed, %d missing; want none missing", summary.Done, summary.Failed, summary.Missing())
			}
		})
	}
}

// What began after somebody had found nobody there, and ends well, shows that somebody is,
// whoever has failed meanwhile.
func TestWhatBeganAfterAFailureEndsWell(t *testing.T) {
	took := map[string]time.Duration{"1-0": 8 * time.Second, "2-0": 5 * time.Second, "3-0": 4 * time.Second}
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if f := after(ctx, took[r.EpisodeID.RolloutID]); f != nil {
			return nil, f
		}
		if is(r, "0-0") || is(r, "2-0") || is(r, "3-0") { // at 0, 5 and 9 s; 1-0 ends at 8 s
			return nil, away()
		}
		return nil, nil
	}}
	var notes []string
	summary := play(t, 4, s, func(c *collect.Config) {
		c.Concurrency, c.Policy.MaxAttempts = 2, 1
		c.Note = func(note string) { notes = append(notes, note) }
	})
	if summary.Done != 1 || len(notes) != 0 {
		t.Errorf("%d done, notes %q; want one, and no word of an outage", summary.Done, notes)
	}
}

// A run in which nobody was there for the last of its rows has nothing to give up.
func TestAnOutageAtTheEndOfARun(t *testing.T) {
	s := &stage{play: func(context.Context, *episode.Request) (*episode.Result, *failures.Failure) { return nil, away() }}
	summary := play(t, 66, s, func(c *collect.Config) { c.Concurrency, c.Policy.MaxAttempts = 4, 1 })
	if summary.Failed != 66 {
		t.Errorf("%d failed and %d missing, want all failed", summary.Failed, summary.Missing())
	}
}

// A server that lets connections wait until they time out is away as well, however
// seldom anybody finds out.
func TestAnOutageThatIsSlowToBeFound(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if f := after(ctx, 8*time.Minute); f != nil {
			return nil, f
		}
		return nil, away()
	}}
	var took time.Duration
	var gaveUp error
	summary := playTo(t, 500, s, func(c *collect.Config) { c.Concurrency = 16 },
		func(err error, after time.Duration) { gaveUp, took = err, after })
	if summary.Missing() < 400 || took > 40*time.Minute || gaveUp == nil {
		t.Errorf("%d failed and %d missing after %s with %v, want most missing, and that it gave up within 40 m", summary.Failed, summary.Missing(), took, gaveUp)
	}
}

// A proxy that refuses single episodes holds nobody up, however many it has refused in
// the end: others are taken in between.
func TestSingleEpisodesThatNobodyTakes(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if err := after(ctx, time.Second); err != nil || !is(r, "1-0") && !is(r, "4-0") && !is(r, "7-0") {
			return nil, err
		}
		return nil, away()
	}}
	var notes []string
	summary := play(t, 9, s, func(c *collect.Config) {
		c.Policy.MaxAttempts = 1
		c.Note = func(note string) { notes = append(notes, note) }
	})
	last, err := time.ParseDuration(strings.SplitN(s.attempts[8], "@", 2)[1])
	if summary.Done != 6 || summary.Failed != 3 || len(notes) != 0 || err != nil || last != 8*time.Second {
		t.Errorf("summary %+v, notes %q, the last began after %s, want no delay and no word", summary, notes, last)
	}
}

// An attempt that is cut short in an outage has found nobody: it does not end it.
func TestAnAttemptThatIsCutShortEndsNoOutage(t *testing.T) {
	s := &stage{play: func(ctx context.Context, r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "3-0") { // it looks, ten seconds after the outage has begun
			return nil, after(ctx, time.Hour)
		}
		return nil, away()
	}}
	var notes []string
	summary := play(t, 9, s, func(c *collect.Config) {
		c.Policy.MaxAttempts = 1
		c.Deadline = time.Now().Add(15 * time.Second)
		c.Note = func(note string) { notes = append(notes, note) }
	})
	if diff := cmp.Diff([]string{"0-0", "1-0", "2-0", "3-0"}, s.keys()); diff != "" || summary.Failed != 3 {
		t.Errorf("summary %+v, attempts (-want +got):\n%s", summary, diff)
	}
	if len(notes) != 2 || !strings.Contains(notes[0], "rows that have not begun wait") || !strings.HasPrefix(notes[1], "the budget is used up") {
		t.Errorf("notes %q, want one of the outage and one of the budget", notes)
	}
}
