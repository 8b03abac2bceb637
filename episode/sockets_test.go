package episode_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/resourcesclient"
)

// Thousands of short episodes need no more sockets than there are episodes in flight:
// those that are opened anew wait in the kernel for a minute once they are closed, until
// no port is left.
func TestNoMoreSocketsThanEpisodesInFlight(t *testing.T) {
	inFlight, episodes := 100, 2000
	if os.Getenv(testFull) != "" {
		inFlight, episodes = 500, 20_000
	}
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(&bubble{})
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	d := newDriver(t, episode.Config{
		Resources: resourcesclient.Config{URL: server.URL, Resend: quick},
		Agent:     agentclient.Config{URL: server.URL, Resend: quick},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var next atomic.Int64
	var all sync.WaitGroup
	for range inFlight {
		all.Go(func() {
			for next.Add(1) <= int64(episodes) {
				if f := d.Run(ctx, newRequest()).Failure; f != nil {
					t.Error(f)
				}
			}
		})
	}
	all.Wait()
	if got := opened.Load(); got > int64(inFlight) {
		t.Errorf("%d sockets were opened for %d episodes in flight", got, inFlight)
	}
}
