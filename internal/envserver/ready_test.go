package envserver_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/turn/internal/scripted"
)

// While sessions that a dead driver left are being closed no episode begins, and a load
// balancer sends none; whoever asks whether the process lives hears that it does.
func TestEpisodesWaitUntilTheServerIsReady(t *testing.T) {
	ready := make(chan struct{})
	h := newHouse(t, func(s *settings) { s.server.Ready = ready })
	status := func(path string) int {
		got, err := h.call(within(t), http.MethodGet, path, "", "")
		if err != nil {
			t.Fatal(err)
		}
		return got.Status
	}
	impatient, leave := context.WithCancel(t.Context())
	left := make(chan any, 1)
	go func() {
		defer func() { left <- recover() }()
		h.server.ServeHTTP(httptest.NewRecorder(), posted(impatient, plain))
	}()
	waiting := h.running(within(t), plain)
	if got := status("/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("readiness answers %d, want 503", got)
	}
	if got := status("/livez"); got != http.StatusOK {
		t.Errorf("liveness answers %d, want 200", got)
	}
	leave()
	if got := receive(t, left); got != http.ErrAbortHandler {
		t.Errorf("the caller that left was answered: %v", got)
	}
	if calls := h.Calls(); len(calls) != 0 {
		t.Errorf("an episode has begun: %s", calls[0].Path)
	}
	close(ready)
	if got := open(t, receive(t, waiting)); got.Result == nil {
		t.Errorf("once it is ready the episode has no result: %+v", got)
	}
	if got := status("/readyz"); got != http.StatusOK {
		t.Errorf("readiness answers %d, want 200", got)
	}
	seeds := 0
	for _, call := range h.Calls() {
		if call.Route == scripted.Seed {
			seeds++
		}
	}
	if seeds != 1 {
		t.Errorf("%d episodes have begun, want that of the caller who waited", seeds)
	}
}

// One that is told to stop before it was ready lets nothing begin.
func TestWhoWaitsForAServerThatStopsIsTold(t *testing.T) {
	h := newHouse(t, func(s *settings) { s.server.Ready = make(chan struct{}) })
	answer := httptest.NewRecorder()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		h.server.ServeHTTP(answer, posted(within(t), plain))
	}()
	h.stop()
	receive(t, answered)
	if got := open(t, reply{answer.Code, answer.Header(), answer.Body.String()}); got.Failure == nil || got.Failure.Kind != "shutdown" {
		t.Errorf("got %s, want a shutdown failure", answer.Body)
	}
	if len(h.Calls()) != 0 {
		t.Error("an episode has begun")
	}
}

// posted is a request to /run as its handler gets it.
func posted(ctx context.Context, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/run", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}
