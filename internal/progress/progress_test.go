package progress_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/progress"
	"example.com/turn/internal/scripted"
	"example.com/turn/resourcesclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func failed(kind failures.Kind, again bool) episode.Attempt {
	return episode.Attempt{Reply: episode.Reply{Failure: failures.New(failures.StageSeed, kind, "x")}, Again: again}
}

func ended(result episode.Result) episode.Attempt {
	return episode.Attempt{Reply: episode.Reply{Result: &result}}
}

// A run that will take for ever says so.
func TestAnETAIsNeverNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &progress.Meter{}
		m.Prepared(1_000_000)
		m.Began()
		time.Sleep(3 * time.Hour)
		m.Ended(ended(episode.Result{Reward: 1}))
		if got, want := m.Line(time.Now()), "1/1000000 · 0 in flight · 0.0/s · ETA over 1000 days · reward 1.000 (1)"; got != want {
			t.Errorf("line %q, want %q", got, want)
		}
	})
}

func TestTheLineOfAMeter(t *testing.T) {
	masked, scored := ended(episode.Result{Masked: true}), func(reward float64) episode.Attempt { return ended(episode.Result{Reward: reward}) }
	for _, test := range []struct {
		name   string
		events func(*progress.Meter)
		want   string
	}{
		{"nothing yet", func(*progress.Meter) {}, "0/10 · 0 in flight"},
		{"under way", func(m *progress.Meter) { m.Began(); m.Began() }, "0/10 · 2 in flight"},
		{"a mean over what is scored", func(m *progress.Meter) {
			m.Attempted(failed(failures.TransportPeerDrop, true))
			m.Attempted(failed("", false))
			for _, last := range []episode.Attempt{scored(1), scored(0), masked, failed("", false)} {
				m.Began()
				m.Ended(last)
			}
		}, "4/10 · 0 in flight · 0.4/s · ETA 15s · reward 0.500 (2) · 1 masked · 1 retries · 1 failed (seed 1)"},
		{"all masked: no mean", func(m *progress.Meter) { m.Began(); m.Ended(masked) }, "1/10 · 0 in flight · 0.1/s · ETA 1m30s · 1 masked"},
		{"given up", func(m *progress.Meter) {
			m.Began()
			m.Attempted(failed(failures.TransportPeerDrop, true))
			m.Ended(failed(failures.TransportPeerDrop, true)) // its next attempt was not to be
		}, "0/10 · 0 in flight · 1 retries"},
		{"resumed", func(m *progress.Meter) {
			m.Resumed(true)
			m.Resumed(false)
			m.Began()
			m.Ended(scored(1))
		}, "3/10 · 0 in flight · 0.1/s · ETA 1m10s · reward 1.000 (1) · 1 failed before"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &progress.Meter{}
				m.Prepared(10)
				test.events(m)
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
		screen := progress.NewScreen(&progress.Meter{}, out)
		screen.Start()
		time.Sleep(61 * time.Second)
		screen.Stop()
		if got, want := out.String(), "0/0 · 0 in flight\n0/0 · 0 in flight\n"; got != want {
			t.Errorf("wrote %q, want %q", got, want)
		}
	})
}

// A log line goes above the live one, which is taken away in the end.
func TestTheLiveLineIsNotGarbled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &terminal{}
		screen := progress.NewLiveScreen(&progress.Meter{}, out, -1)
		screen.Start()
		time.Sleep(600 * time.Millisecond)
		if _, err := screen.Write([]byte("a log line\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		screen.Stop()
		const clear, line = "\r\x1b[K", "0/0 · 0 in flight"
		if got, want := out.String(), clear+line+clear+"a log line\n"+clear+line+clear; got != want {
			t.Errorf("wrote %q, want %q", got, want)
		}
	})
}

// A line longer than the terminal would wrap, and could not be taken away.
func TestALongLineIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, m := &terminal{}, &progress.Meter{}
		for _, kind := range []failures.Kind{failures.TransportPeerDrop, failures.TransportUnreachable, failures.AgentRequestFailed, failures.AgentRunError} {
			m.Began()
			m.Ended(failed(kind, false))
		}
		screen := progress.NewLiveScreen(m, out, -1) // no terminal: 80 columns
		screen.Start()
		time.Sleep(600 * time.Millisecond)
		screen.Stop()
		for line := range strings.SplitSeq(out.String(), "\r\x1b[K") {
			if n := len([]rune(line)); n > 79 {
				t.Errorf("a line of %d columns: %q", n, line)
			}
		}
	})
}

// The meter counts what a driver yields.
func TestAMeterCountsAttempts(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Seed: {{Status: http.StatusServiceUnavailable}, {Status: http.StatusUnprocessableEntity}}})
	driver, err := episode.NewDriver(episode.Config{
		Resources: resourcesclient.Config{URL: servers.ResourcesURL},
		Agent:     agentclient.Config{URL: servers.AgentURL},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	m := &progress.Meter{}
	m.Began()
	request := &episode.Request{Params: []byte(`{}`)}
	request.EpisodeID.RolloutID, request.TaskID.Taskset, request.TaskID.TaskID = "0-0", "a", "b"
	options := episode.Options{}
	options.Policy.Backoff = time.Millisecond
	var last episode.Attempt
	for last = range episode.Attempts(context.Background(), driver, request, options.Policy) {
		m.Attempted(last)
	}
	m.Ended(last)
	if got, want := m.Line(time.Time{}), "1/0 · 0 in flight · 1 retries · 1 failed (seed 1)"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
}
