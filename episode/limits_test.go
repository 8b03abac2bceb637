package episode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/pool"
	"example.com/turn/retry"
)

// The steps of an episode as the bubble's servers see them.
const (
	seed   = "/seed_session"
	open   = "/v1/agent_sessions"
	turn   = "/ng-rollout/7-0/v1/responses"
	aclose = "/v1/agent_sessions/close"
	verify = "/verify"
	rclose = "/close_session"
)

func TestALimitThatRunsOutIsNamedWithItsCall(t *testing.T) {
	for _, test := range []struct {
		name   string
		hangs  string
		limits func(*episode.Config)
		stage  failures.Stage
		kind   failures.Kind
		reason string
		after  time.Duration
		calls  []string
	}{
		{
			"episode in seed", seed, func(c *episode.Config) { c.EpisodeTimeout = 30 * time.Second },
			failures.StageSeed, failures.TransportTimeout, "Episode timed out after 30s in POST /seed_session", 30 * time.Second,
			[]string{seed, rclose},
		},
		{
			"episode in agent seed", open, func(c *episode.Config) { c.EpisodeTimeout = 30 * time.Second },
			failures.StageAgent, failures.TransportTimeout, "Episode timed out after 30s in POST /v1/agent_sessions", 30 * time.Second,
			[]string{seed, open, aclose, rclose},
		},
		{
			"episode in the agent's turn", turn, func(c *episode.Config) { c.EpisodeTimeout = 30 * time.Second },
			failures.StageAgent, failures.AgentTimeout, "Episode timed out after 30s in POST /v1/responses", 30 * time.Second,
			[]string{seed, open, turn, aclose, rclose},
		},
		{
			"episode in verify", verify, func(c *episode.Config) { c.EpisodeTimeout = 30 * time.Second },
			failures.StageVerification, failures.TransportTimeout, "Episode timed out after 30s in POST /verify", 30 * time.Second,
			[]string{seed, open, turn, aclose, verify, rclose},
		},
		{
			"seed", seed, func(c *episode.Config) { c.SeedTimeout, c.EpisodeTimeout = 5*time.Second, time.Hour },
			failures.StageSeed, failures.TransportTimeout, "the seed timeout of 5s ran out in POST /seed_session", 5 * time.Second,
			[]string{seed, rclose},
		},
		{
			"agent seed", open, func(c *episode.Config) { c.SeedTimeout = 5 * time.Second },
			failures.StageAgent, failures.TransportTimeout, "the seed timeout of 5s ran out in POST /v1/agent_sessions", 5 * time.Second,
			[]string{seed, open, aclose, rclose},
		},
		{
			"verify", verify, func(c *episode.Config) { c.VerifyTimeout = 7 * time.Second },
			failures.StageVerification, failures.TransportTimeout, "the verify timeout of 7s ran out in POST /verify", 7 * time.Second,
			[]string{seed, open, turn, aclose, verify, rclose},
		},
		{
			"cleanup in the agent close", aclose, func(c *episode.Config) { c.CleanupTimeout = 9 * time.Second },
			failures.StageCleanup, failures.TransportTimeout, "the cleanup timeout of 9s ran out in POST /v1/agent_sessions/close", 9 * time.Second,
			[]string{seed, open, turn, aclose, rclose},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bubble{over: map[string]http.HandlerFunc{test.hangs: hang}}
				d, stop := b.driver(t, test.limits)
				defer stop()
				began := time.Now()
				f := mustFail(t, d.Run(t.Context(), newRequest()))
				if took := time.Since(began); took != test.after {
					t.Errorf("took %s, want %s", took, test.after)
				}
				if f.Stage != test.stage || f.Kind != test.kind || f.Terminal {
					t.Errorf("got stage %s, kind %q, terminal %t; want %s, %q, false", f.Stage, f.Kind, f.Terminal, test.stage, test.kind)
				}
				if !strings.Contains(f.Reason, test.reason) {
					t.Errorf("reason %q lacks %q", f.Reason, test.reason)
				}
				if diff := cmp.Diff(test.calls, b.paths()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestTheEpisodeLimitKeepsTheAgentsResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{over: map[string]http.HandlerFunc{verify: hang}}
		d, stop := b.driver(t, func(c *episode.Config) { c.EpisodeTimeout = time.Minute })
		defer stop()
		f := mustFail(t, d.Run(t.Context(), newRequest()))
		if got, want := string(f.PartialResponse), `{"output":[]}`; got != want {
			t.Errorf("partial response %s, want %s", got, want)
		}
	})
}

// A slow agent close is not cut by the episode's limit; when that has run out
// meanwhile, verify is not sent, and is what the failure names.
func TestTheEpisodeLimitDoesNotCutTheAgentClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Second)
			answer(w, r)
		}
		b := &bubble{over: map[string]http.HandlerFunc{aclose: slow}}
		d, stop := b.driver(t, func(c *episode.Config) { c.EpisodeTimeout, c.CleanupTimeout = 10*time.Second, time.Minute })
		defer stop()
		f := mustFail(t, d.Run(t.Context(), newRequest()))
		if want := "Episode timed out after 10s in POST /verify"; f.Stage != failures.StageVerification || !strings.Contains(f.Reason, want) {
			t.Errorf("got stage %s, reason %q; want stage verification and %q", f.Stage, f.Reason, want)
		}
		if f.PartialResponse == nil {
			t.Error("the agent's response is lost")
		}
		if diff := cmp.Diff([]string{seed, open, turn, aclose, rclose}, b.paths()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// A verdict that was reached is kept, however long the resources close takes.
func TestASlowResourcesCloseCostsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{over: map[string]http.HandlerFunc{rclose: hang}}
		d, stop := b.driver(t, func(c *episode.Config) { c.EpisodeTimeout, c.CleanupTimeout = 10*time.Second, time.Minute })
		defer stop()
		began := time.Now()
		if result := mustSucceed(t, d.Run(t.Context(), newRequest())); result.Reward != 1 {
			t.Errorf("reward %v, want 1", result.Reward)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("took %s, want the minute that the close has", took)
		}
	})
}

