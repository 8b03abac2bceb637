package progress_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/progress"
	"example.com/turn/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func failed(kind failures.Kind, again bool) episode.Attempt {
	return episode.Attempt{Reply: episode.Reply{Failure: failures.New(failures.StageSeed, kind, "x")}, Again: again}
}

func ended(result episode.Result) episode.Attempt {
	return episode.Attempt{Reply: episode.Reply{Result: &result}}
}

// began and ended have a rollout of a run under way, and done with.
func began(m *progress.Meter) { m.Began(collect.Rollout{}, false) }

// oneOwed is the meter of a run of one rollout.
func oneOwed() *progress.Meter {
	m := &progress.Meter{}
	m.Prepared(owed(1))
	return m
}

func owed(rollouts int) collect.Owed { return collect.Owed{Rollouts: rollouts} }

// A run that will take for ever says so.
func TestAnETAIsNeverNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &progress.Meter{}
		m.Prepared(owed(1_000_000))
		began(m)
		time.Sleep(3 * time.Hour)
		m.Ended(collect.Rollout{}, ended(episode.Result{Reward: 1}))
		if got, want := m.Line(time.Now()), "1/1000000 · 0 in flight · 0.0/s · ETA over 1000 days · reward 1.000 (1)"; got != want {
			t.Errorf("line %q, want %q", got, want)
		}
	})
}

func TestTheLineOfAMeter(t *testing.T) {
	masked, scored := ended(episode.Result{Masked: true}), func(reward float64) episode.Attempt { return ended(episode.Result{Reward: reward}) }
	one := func(m *progress.Meter, attempts ...episode.Attempt) {
		for i, attempt := range attempts {
			m.Began(collect.Rollout{}, i > 0)
			m.Ended(collect.Rollout{}, attempt)
		}
	}
	for _, test := range []struct {
		name   string
		events func(*progress.Meter)
		want   string
	}{
		{"nothing yet", func(*progress.Meter) {}, "0/10 · 0 in flight"},
		{"before the dataset is read", func(m *progress.Meter) { m.Prepared(owed(0)) }, "reading the dataset"},
		{"under way", func(m *progress.Meter) { began(m); began(m) }, "0/10 · 2 in flight"},
		{"a mean over what is scored", func(m *progress.Meter) {
			one(m, scored(1))
			one(m, scored(0))
			one(m, masked)
			one(m, failed(failures.TransportPeerDrop, true), failed("", false))
		}, "4/10 · 0 in flight · 0.4/s · ETA 15s · reward 0.500 (2) · 1 masked · 1 failed (seed 1) · 1 retry"},
		{"failures as zeros, and it says so", func(m *progress.Meter) {
			m.FailuresAsZero = true
			one(m, scored(1))
			one(m, failed("", false))
		}, "2/10 · 0 in flight · 0.2/s · ETA 40s · reward 0.500 (2, failures as 0) · 1 failed (seed 1)"},
		{"no failure yet that would be a zero", func(m *progress.Meter) { m.FailuresAsZero = true; one(m, scored(1)) }, "1/10 · 0 in flight · 0.1/s · ETA 1m30s · reward 1.000 (1)"},
		{"all masked: no mean", func(m *progress.Meter) { one(m, masked) }, "1/10 · 0 in flight · 0.1/s · ETA 1m30s · 1 masked"},
		{"waiting for its next attempt", func(m *progress.Meter) { one(m, failed(failures.TransportPeerDrop, true)) }, "0/10 · 0 in flight · 1 waiting for a retry"},
		{"tried again", func(m *progress.Meter) {
			one(m, failed(failures.TransportPeerDrop, true))
			m.Began(collect.Rollout{}, true)
		}, "0/10 · 1 in flight · 1 retry"},
		{"given up", func(m *progress.Meter) {
			one(m, episode.Attempt{Reply: episode.Reply{Failure: &failures.Failure{Err: context.Canceled}}})
		}, "0/10 · 0 in flight"},
		{"of neither stage nor kind", func(m *progress.Meter) {
			one(m, episode.Attempt{Reply: episode.Reply{Failure: failures.New("", "", "x")}})
		}, "1/10 · 0 in flight · 0.1/s · ETA 1m30s · 1 failed (unknown 1)"},
		{"the most frequent kinds, and how many more there are", func(m *progress.Meter) {
			for i, kind := range []failures.Kind{"a", "b", "c", "d", "e", "f", "g"} {
				for range []int{1, 2, 1, 4, 3, 1, 1}[i] {
					m.Ended(collect.Rollout{}, failed(kind, false))
					began(m)
				}
			}
			m.Ending()
		}, "13/10 · 0 in flight · stopping · 13 failed (d 4, e 3, b 2, a 1, c 1, 2 more kinds)"},
		{"rewards too large for a mean", func(m *progress.Meter) { one(m, scored(1e308)); one(m, scored(1e308)) }, "2/10 · 0 in flight · 0.2/s · ETA 40s"},
		{"resumed: earlier results count, but not for the rate", func(m *progress.Meter) {
			m.DoneBefore(0, false)
			m.DoneBefore(0, true)
			m.FailedBefore()
			one(m, scored(1))
		}, "4/10 · 0 in flight · 0.1/s · ETA 1m0s · reward 0.500 (2) · 1 masked · 1 failed (failed before 1)"},
		{"stopping: what is left takes no time", func(m *progress.Meter) { one(m, scored(1)); m.Ending() }, "1/10 · 0 in flight · stopping · reward 1.000 (1)"},
		{"all settled", func(m *progress.Meter) {
			for range 10 {
				one(m, scored(1))
			}
		}, "10/10 · 0 in flight · asking for metrics · reward 1.000 (10)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &progress.Meter{}
				m.Prepared(owed(10))
				test.events(m)
				began(m)
				m.Ended(collect.Rollout{}, episode.Attempt{Reply: episode.Reply{Failure: &failures.Failure{Err: context.Canceled}}})
				time.Sleep(10 * time.Second)
				if got := m.Line(time.Now()); got != test.want {
					t.Errorf("line %q, want %q", got, test.want)
				}
			})
		})
	}
}

