//go:build unix

package main

import (
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"example.com/turn/internal/scripted"
)

// A server that is told to stop under load answers every request that it has taken with
// its result, and takes none once readiness is off; no session stays open.
func TestServeDrainsUnderLoad(t *testing.T) {
	const callers, before = 50, 200 // requests that are answered before it is told to stop
	servers := scripted.New(t)
	p, url := serve(t, servers)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	defer client.CloseIdleConnections()

	var (
		stopping, off atomic.Bool // it is told to stop; readiness has been seen to be off
		results       atomic.Int64
		enough        = make(chan struct{})
		calling       sync.WaitGroup
	)
	for range callers {
		calling.Go(func() {
			for {
				late := off.Load()
				got := post(client, url)
				switch {
				case got.err != nil && stopping.Load(): // nobody is there any more, and no call has been made
					return
				case got.err != nil:
					t.Errorf("a request was not answered: %v", got.err)
					return
				case got.result && late:
					t.Error("an episode began when readiness was off")
					return
				case got.result:
					if results.Add(1) == before {
						close(enough)
					}
				case got.failure.Kind == "shutdown" && got.failure.Stage == "admission":
					return
				default:
					t.Errorf("an episode was lost: %+v", got)
					return
				}
			}
		})
	}
	<-enough
	stopping.Store(true)
	p.signal(t, syscall.SIGTERM)
	for !off.Load() {
		response, err := client.Get(url + "/readyz")
		if err != nil { // it has ended already
			off.Store(true)
			break
		}
		_ = response.Body.Close()
		off.Store(response.StatusCode == http.StatusServiceUnavailable)
	}
	calling.Wait()
	if status := p.awaitExit(t); status.ExitStatus() != 0 {
		t.Errorf("exit status %d, want 0", status.ExitStatus())
	}
	routes := countRoutes(servers) // a result that did not arrive would be one call too many
	for _, route := range []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.Verify, scripted.CloseSession} {
		if int64(routes[route]) != results.Load() {
			t.Errorf("%d calls on %s, and %d results", routes[route], route, results.Load())
		}
	}
}