// Each close has a budget of its own: an agent close that hangs leaves the
// resources close its time.
func TestAHungAgentCloseDoesNotStopTheResourcesClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed time.Time
		began := time.Now()
		b := &bubble{over: map[string]http.HandlerFunc{aclose: hang, rclose: func(w http.ResponseWriter, r *http.Request) {
			closed = time.Now()
			answer(w, r)
		}}}
		d, stop := b.driver(t, func(c *episode.Config) { c.CleanupTimeout = 2 * time.Second })
		defer stop()
		mustFail(t, d.Run(t.Context(), newRequest()))
		if got := closed.Sub(began); got != 2*time.Second {
			t.Errorf("the resources session was closed after %s, want 2s", got)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the reply came after %s, want 2s", took)
		}
	})
}

// The verify limit is verify's alone: an agent may think for longer.
func TestOneLimitIsNotAppliedToAnotherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		thinking := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(2 * time.Second)
			answer(w, r)
		}
		b := &bubble{over: map[string]http.HandlerFunc{turn: thinking}}
		d, stop := b.driver(t, func(c *episode.Config) { c.VerifyTimeout, c.SeedTimeout = 500*time.Millisecond, 500*time.Millisecond })
		defer stop()
		mustSucceed(t, d.Run(t.Context(), newRequest()))
	})
}

// With the defaults there is no limit on an agent's turn: not a library's, not
// one of ours.
func TestAnAgentMayBeSilentForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		thinking := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(24 * time.Hour)
			answer(w, r)
		}
		b := &bubble{over: map[string]http.HandlerFunc{turn: thinking}}
		d, stop := b.driver(t, func(*episode.Config) {})
		defer stop()
		mustSucceed(t, d.Run(t.Context(), newRequest()))
	})
}