// A terminal takes what is written to it.
type terminal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *terminal) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *terminal) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestPlainLinesComeEveryHalfMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &terminal{}
		screen := progress.NewScreen(oneOwed(), out)
		screen.Start()
		time.Sleep(61 * time.Second)
		screen.Stop()
		if got, want := out.String(), "0/1 · 0 in flight\n0/1 · 0 in flight\n"; got != want {
			t.Errorf("wrote %q, want %q", got, want)
		}
	})
}

// A log line goes above the live one, which is taken away in the end.
func TestTheLiveLineIsNotGarbled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &terminal{}
		screen := progress.NewLiveScreen(oneOwed(), out, -1)
		screen.Start()
		time.Sleep(600 * time.Millisecond)
		if _, err := screen.Write([]byte("a log line\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		screen.Stop()
		const clear, line = "\r\x1b[J", "0/1 · 0 in flight"
		if got, want := out.String(), line+clear+"a log line\n"+line+clear; got != want {
			t.Errorf("wrote %q, want %q", got, want)
		}
	})
}

// One live line takes the place of the other, also on a terminal that has become
// narrower meanwhile and has wrapped the other. The last column stays free: a terminal
// goes on to the next line behind it.
func TestTheLiveLineStaysOne(t *testing.T) {
	const clear, up, line = "\r\x1b[J", "\x1b[A", "0/1 · 0 in flight" // of 17 characters
	for _, test := range []struct {
		name         string
		first, later int // columns, when the first line is shown and from then on
		want         string
	}{
		{"as wide as it was", 80, 80, line + clear + line + clear},
		{"just wide enough", 18, 18, line + clear + line + clear},
		{"as wide as the line", 17, 17, "0/1" + clear + "0/1" + clear},
		{"narrower, and the line just fits", 80, 17, line + clear + "0/1" + clear},
		{"narrower by one too many", 80, 16, line + "\r" + up + "\x1b[J" + "0/1" + clear},
		{"narrower by far", 80, 8, line + "\r" + up + up + "\x1b[J" + "0/1" + clear},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := &terminal{}
				var columns atomic.Int64 // that the terminal has
				columns.Store(int64(test.first))
				screen := progress.NewScreenOfWidth(oneOwed(), out, func() int { return int(columns.Load()) })
				screen.Start()
				time.Sleep(600 * time.Millisecond)
				columns.Store(int64(test.later))
				time.Sleep(500 * time.Millisecond)
				screen.Stop()
				if got := out.String(); got != test.want {
					t.Errorf("wrote %q, want %q", got, test.want)
				}
			})
		})
	}
}

