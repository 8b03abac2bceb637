package resourcesserver_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/turn/servers/resourcesserver"
)

// All calls at once on few ids, from many callers, while sessions expire and are
// saved: for the race detector, and for a session that is built and never released,
// or released twice, or a status that no rule of the contract has.
func TestEveryCallAtOnceOnFewIDs(t *testing.T) {
	b := newSaving(t, resourcesserver.Config{
		CloseRetryWindow: time.Millisecond, // ids come back at once
		Lifetime:         20 * time.Millisecond,
		IdleTimeout:      5 * time.Millisecond,
		SweepInterval:    time.Millisecond,
	})
	var mu sync.Mutex
	cookies := []string{""}
	pick := func() string {
		mu.Lock()
		defer mu.Unlock()
		return cookies[rand.N(len(cookies))]
	}
	calls := []func(id string) reply{
		func(id string) reply {
			got := b.post("/seed_session", "", seedBody(id, episode0, task0, annsData))
			mu.Lock()
			defer mu.Unlock()
			if got.Cookie != "" {
				cookies = append(cookies[max(0, len(cookies)-20):], got.Cookie)
			}
			return got
		},
		func(id string) reply { return b.post("/seed_session", "", seedBody(id, episode1, task0, annsData)) },
		func(string) reply { return b.post("/seed_session", pick(), row) },
		func(string) reply { return b.post("/add", pick(), `{"line":"x"}`) },
		func(string) reply { return b.post("/echo", pick(), `{}`) },
		func(string) reply { return b.post("/verify", pick(), verifyBody) },
		func(id string) reply { return b.post("/close_session", pick(), closeBody(id, episode0)) },
		func(id string) reply { return b.post("/close_session", "", closeBody(id, episode1)) },
		func(string) reply {
			if err := b.server.Snapshot(b.Context(), &bytes.Buffer{}); err != nil {
				b.Error(err)
			}
			return reply{Status: 200}
		},
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 300 {
				got := calls[rand.N(len(calls))](fmt.Sprint(rand.N(3)))
				if !strings.Contains("200 404 409", fmt.Sprint(got.Status)) {
					t.Errorf("a call got %+v", got)
				}
			}
		})
	}
	callers.Wait()
	if err := b.server.Close(t.Context()); err != nil {
		t.Error(err)
	}
	b.wantOpen(0)
	if built, released := len(b.book.built), len(b.book.released); built != released || built == 0 {
		t.Errorf("%d sessions were built and %d released", built, released)
	}
}
