//go:build unix

package examples_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"example.com/turn/servers/environments"
)

// servers are those of the weather environment, with an agent that can be held up.
type servers struct {
	environment      *environments.Environment
	resources, agent string // base URLs
	leaks            bool   // sessions may stay open: their driver was killed

	mu      sync.Mutex
	answers int // that the agent has given
	hold    *hold
}

// A hold has the agent answer no more after so many answers.
type hold struct {
	after   int
	reached chan struct{} // closed when a call waits
	once    sync.Once
}

func serve(t *testing.T) *servers {
	t.Helper()
	environment, err := environments.Open("weather", environments.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := &servers{environment: environment}
	resources, agent := httptest.NewServer(environment.Resources), httptest.NewServer(s)
	s.resources, s.agent = resources.URL, agent.URL
	t.Cleanup(func() {
		agent.Close()
		resources.Close()
		if open := environment.Agent.Open() + environment.Resources.Open(); open > 0 && !s.leaks {
			t.Errorf("%d sessions were left open", open)
		}
		if err := environment.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// holdAfter lets the agent give so many answers more. Each further call closes
// reached and waits until its caller goes away. That ends with release, which is for
// when all who waited have ended.
func (s *servers) holdAfter(answers int) (reached <-chan struct{}, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = &hold{after: s.answers + answers, reached: make(chan struct{})}
	return s.hold.reached, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hold = nil
	}
}

// ServeHTTP is the agent server.
func (s *servers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/v1/responses") {
		body, err := io.ReadAll(r.Body) // or net/http would not see the caller go away
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if held := s.count(); held != nil {
			held.once.Do(func() { close(held.reached) })
			<-r.Context().Done()
			return
		}
	}
	s.environment.Agent.ServeHTTP(w, r)
}

// count counts an answer that the agent is to give, or returns what holds it.
func (s *servers) count() *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil && s.answers >= s.hold.after {
		return s.hold
	}
	s.answers++
	return nil
}

// answered is how many answers the agent has given.
func (s *servers) answered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answers
}
