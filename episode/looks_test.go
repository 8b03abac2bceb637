package episode_test

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
)

// What cannot be closed is tried again, less and less often, and each minute when it
// could.
func TestWhatCannotBeClosedIsTriedLessAndLessOften(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		leave(t, dir, time.Now(), leftOn(episode.ResourcesServer, "http://resources", 1)...)
		began := time.Now()
		var mu sync.Mutex
		var tries []time.Duration
		refusing := &bubble{over: map[string]http.HandlerFunc{rclose: func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Since(began))
			w.WriteHeader(http.StatusForbidden)
		}}}
		d, end := refusing.driver(t, func(c *episode.Config) { c.Journal = dir })
		looked, stop := d.KeepClosingLeft(t.Context())
		<-looked
		time.Sleep(4*time.Hour + time.Second)
		refusing.takeOver(nil)
		time.Sleep(time.Hour) // one look: it is closed
		leave(t, dir, time.Now(), leftOn(episode.ResourcesServer, "http://resources", 1)...)
		before := len(refusing.paths())
		time.Sleep(time.Minute)
		synctest.Wait()
		if after := len(refusing.paths()); after != before+1 {
			t.Errorf("what another driver left was closed by %d calls within a minute, want one", after-before)
		}
		stop()
		end()
		const minute = time.Minute
		want := []time.Duration{0, minute, 3 * minute, 7 * minute, 15 * minute, 31 * minute, 63 * minute, 123 * minute, 183 * minute}
		if diff := cmp.Diff(want, tries); diff != "" {
			t.Errorf("tries (-want +got):\n%s", diff)
		}
	})
}