func TestTheAgentsDeadline(t *testing.T) {
	envelope := `{"id":"agent-timeout-7-0","created_at":0,"model":"","object":"response","output":[],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"status":"incomplete","incomplete_details":null,"metadata":{"agent_timed_out":"true","response_source":"environment_timeout_envelope"}}`
	for _, test := range []struct {
		name     string
		receipt  string // what the agent close adds
		verified string // the response in the verify body
	}{
		{"nothing came back", ``, envelope},
		{"a partial response came back", `,"partial_response":{"output":[1]}`, `{"output":[1]}`},
		{"a partial response that is none", `,"partial_response":{"x":1}`, envelope},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				receipt := func(w http.ResponseWriter, r *http.Request) {
					id := field(t, readBody(r), "agent_session_id")
					_, _ = w.Write([]byte(`{"agent_session_id":"` + id + `"` + test.receipt + `}`))
				}
				judge := func(w http.ResponseWriter, r *http.Request) { // which says something else of the time
					var body map[string]json.RawMessage
					_ = json.Unmarshal(readBody(r), &body)
					_, _ = fmt.Fprintf(w, `{"agent_timed_out":false,"reward":1,"agent_timeout_seconds":1,"responses_create_params":{},"response":%s}`, body["response"])
				}
				b := &bubble{over: map[string]http.HandlerFunc{turn: hang, aclose: receipt, verify: judge}}
				d, stop := b.driver(t, func(c *episode.Config) { c.AgentTimeout = time.Hour })
				defer stop()
				request := newRequest()
				request.AgentTimeout = 90 * time.Second
				began := time.Now()
				result := mustSucceed(t, d.Run(t.Context(), request))
				if took := time.Since(began); took != 90*time.Second {
					t.Errorf("took %s, want the request's own 1m30s", took)
				}
				for name, want := range map[string]string{
					"response": test.verified, "agent_timed_out": "true", "agent_timeout_seconds": "90",
				} {
					if got := string(result.Field(name)); got != want {
						t.Errorf("%s is %s, want %s", name, got, want)
					}
				}
				if diff := cmp.Diff([]string{seed, open, turn, aclose, verify, rclose}, b.paths()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// That an agent ran out of time is the driver's to say. A verifier may have fields of
// those names that mean something of its own: they stay, until they would say another
// thing than the driver does.
func TestAVerifiersOwnFieldsOfAnAgentsTime(t *testing.T) {
	const (
		own  = `"agent_timeout_seconds":"long","x":1,"agent_timed_out":false`
		rest = `,"reward":1,"response":{},"responses_create_params":{}`
	)
	for _, test := range []struct {
		name     string
		turn     http.HandlerFunc
		want     string
		timedOut bool
	}{
		{"in time", answer, own, false},
		{"out of time", hang, `"agent_timeout_seconds":0.125,"x":1,"agent_timed_out":true`, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bubble{over: map[string]http.HandlerFunc{turn: test.turn, verify: func(w http.ResponseWriter, _ *http.Request) {
					_, _ = w.Write([]byte(`{` + own + rest + `}`))
				}}}
				d, stop := b.driver(t, func(c *episode.Config) { c.AgentTimeout = 125 * time.Millisecond })
				defer stop()
				result := mustSucceed(t, d.Run(t.Context(), newRequest()))
				want := `{` + test.want + rest + `,"ng_agent_observations":null}`
				if got := string(result.Body().Bytes()); got != want || result.AgentTimedOut != test.timedOut {
					t.Errorf("got %s, timed out %t; want %s, %t", got, result.AgentTimedOut, want, test.timedOut)
				}
			})
		})
	}
}

func TestAdmission(t *testing.T) {
	t.Run("a wait that is too long makes no call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &bubble{over: map[string]http.HandlerFunc{turn: hang}}
			d, stop := b.driver(t, func(c *episode.Config) { c.Concurrency, c.QueueTimeout = 1, 10*time.Second })
			defer stop()
			ctx, cancel := context.WithCancel(t.Context())
			first := make(chan episode.Reply)
			go func() { first <- d.Run(ctx, newRequest()) }()
			synctest.Wait()
			began := time.Now()
			f := mustFail(t, d.Run(t.Context(), newRequest()))
			if took := time.Since(began); took != 10*time.Second {
				t.Errorf("took %s, want 10s", took)
			}
			want := &failures.Failure{Stage: failures.StageAdmission, Reason: "Episode admission timed out"}
			if diff := cmp.Diff(want, f); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{seed, open, turn}, b.paths()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			cancel()
			<-first
			b.takeOver(nil)
			mustSucceed(t, d.Run(t.Context(), newRequest())) // the place was given back
		})
	})
	t.Run("never more than the limit, and all get in", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var running, most atomic.Int64
			slow := func(w http.ResponseWriter, r *http.Request) {
				now := running.Add(1)
				for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
				}
				time.Sleep(time.Second)
				running.Add(-1)
				answer(w, r)
			}
			b := &bubble{over: map[string]http.HandlerFunc{turn: slow}}
			d, stop := b.driver(t, func(c *episode.Config) { c.Concurrency, c.QueueTimeout = 3, time.Minute })
			defer stop()
			replies := make(chan episode.Reply)
			for range 30 {
				go func() { replies <- d.Run(t.Context(), newRequest()) }()
			}
			for range 30 {
				mustSucceed(t, <-replies)
			}
			if most.Load() != 3 {
				t.Errorf("%d ran at once, want 3", most.Load())
			}
		})
	})
}

