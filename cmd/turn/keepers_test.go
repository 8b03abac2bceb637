package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/turn/internal/scripted"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/resourcesserver"
)

// keepers are the two servers of the errands, of the kits that keep the session
// contract: they know what is held.
type keepers struct {
	errands
	resources *resourcesserver.Server
	agent     *agentserver.Server

	mu   sync.Mutex
	left sessionsLeft // nil when the process after has seeded
	held int          // when its first seed came
}

// sessionsLeft are the ids of sessions that a process has left open which died, and the
// calls that close them.
type sessionsLeft map[string]scripted.Route

// newKeepers puts fresh ones behind the servers.
func newKeepers(t *testing.T, e errands, servers *scripted.Servers) *keepers {
	t.Helper()
	k := &keepers{errands: e}
	var err, agentErr error
	k.resources, err = resourcesserver.New(resourcesserver.TaskEnvironment[struct{}]{Name: "errands", Verify: k.verify}, resourcesserver.Config{})
	say := func(agentserver.Conversation) agentserver.Move { return agentserver.Move{Say: "done"} }
	k.agent, agentErr = agentserver.New(agentserver.Config{Model: &agentserver.Scripted{Name: "errands", Play: say}})
	if err := errors.Join(err, agentErr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(k.resources.Close(context.Background()), k.agent.Close(context.Background())) })
	servers.Front(http.HandlerFunc(k.serveResources), http.HandlerFunc(k.serveAgent))
	return k
}

func (k *keepers) verify(_ context.Context, _ struct{}, answer resourcesserver.Answer) (resourcesserver.Verdict, error) {
	var task struct{ N int }
	err := json.Unmarshal(answer.Data, &task)
	return resourcesserver.Verdict{Reward: 1, Mask: k.masked(task.N)}, err
}

func (k *keepers) serveResources(w http.ResponseWriter, r *http.Request) {
	time.Sleep(rand.N(4 * time.Millisecond)) // so that episodes are in any state
	if strings.HasSuffix(r.URL.Path, "/seed_session") {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		k.seedComes(string(valueOf(body, "resources_session_id")))
	}
	k.resources.ServeHTTP(w, r)
}

func (k *keepers) serveAgent(w http.ResponseWriter, r *http.Request) {
	time.Sleep(rand.N(4 * time.Millisecond))
	_, refused := k.turn(r.URL.Path)
	if refused && strings.HasSuffix(r.URL.Path, "/v1/responses") {
		http.Error(w, `"out of memory"`, http.StatusInternalServerError)
		return
	}
	k.agent.ServeHTTP(w, r)
}

// seedComes looks at what is held before the first seed of a process is acted on. One
// of the process that has died may come late.
func (k *keepers) seedComes(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left != nil && k.left[id] == "" {
		k.held, k.left = k.open(), nil
	}
}

// open is how many sessions are held, on both servers.
func (k *keepers) open() int { return k.resources.Open() + k.agent.Open() }

// follow is called when a process has died that has left those sessions, before the
// next one starts.
func (k *keepers) follow(left sessionsLeft) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left, k.held = left, 0
}

// closedFirst checks that a process has closed what another has left before it seeded
// anything: that this is in the log of calls before, and that nothing was held then but
// what others hold.
func (k *keepers) closedFirst(t *testing.T, servers *scripted.Servers, left sessionsLeft, others int) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left == nil && k.held != others {
		t.Errorf("%d sessions were held when the next process seeded its first, want %d", k.held, others)
	}
	open := maps.Clone(left)
	for _, call := range servers.Calls() {
		id := sessionOf(call)
		if call.Route == scripted.Seed && id != "" && left[id] == "" {
			break
		}
		if call.Route == left[id] {
			delete(open, id)
		}
	}
	if k.left == nil && len(open) > 0 {
		t.Errorf("a session was seeded before these were closed that had been left open: %v", open)
	}
}

// wantNothingLeft checks that no session is held, nor noted.
func (k *keepers) wantNothingLeft(t *testing.T, dir string) {
	t.Helper()
	if resources, agent := k.resources.Open(), k.agent.Open(); resources+agent != 0 {
		t.Errorf("%d resources sessions and %d agent sessions are left open", resources, agent)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the journal is left (error %v)", err)
	}
}
