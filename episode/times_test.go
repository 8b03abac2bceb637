package episode_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
)

// The times of an attempt are those of its stages, as far as it got: the agent's is
// that of both its calls, and the close of the resources is in none of them.
func TestTimesOfAnAttempt(t *testing.T) {
	for _, test := range []struct {
		name   string
		broken string // the call that is refused; "": none
		want   episode.Times
	}{
		{"to the end", "", episode.Times{Seed: 1 * time.Second, Agent: (2 + 4) * time.Second, Cleanup: 8 * time.Second, Verification: 16 * time.Second}},
		{"to the seed", seed, episode.Times{Seed: 1 * time.Second}},
		{"to the agent's seed", open, episode.Times{Seed: 1 * time.Second, Agent: 2 * time.Second, Cleanup: 8 * time.Second}},
		{"to the agent", turn, episode.Times{Seed: 1 * time.Second, Agent: (2 + 4) * time.Second, Cleanup: 8 * time.Second}},
		{"to the agent's close", aclose, episode.Times{Seed: 1 * time.Second, Agent: (2 + 4) * time.Second, Cleanup: 8 * time.Second}},
		{"to the verifier", verify, episode.Times{Seed: 1 * time.Second, Agent: (2 + 4) * time.Second, Cleanup: 8 * time.Second, Verification: 16 * time.Second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := map[string]http.HandlerFunc{}
				for i, call := range []string{seed, open, turn, aclose, verify, rclose} {
					over[call] = func(w http.ResponseWriter, r *http.Request) {
						time.Sleep(time.Second << i)
						if call == test.broken {
							_ = readBody(r)
							w.WriteHeader(http.StatusTeapot)
							return
						}
						answer(w, r)
					}
				}
				b := &bubble{over: over}
				d, stop := b.driver(t, func(*episode.Config) {})
				defer stop()
				for range 2 { // the second attempt's are its own
					reply := d.Run(t.Context(), newRequest())
					if diff := cmp.Diff(test.want, reply.Times); diff != "" || (reply.Failure != nil) != (test.broken != "") {
						t.Errorf("failure %v; times (-want +got):\n%s", reply.Failure, diff)
					}
				}
			})
		})
	}
}

// A stage that did not begin has no time, and there are none of what is no stage.
func TestTimesOfStages(t *testing.T) {
	times := episode.Times{Seed: 1, Agent: 2, Cleanup: 3, Verification: 4}
	for stage, want := range map[failures.Stage]time.Duration{
		failures.StageSeed: 1, failures.StageAgent: 2, failures.StageCleanup: 3, failures.StageVerification: 4, failures.StageAdmission: 0, "": 0, "odd": 0,
	} {
		if got, ok := times.Of(stage); got != want || ok != (want > 0) {
			t.Errorf("stage %q took %d, %t, want %d", stage, got, ok, want)
		}
		if got, ok := (episode.Times{}).Of(stage); got != 0 || ok {
			t.Errorf("stage %q, which did not begin, took %d, %t", stage, got, ok)
		}
	}
}