// A line longer than the terminal would wrap, and could not be taken away.
func TestALongLineIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, m := &terminal{}, oneOwed()
		for _, kind := range []failures.Kind{failures.TransportPeerDrop, failures.TransportUnreachable, failures.AgentRequestFailed, failures.AgentRunError} {
			began(m)
			m.Ended(collect.Rollout{}, failed(kind, false))
		}
		screen := progress.NewLiveScreen(m, out, -1) // no terminal: 80 columns
		screen.Start()
		time.Sleep(600 * time.Millisecond)
		screen.Stop()
		for line := range strings.SplitSeq(out.String(), "\r\x1b[J") {
			if n := len([]rune(line)); n > 79 {
				t.Errorf("a line of %d columns: %q", n, line)
			}
		}
	})
}

// Where there is little room, what fits is whole.
func TestTheLineOfANarrowTerminal(t *testing.T) {
	m := &progress.Meter{}
	m.Prepared(owed(1000))
	for range 3 {
		m.DoneBefore(0.5, false)
	}
	m.DoneBefore(0, true)
	m.FailedBefore()
	for columns, want := range map[int]string{
		200: "5/1000 · 0 in flight · reward 0.500 (3) · 1 masked · 1 failed (failed before 1)",
		79:  "5/1000 · 0 in flight · reward 0.500 (3) · 1 masked · 1 failed (failed before 1)",
		78:  "5/1000 · 0 in flight · reward 0.500 (3) · 1 masked · 1 failed",
		30:  "5/1000 · 0 in flight",
		20:  "5/1000 · 0 in flight",
		19:  "5/1000 · 1 masked",
		18:  "5/1000 · 1 masked",
		3:   "",
	} {
		if got := m.LineWithin(columns, time.Now()); got != want {
			t.Errorf("within %d columns: %q, want %q", columns, got, want)
		}
	}
}

// What is asked for is printed above the live line, and stays.
func TestALineThatIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &terminal{}
		screen := progress.NewLiveScreen(oneOwed(), out, -1)
		screen.Start()
		time.Sleep(600 * time.Millisecond)
		screen.Print()
		screen.Stop()
		const clear, line = "\r\x1b[J", "0/1 · 0 in flight"
		if got, want := out.String(), line+clear+line+"\n"; got != want {
			t.Errorf("wrote %q, want %q", got, want)
		}
	})
}

// events are what is written for a machine, without the times.
func events(t *testing.T, text string) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(text) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if _, ok := object["time"].(string); !ok {
			t.Errorf("line %q has no time", line)
		}
		delete(object, "time")
		again, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(again))
	}
	return out
}

func TestEventsForAMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, m := &terminal{}, &progress.Meter{}
		e := progress.NewEvents(m, out)
		both := progress.Observers{m, e}
		r := collect.Rollout{TaskID: protocol.TaskID{Taskset: "a", TaskID: "b"}, TaskIndex: 3, RolloutIndex: 1}
		both.Prepared(collect.Owed{Rollouts: 4, Tasks: 2, Repeats: 2})
		both.DoneBefore(0.5, false)
		e.Progress(time.Now())
		both.Began(r, false)
		refused := failed(failures.VerifierError, true)
		refused.Took, refused.EpisodeID.Attempt = 1500*time.Millisecond, 0
		time.Sleep(time.Second)
		both.Ended(r, refused)
		e.Progress(time.Now())
		both.Began(r, true)
		done := ended(episode.Result{Reward: 1, Masked: true})
		done.EpisodeID.Attempt = 1
		both.Ended(r, done)
		both.Began(r, false)
		both.Ended(r, episode.Attempt{Reply: episode.Reply{Failure: &failures.Failure{Reason: "stopped", Err: context.Canceled}}})
		e.Progress(time.Now())
		both.Ending()
		e.Progress(time.Now())
		want := []string{
			`{"event":"prepared","repeats":2,"rollouts":4,"tasks":2}`,
			`{"done":1,"ending":false,"event":"progress","failed":0,"in_flight":0,"masked":0,"mean_reward":0.5,"owed":4,"retries":0,"rollouts_per_second":0,"scored":1,"waiting":0}`,
			`{"again":true,"attempt":0,"elapsed_seconds":1.5,"event":"failure","kind":"verifier_error","reason":"x","rollout_index":1,"stage":"seed","task_id":{"task_id":"b","taskset":"a"},"task_index":3,"terminal":false}`,
			`{"done":1,"ending":false,"event":"progress","failed":0,"in_flight":0,"masked":0,"mean_reward":0.5,"owed":4,"retries":0,"rollouts_per_second":0,"scored":1,"waiting":1}`,
			`{"attempt":1,"elapsed_seconds":0,"event":"result","masked":true,"reward":1,"rollout_index":1,"task_id":{"task_id":"b","taskset":"a"},"task_index":3}`,
			`{"attempt":0,"elapsed_seconds":0,"event":"given_up","reason":"stopped","rollout_index":1,"task_id":{"task_id":"b","taskset":"a"},"task_index":3}`,
			`{"done":2,"ending":false,"eta_seconds":2,"event":"progress","failed":0,"in_flight":0,"masked":1,"mean_reward":0.5,"owed":4,"retries":1,"rollouts_per_second":1,"scored":1,"waiting":0}`,
			`{"done":2,"ending":true,"event":"progress","failed":0,"in_flight":0,"masked":1,"mean_reward":0.5,"owed":4,"retries":1,"rollouts_per_second":1,"scored":1,"waiting":0}`,
		}
		if diff := cmp.Diff(want, events(t, out.String())); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// A number that there is not, or that JSON has no form for, is left out, and what comes
