package episode_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/episode"
)

// after answers a call with a status, later.
func after(wait time.Duration, status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(wait) // of the bubble's clock
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"detail":"no room"}`))
	}
}

// A failed episode is one line that says which it was, what happened and how long it
// and each of its stages took.
func TestAFailedEpisodeIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{over: map[string]http.HandlerFunc{verify: after(2500*time.Millisecond, http.StatusTooManyRequests)}}
		var log strings.Builder
		d, stop := b.driver(t, func(c *episode.Config) { c.Logger = zerolog.New(&log) })
		defer stop()
		mustFail(t, d.Run(t.Context(), newRequest()))
		want := []map[string]any{{
			"level": "warn", "message": "an episode failed", "rollout_id": "7-0", "attempt": 0.0, "taskset": "weather", "task_id": "t-7",
			"stage": "verification", "failure_kind": "verifier_error", "terminal": false, "reason": "resources server bench refused POST /verify with 429 Too Many Requests: no room",
			"took_seconds": 2.5, "verification_seconds": 2.5, // the other stages take no time in the bubble
		}}
		if diff := cmp.Diff(want, logLines(t, log.String(), "")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// Only who debugs is told of an episode that succeeds.
func TestASuccessIsOnlyForWhoDebugs(t *testing.T) {
	for level, want := range map[zerolog.Level]int{zerolog.DebugLevel: 1, zerolog.InfoLevel: 0} {
		synctest.Test(t, func(t *testing.T) {
			b := &bubble{}
			var log strings.Builder
			d, stop := b.driver(t, func(c *episode.Config) { c.Logger = zerolog.New(&log).Level(level) })
			defer stop()
			mustSucceed(t, d.Run(t.Context(), newRequest()))
			if got := logLines(t, log.String(), ""); len(got) != want {
				t.Errorf("%s: %v, want %d lines", level, got, want)
			}
		})
	}
}