// While an episode waits to be tried again, its place is another's.
func TestABackOffHoldsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusals := 1
		b := &bubble{over: map[string]http.HandlerFunc{seed: func(w http.ResponseWriter, r *http.Request) {
			if refusals > 0 {
				refusals--
				w.Header().Set("Retry-After", "60")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			answer(w, r)
		}}}
		d, stop := b.driver(t, func(c *episode.Config) { c.Concurrency, c.QueueTimeout = 1, time.Second })
		defer stop()
		poisoned := make(chan episode.Reply)
		go func() { poisoned <- episode.Redispatch(t.Context(), d, newRequest(), retry.Policy{}) }()
		synctest.Wait()
		began := time.Now()
		mustSucceed(t, d.Run(t.Context(), newRequest()))
		if took := time.Since(began); took != 0 {
			t.Errorf("the next episode waited %s", took)
		}
		mustSucceed(t, <-poisoned)
	})
}

func TestDrainingEndsABackOffAndTheLineForAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{over: map[string]http.HandlerFunc{
			turn: hang,
			seed: func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(string(peekBody(r)), `"poisoned"`) {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				answer(w, r)
			},
		}}
		d, stop := b.driver(t, func(c *episode.Config) { c.Concurrency, c.QueueTimeout = 1, time.Hour })
		defer stop()
		poisoned := newRequest()
		poisoned.EpisodeID.RolloutID = "poisoned"
		backingOff := make(chan episode.Reply, 1)
		go func() {
			backingOff <- episode.Redispatch(t.Context(), d, poisoned, retry.Policy{Backoff: time.Minute, Random: func() float64 { return 0.5 }})
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		running, waiting := make(chan episode.Reply, 1), make(chan episode.Reply, 1)
		go func() { running <- d.Run(ctx, newRequest()) }()
		synctest.Wait()
		go func() { waiting <- d.Run(t.Context(), newRequest()) }()
		synctest.Wait()

		began := time.Now()
		d.Drain()
		synctest.Wait()
		if f := mustFail(t, <-backingOff); f.Stage != failures.StageSeed {
			t.Errorf("the one that backed off answers %v, want its seed's failure", f)
		}
		if f := mustFail(t, <-waiting); f.Kind != failures.Shutdown || f.Stage != failures.StageAdmission || f.Terminal {
			t.Errorf("the one in line answers %+v, want kind shutdown, stage admission", f)
		}
		if f := mustFail(t, d.Run(t.Context(), newRequest())); f.Kind != failures.Shutdown {
			t.Errorf("a new one answers %+v, want kind shutdown", f)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("they were kept waiting for %s", waited)
		}
		select {
		case reply := <-running:
			t.Errorf("the one under way ended with %+v", reply)
		default:
		}
		cancel(&failures.Stop{Kind: failures.Shutdown, Reason: "the server is shutting down"})
		f := mustFail(t, <-running)
		if f.Kind != failures.Shutdown || !f.CutShort() || !errors.Is(f, failures.Shutdown) {
			t.Errorf("the one under way answers %+v, want kind shutdown", f)
		}
	})
}

// An attempt that does not get a place again leaves the failure that came before
// it: that says more than the queue does.
func TestANextAttemptThatIsNotAdmittedLeavesTheLastFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{over: map[string]http.HandlerFunc{
			turn: hang,
			seed: func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(string(peekBody(r)), `"poisoned"`) {
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = w.Write([]byte(`{"detail":"no free GPU"}`))
					return
				}
				answer(w, r)
			},
		}}
		d, stop := b.driver(t, func(c *episode.Config) { c.Concurrency, c.QueueTimeout = 1, 2*time.Second })
		defer stop()
		poisoned := newRequest()
		poisoned.EpisodeID.RolloutID = "poisoned"
		ended := make(chan episode.Reply, 1)
		go func() {
			ended <- episode.Redispatch(t.Context(), d, poisoned, retry.Policy{Backoff: time.Minute, Random: func() float64 { return 0.5 }})
		}()
		synctest.Wait() // it backs off
		ctx, cancel := context.WithCancel(t.Context())
		running := make(chan episode.Reply, 1)
		go func() { running <- d.Run(ctx, newRequest()) }() // and another takes the place
		f := mustFail(t, <-ended)
		if f.Stage != failures.StageSeed || !strings.Contains(f.Reason, "no free GPU") || f.Reason != strings.TrimSpace(f.Reason) {
			t.Errorf("got %+v, want the seed's refusal", f)
		}
		cancel()
		<-running
	})
}