// then is written all the same.
func TestAMeanThatThereIsNot(t *testing.T) {
	out, m := &terminal{}, &progress.Meter{}
	e := progress.NewEvents(m, out)
	m.Prepared(owed(3))
	e.Progress(time.Now())
	m.DoneBefore(1e308, false)
	m.DoneBefore(1e308, false)
	e.Progress(time.Now())
	e.Prepared(owed(3))
	want := []string{
		`{"done":0,"ending":false,"event":"progress","failed":0,"in_flight":0,"masked":0,"owed":3,"retries":0,"rollouts_per_second":0,"scored":0,"waiting":0}`,
		`{"done":2,"ending":false,"event":"progress","failed":0,"in_flight":0,"masked":0,"owed":3,"retries":0,"rollouts_per_second":0,"scored":2,"waiting":0}`,
		`{"event":"prepared","repeats":0,"rollouts":3,"tasks":0}`,
	}
	if diff := cmp.Diff(want, events(t, out.String())); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if err := e.Err(); err != nil {
		t.Error(err)
	}
}

// Each attempt that failed is a line of the log. One that was cut short has not failed.
func TestTheLogOfFailures(t *testing.T) {
	var out bytes.Buffer
	log := progress.FailureLog{Logger: zerolog.New(&out)}
	r := collect.Rollout{TaskID: protocol.TaskID{Taskset: "a", TaskID: "b"}, TaskIndex: 3, RolloutIndex: 1}
	log.Ended(r, ended(episode.Result{Reward: 1}))
	log.Ended(r, episode.Attempt{Reply: episode.Reply{Failure: &failures.Failure{Reason: "stopped", Err: context.Canceled}}})
	refused := failed(failures.VerifierError, false)
	refused.EpisodeID, refused.Took, refused.Failure.Terminal = protocol.EpisodeID{RolloutID: "3-1", Attempt: 2}, 3766177756*time.Nanosecond, true
	log.Ended(r, refused)
	const want = `{"level":"warn","rollout_id":"3-1","attempt":2,"taskset":"a","task_id":"b","took_seconds":3.766,"stage":"seed","failure_kind":"verifier_error","terminal":true,"reason":"x","message":"an episode failed"}` + "\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

type brokenPipe struct{ writes int }

func (b *brokenPipe) Write([]byte) (int, error) { b.writes++; return 0, io.ErrClosedPipe }

// Who reads the events may go: the run goes on, and says so in the end.
func TestEventsThatNobodyReads(t *testing.T) {
	pipe := &brokenPipe{}
	e := progress.NewEvents(&progress.Meter{}, pipe)
	e.Prepared(owed(1))
	e.Prepared(owed(1))
	if err := e.Err(); !errors.Is(err, io.ErrClosedPipe) || pipe.writes != 1 {
		t.Errorf("got %v after %d writes, want that the pipe is closed after one", err, pipe.writes)
	}
}