// A close that is told to come back later than it has time for is tried again all
// the same: nobody else will close the session.
func TestACloseIsTriedAgainWhateverRetryAfterAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closes atomic.Int64
		b := &bubble{over: map[string]http.HandlerFunc{rclose: func(w http.ResponseWriter, r *http.Request) {
			if closes.Add(1) < 4 {
				w.Header().Set("Retry-After", "60")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			answer(w, r)
		}}}
		d, stop := b.driver(t, func(c *episode.Config) { c.CleanupTimeout = 30 * time.Second })
		defer stop()
		mustSucceed(t, d.Run(t.Context(), newRequest()))
		if closes.Load() != 4 {
			t.Errorf("%d closes, want 4", closes.Load())
		}
	})
}

// While the agent's close hangs, the resources server may find the agent attached and
// refuse its own close: that is told with the session's id, and comes after the agent's
// time is over.
func TestAResourcesCloseThatIsRefusedWhileTheAgentHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var id atomic.Value
		b := &bubble{over: map[string]http.HandlerFunc{aclose: hang, rclose: func(w http.ResponseWriter, r *http.Request) {
			id.Store(field(t, readBody(r), "resources_session_id"))
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"detail":"still attached"}`))
		}}}
		var log strings.Builder
		d, stop := b.driver(t, func(c *episode.Config) { c.CleanupTimeout, c.Logger = 2*time.Second, zerolog.New(&log) })
		defer stop()
		began := time.Now()
		if f := mustFail(t, d.Run(t.Context(), newRequest())); f.Stage != failures.StageCleanup {
			t.Errorf("got %+v, want the agent close's failure", f)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %s, want 2s", took)
		}
		for _, want := range []string{id.Load().(string), "still attached", "the resources close failed", "the agent close failed"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q: %s", want, log.String())
			}
		}
	})
}

// A server that is not there is given up in a bounded time, and the place goes to the
// next episode, which runs when the server is there again.
func TestAServerThatComesUpLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{}
		var up atomic.Bool
		d, stop := b.driver(t, func(c *episode.Config) {
			c.Concurrency, c.QueueTimeout = 1, time.Second
			c.Resources.Resend, c.Agent.Resend = retry.Resend{}, retry.Resend{}
			next := c.Transport.(*pool.Transport)
			dial := next.DialContext
			next.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				if !up.Load() {
					return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
				}
				return dial(ctx, network, address)
			}
		})
		defer stop()
		began := time.Now()
		f := mustFail(t, d.Run(t.Context(), newRequest()))
		// Four sends of the seed and four of its close, half a second apart and
		// up to half of that more.
		if took := time.Since(began); took < 3*time.Second || took > 4500*time.Millisecond {
			t.Errorf("took %s, want 3s to 4.5s", took)
		}
		if f.Kind != failures.TransportUnreachable || f.Terminal {
			t.Errorf("got %+v, want transport_unreachable, not terminal", f)
		}
		up.Store(true)
		mustSucceed(t, d.Run(t.Context(), newRequest()))
	})
}

// A cap on elapsed time counts from the end of the first attempt that failed: what
// that took is the work, and what comes after it, work and waits, is trying again.
func TestACapOnElapsedTimeCountsFromTheFirstFailure(t *testing.T) {
	const work = time.Hour
	for _, test := range []struct {
		name     string
		most     time.Duration
		backoff  time.Duration // the wait before each further attempt
		attempts int
		took     time.Duration
	}{
		{"a minute", time.Minute, 0, 2, 2 * work},
		{"just before the third attempt", work - 1, 0, 2, 2 * work},
		{"just for the third attempt", work, 0, 3, 3 * work},
		{"the waits count", work + 9*time.Minute, 5 * time.Minute, 2, 2*work + 5*time.Minute},
		{"and may just fit", work + 10*time.Minute, 5 * time.Minute, 3, 3*work + 10*time.Minute},
		{"none", 0, 0, 10, 10 * work},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bubble{over: map[string]http.HandlerFunc{"/v1/responses": func(w http.ResponseWriter, _ *http.Request) {
					time.Sleep(work)
					w.WriteHeader(http.StatusInternalServerError)
				}}}
				d, stop := b.driver(t, func(*episode.Config) {})
				defer stop()
				policy := retry.Policy{MaxAttempts: 10, MaxElapsed: test.most, Random: func() float64 { return 0 }}
				if test.backoff > 0 {
					policy.Backoff, policy.Random = test.backoff, func() float64 { return 1 }
				}
				began, attempts := time.Now(), 0
				for attempt := range episode.Attempts(t.Context(), d, newRequest(), policy) {
					attempts++
					if last := attempts == test.attempts; attempt.Again == last {
						t.Errorf("after attempt %d there is to be another: %t", attempts, attempt.Again)
					}
				}
				if took := time.Since(began); attempts != test.attempts || took != test.took {
					t.Errorf("%d attempts in %s, want %d in %s", attempts, took, test.attempts, test.took)
				}
			})
		})
	}
}

// Cleaning up is no part of the verdict: with a resources server that is too busy for
// every close, the reward stays, nothing runs again, and it takes no longer than a
// close may. A person learns which session may still be open.
func TestACloseThatIsRefusedToTheEnd(t *testing.T) {
	const budget = 10 * time.Second
	for _, test := range []struct {
		name   string
		takes  time.Duration // each refusal
		closes int64
		within [2]time.Duration
		log    []string
	}{
		{"at once", 0, 4, [2]time.Duration{1500 * time.Millisecond, 2250 * time.Millisecond}, []string{"refused POST /close_session with 503 Service Unavailable: restarting"}},
		// The third is under way when the time is over.
		{"slowly", 4 * time.Second, 3, [2]time.Duration{budget, budget}, []string{"the cleanup timeout of 10s ran out in POST /close_session", "503 Service Unavailable: restarting"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var id atomic.Value
				var closes, told atomic.Int64
				b := &bubble{over: map[string]http.HandlerFunc{rclose: func(w http.ResponseWriter, r *http.Request) {
					closes.Add(1)
					id.Store(field(t, readBody(r), "resources_session_id"))
					time.Sleep(test.takes)
					w.Header().Set("Retry-After", "60")
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = w.Write([]byte(`{"detail":"restarting"}`))
				}}}
				var log strings.Builder
				d, stop := b.driver(t, func(c *episode.Config) {
					c.CleanupTimeout, c.Logger = budget, zerolog.New(&log)
					c.Resources.Resend = retry.Resend{}
					c.Observer = toldOfCloses{tell: func(server episode.Server) {
						if server == episode.ResourcesServer {
							told.Add(1)
						}
					}}
				})
				defer stop()
				began, attempts := time.Now(), 0
				for attempt := range episode.Attempts(t.Context(), d, newRequest(), retry.Policy{}) {
					attempts++
					if result := mustSucceed(t, attempt.Reply); result.Reward != 1 || attempt.Again {
						t.Errorf("reward %v, again %t; want 1, false", result.Reward, attempt.Again)
					}
				}
				if took := time.Since(began); took < test.within[0] || took > test.within[1] {
					t.Errorf("took %s, want %s to %s", took, test.within[0], test.within[1])
				}
				time.Sleep(time.Hour)
				if attempts != 1 || closes.Load() != test.closes || told.Load() != 1 {
					t.Errorf("%d attempts, %d closes, %d told of; want 1, %d, 1", attempts, closes.Load(), told.Load(), test.closes)
				}
				lines := logLines(t, log.String(), "the resources close failed")
				if len(lines) != 1 || lines[0]["level"] != "warn" || lines[0]["resources_session_id"] != id.Load() {
					t.Fatalf("the log is %s, want one warning with %s", log.String(), id.Load())
				}
				for _, want := range test.log {
					if reason := lines[0]["reason"].(string); !strings.Contains(reason, want) {
						t.Errorf("the log's reason %q lacks %q", reason, want)
					}
				}
			})
		})
	}
}

// A server that never has room is asked once an attempt and no more often; its words
// are the failure, and the log tells of as many attempts as it saw.
func TestTheLastRefusalIsLeftWhenTheAttemptsRunOut(t *testing.T) {
	for _, most := range []int{1, 3, 7} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seeds atomic.Int64
				b := &bubble{over: map[string]http.HandlerFunc{seed: func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = fmt.Fprintf(w, `{"detail":"no free GPU (%d)"}`, seeds.Add(1))
				}}}
				reason := func(seeds int) string {
					return fmt.Sprintf("resources server bench refused POST /seed_session with 503 Service Unavailable: no free GPU (%d)", seeds)
				}
				var log strings.Builder
				d, stop := b.driver(t, func(c *episode.Config) { c.Logger = zerolog.New(&log) })
				defer stop()
				reply := episode.Redispatch(t.Context(), d, newRequest(), retry.Policy{MaxAttempts: most})
				f := mustFail(t, reply)
				want := reason(most)
				if f.Reason != want || f.Status != http.StatusServiceUnavailable || f.Terminal {
					t.Errorf("got %+v, want %q, not terminal", f, want)
				}
				if got := field(t, reply.Failure.Body().Bytes(), "failure_reason"); got != want {
					t.Errorf("failure_reason %q, want %q", got, want)
				}
				var calls []string
				for range most {
					calls = append(calls, seed, rclose)
				}
				if diff := cmp.Diff(calls, b.paths()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				lines := logLines(t, log.String(), "an episode failed")
				if len(lines) != most {
					t.Errorf("the log tells of %d attempts, want %d", len(lines), most)
				}
				for i, line := range lines {
					if line["attempt"] != float64(i) || line["reason"] != reason(i+1) {
						t.Errorf("line %d is of attempt %v: %v", i, line["attempt"], line["reason"])
					}
				}
			})
		})
	}
}

// Once an episode is given up, nothing reaches a server any more but the closes of
// what was opened, whatever it was doing: with each call under way, in the wait
// before a call is sent again, and in the wait before the next attempt.
func TestAfterACancelNothingIsCalledButTheCloses(t *testing.T) {
	busy := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"detail":"no free GPU"}`))
	}
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		answer(w, r)
	}
	gone := &failures.Stop{Kind: failures.Cancelled, Reason: "the caller went away"}
	const at = 500 * time.Millisecond // of the cancel
	for _, test := range []struct {
		name  string
		path  string
		does  http.HandlerFunc
		calls []string // in all
		stage failures.Stage
		has   string // the reason
		again bool   // another attempt was to follow
	}{
		{"during the seed", seed, hang, []string{seed, rclose}, failures.StageSeed, "the caller went away in POST /seed_session", false},
		{"during the agent seed", open, hang, []string{seed, open, aclose, rclose}, failures.StageAgent, "the caller went away in POST /v1/agent_sessions", false},
		{"during the turn", turn, hang, []string{seed, open, turn, aclose, rclose}, failures.StageAgent, "the caller went away in POST /v1/responses", false},
		{"during the agent close", aclose, slow, []string{seed, open, turn, aclose, rclose}, failures.StageVerification, "the caller went away in POST /verify", false},
		{"during verify", verify, hang, []string{seed, open, turn, aclose, verify, rclose}, failures.StageVerification, "the caller went away in POST /verify", false},
		{"before the seed is sent again", seed, hangUp, []string{seed, rclose}, failures.StageSeed, "before that: the connection ended before the reply", false},
		{"before verify is sent again", verify, hangUp, []string{seed, open, turn, aclose, verify, rclose}, failures.StageVerification, "before that: the connection ended before the reply", false},
		{"before the next attempt", seed, busy, []string{seed, rclose}, failures.StageSeed, "503 Service Unavailable: no free GPU", true},
		{"before the next attempt, after the turn", turn, hangUp, []string{seed, open, turn, aclose, rclose}, failures.StageAgent, "did not answer POST /v1/responses: the connection ended before the reply", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bubble{over: map[string]http.HandlerFunc{test.path: test.does}}
				d, stop := b.driver(t, func(c *episode.Config) {
					c.Resources.Resend, c.Agent.Resend = retry.Resend{Pause: time.Minute}, retry.Resend{Pause: time.Minute}
				})
				defer stop()
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(at, func() { cancel(gone) })
				began := time.Now()
				policy := retry.Policy{MaxAttempts: 10, Backoff: time.Minute, Random: func() float64 { return 0.5 }}
				var last episode.Attempt
				for last = range episode.Attempts(ctx, d, newRequest(), policy) {
				}
				took, want := time.Since(began), at
				if test.path == aclose {
					want = time.Second // which is not cut
				}
				if took != want {
					t.Errorf("it ended after %s, want %s", took, want)
				}
				if last.Again != test.again || !last.Unsettled() {
					t.Errorf("again %t, unsettled %t; want %t, true", last.Again, last.Unsettled(), test.again)
				}
				f := mustFail(t, last.Reply)
				if f.Stage != test.stage || f.Terminal || !strings.Contains(f.Reason, test.has) {
					t.Errorf("got stage %s, reason %q; want %s and %q", f.Stage, f.Reason, test.stage, test.has)
				}
				time.Sleep(24 * time.Hour)
				if diff := cmp.Diff(test.calls, b.paths()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A wait that would not end before the deadline is not begun, be it the wait before
// the next attempt or the one before a call is sent again, the first or a later one:
// what is left is the last real error, and not that a deadline passed.
func TestAWaitThatDoesNotFitEndsAtOnceWithTheLastRealError(t *testing.T) {
	busy := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"detail":"no free GPU"}`))
	}
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	asked := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "5")
		busy(w, r)
	}
	const second = time.Second
	for _, test := range []struct {
		name    string
		does    http.HandlerFunc // instead of a seed
		caller  time.Duration    // the caller's deadline; 0: none
		limits  func(*episode.Config)
		policy  retry.Policy
		resend  time.Duration
		seeds   int
		atLeast time.Duration // it takes
		atMost  time.Duration
		has     string
	}{
		{"the first back-off", busy, second, nil, retry.Policy{Backoff: 5 * second}, 1, 1, 0, 0, "503 Service Unavailable: no free GPU"},
		{"one that would end just then", busy, 5 * second, nil, retry.Policy{Backoff: 5 * second}, 1, 1, 0, 0, "503 Service Unavailable: no free GPU"},
		{"the third back-off", busy, 20 * second, nil, retry.Policy{MaxAttempts: 10, Backoff: 5 * second}, 1, 3, 15 * second, 15 * second, "503 Service Unavailable: no free GPU"},
		{"a Retry-After", asked, second, nil, retry.Policy{Backoff: 1}, 1, 1, 0, 0, "503 Service Unavailable: no free GPU"},
		{"a pause of the call", hangUp, second, nil, retry.Policy{}, 5 * second, 1, 0, 0, "the connection ended before the reply"},
		{"in the seed's limit", hangUp, 0, func(c *episode.Config) { c.SeedTimeout = second }, retry.Policy{MaxAttempts: 1}, 5 * second, 1, 0, 0, "the connection ended before the reply"},
		{"in the episode's limit", hangUp, 0, func(c *episode.Config) { c.EpisodeTimeout = 9 * second }, retry.Policy{MaxAttempts: 1}, 5 * second, 2, 5 * second, 7500 * time.Millisecond, "the connection ended before the reply"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bubble{over: map[string]http.HandlerFunc{seed: test.does}}
				d, stop := b.driver(t, func(c *episode.Config) {
					c.Resources.Resend = retry.Resend{Pause: test.resend}
					if test.limits != nil {
						test.limits(c)
					}
				})
				defer stop()
				ctx := t.Context()
				if test.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.caller)
					defer cancel()
				}
				test.policy.Random = func() float64 { return 1 }
				began := time.Now()
				f := mustFail(t, episode.Redispatch(ctx, d, newRequest(), test.policy))
				if took := time.Since(began); took < test.atLeast || took > test.atMost {
					t.Errorf("it ended after %s, want %s to %s", took, test.atLeast, test.atMost)
				}
				if !strings.Contains(f.Reason, test.has) || f.Kind == failures.TransportTimeout || f.Kind == failures.Cancelled {
					t.Errorf("got kind %q, reason %q; want %q", f.Kind, f.Reason, test.has)
				}
				time.Sleep(24 * time.Hour)
				var want []string
				for range test.seeds {
					want = append(want, seed)
				}
				var got []string
				for _, path := range b.paths() {
					if path != rclose {
						got = append(got, path)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("calls but the closes (-want +got):\n%s", diff)
				}
			})
		})
	}
}
