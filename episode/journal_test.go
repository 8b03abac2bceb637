package episode_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/journal"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
)

// noted are the ids that another driver would find in a journal if its drivers died at
// this moment: in a copy of it, which nobody owns.
func noted(t *testing.T, dir string) (ids []string) {
	t.Helper()
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Error(err)
	}
	j, err := journal.Open(journal.Config{Dir: copied})
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = j.Close() }()
	if err := j.Adopt(); err != nil {
		t.Error(err)
	}
	for _, s := range j.Left() {
		ids = append(ids, s.ID)
	}
	return ids
}

// leave notes sessions as a driver does that dies at that time.
func leave(t *testing.T, dir string, then time.Time, sessions ...journal.Session) {
	t.Helper()
	j, err := journal.Open(journal.Config{Dir: dir, Clock: func() time.Time { return then }})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sessions {
		if err := j.Begin(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// leftOn are n sessions on a server.
func leftOn(server episode.Server, url string, n int) (sessions []journal.Session) {
	for i := range n {
		sessions = append(sessions, journal.Session{
			Server: string(server), URL: url,
			ID:        fmt.Sprintf("%s-session-%032d", server, i),
			EpisodeID: protocol.EpisodeID{RolloutID: fmt.Sprintf("%d-0", i), Attempt: 1},
		})
	}
	return sessions
}

// A driver that dies at any moment must not leave a session that nobody knows of.
func TestASessionIsNotedBeforeItsSeedIsSent(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = filepath.Join(t.TempDir(), "journal")
	seen := map[scripted.Route][]string{}
	look := func(route scripted.Route) []scripted.Action {
		return []scripted.Action{{Default: true, Do: func(scripted.Call) { seen[route] = noted(t, config.Journal) }}}
	}
	servers.Play(scripted.Script{
		scripted.Seed:      look(scripted.Seed),
		scripted.AgentSeed: look(scripted.AgentSeed),
	})
	d := newDriver(t, config)
	mustSucceed(t, d.Run(t.Context(), newRequest()))

	calls := servers.Calls()
	rs, as := field(t, calls[0].Body, "resources_session_id"), field(t, calls[1].Body, "agent_session_id")
	want := map[scripted.Route][]string{scripted.Seed: {rs}, scripted.AgentSeed: {rs, as}}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("noted when a seed arrives (-want +got):\n%s", diff)
	}
	d.Close()
	if _, err := os.Stat(config.Journal); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("both are closed, and the journal is still there: %v", err)
	}
}

// What a dead driver has left is closed by its id: there is no cookie, and the agent's
// session is closed before that of its task.
func TestADeadDriversSessionsAreClosed(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = filepath.Join(t.TempDir(), "journal")
	config.Resources.Observability = true
	var log strings.Builder
	config.Logger = zerolog.New(&log)
	leave(t, config.Journal, time.Now(), slices.Concat(
		leftOn(episode.ResourcesServer, servers.ResourcesURL, 3),
		leftOn(episode.AgentServer, servers.AgentURL, 2))...)
	d := newDriver(t, config)
	if open := d.CloseLeft(t.Context()); open != 0 {
		t.Errorf("%d are still open", open)
	}
	want := map[string]bool{
		`resources /ng-rollout/0-0-a1/close_session {"resources_session_id":"resources-session-00000000000000000000000000000000","episode_id":{"rollout_id":"0-0","attempt":1}}`: true,
		`resources /ng-rollout/1-0-a1/close_session {"resources_session_id":"resources-session-00000000000000000000000000000001","episode_id":{"rollout_id":"1-0","attempt":1}}`: true,
		`resources /ng-rollout/2-0-a1/close_session {"resources_session_id":"resources-session-00000000000000000000000000000002","episode_id":{"rollout_id":"2-0","attempt":1}}`: true,
		`agent /v1/agent_sessions/close {"agent_session_id":"agent-session-00000000000000000000000000000000","episode_id":{"rollout_id":"0-0","attempt":1}}`:                     true,
		`agent /v1/agent_sessions/close {"agent_session_id":"agent-session-00000000000000000000000000000001","episode_id":{"rollout_id":"1-0","attempt":1}}`:                     true,
	}
	got := map[string]bool{}
	for i, call := range servers.Calls() {
		got[fmt.Sprintf("%s %s %s", call.Server, call.Path, call.Body)] = true
		if cookie := call.Header.Get("Cookie"); cookie != "" {
			t.Errorf("%s carries the cookie %q", call.Path, cookie)
		}
		if wanted := i < 2; wanted != (call.Server == scripted.AgentServer) {
			t.Errorf("call %d is to the %s server", i, call.Server)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(servers.Calls()) != len(want) {
		t.Errorf("%d calls (-want +got):\n%s", len(servers.Calls()), diff)
	}
	if text := log.String(); !strings.Contains(text, `"sessions":3`) || !strings.Contains(text, `"sessions":2`) {
		t.Errorf("the log does not tell of it:\n%s", text)
	}
	if again := d.CloseLeft(t.Context()); again != 0 || len(servers.Calls()) != len(want) {
		t.Errorf("the second time: %d open, %d calls", again, len(servers.Calls()))
	}
}

// Sessions on a server that cannot be reached wait for the next driver, and keep nobody
// from closing the others.
func TestWhatCannotBeReachedStaysInTheJournal(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	var log strings.Builder
	config.Logger = zerolog.New(&log)
	config.Journal = t.TempDir()
	const away = "http://127.0.0.1:1" // nobody listens there
	leave(t, config.Journal, time.Now(), slices.Concat(
		leftOn(episode.AgentServer, away, 500),
		leftOn(episode.ResourcesServer, servers.ResourcesURL, 3))...)
	first := newDriver(t, config)
	if open := first.CloseLeft(t.Context()); open != 500 {
		t.Errorf("%d are still open, want 500", open)
	}
	if got := len(callsOn(servers, scripted.CloseSession)); got != 3 {
		t.Errorf("%d sessions were closed, want 3", got)
	}
	if text := log.String(); strings.Count(text, `"level":"warn"`) > 2 || !strings.Contains(text, `"sessions":500`) ||
		!strings.Contains(text, away) || !strings.Contains(text, "connection refused") || !strings.Contains(text, config.Journal) {
		t.Errorf("the log does not tell of it in a few lines:\n%s", text)
	}
	first.Close()

	config.Agent.URL = away
	second := newDriver(t, config)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if open := second.CloseLeft(ctx); open != 500 {
		t.Errorf("the next driver finds %d, want 500", open)
	}
}

// A server that refuses to close one session is asked for the others; what it has
// refused may go another time.
func TestARefusedCloseIsTriedAgain(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = t.TempDir()
	leave(t, config.Journal, time.Now(), leftOn(episode.ResourcesServer, servers.ResourcesURL, 200)...)
	leave(t, config.Journal, time.Now(), leftOn(episode.AgentServer, servers.AgentURL, 200)...)
	d := newDriver(t, config)
	servers.Play(scripted.Script{
		scripted.CloseSession: {{Status: http.StatusUnauthorized}, {Default: true}},
		scripted.AgentClose:   {{Raw: text("not a receipt")}, {Default: true}},
	})
	if open := d.CloseLeft(t.Context()); open != 2 {
		t.Errorf("%d are still open, want 2", open)
	}
	servers.Play(nil)
	if open := d.CloseLeft(t.Context()); open != 0 || len(servers.Calls()) != 2 {
		t.Errorf("the second time %d are still open after %d calls, want 0 and 2", open, len(servers.Calls()))
	}
}

// A live driver's own sessions are its episodes' to close, until that has failed.
func TestCloseLeftLeavesEpisodesUnderWayAlone(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = t.TempDir()
	d := newDriver(t, config)
	gate := make(chan struct{})
	servers.Play(scripted.Script{
		scripted.Responses:    {{Default: true, Gate: gate}},
		scripted.CloseSession: {{Status: http.StatusNotFound}},
		scripted.AgentClose:   {{Status: http.StatusNotFound}},
	})
	ended := make(chan episode.Reply)
	go func() { ended <- d.Run(t.Context(), newRequest()) }()
	if _, err := servers.Wait(soon(t), scripted.Responses, 1); err != nil {
		t.Fatal(err)
	}
	other := newDriver(t, config) // of this process or another, with the same journal
	if mine, others := d.CloseLeft(t.Context()), other.CloseLeft(t.Context()); mine+others != 0 || len(servers.Calls()) != 3 {
		t.Errorf("%d and %d are left, and there were %d calls", mine, others, len(servers.Calls()))
	}
	close(gate)
	mustFail(t, <-ended)

	before := servers.Calls()
	servers.Play(nil)
	if open := other.CloseLeft(t.Context()); open != 0 || len(servers.Calls()) != 0 {
		t.Errorf("another driver: %d are left after %d calls", open, len(servers.Calls()))
	}
	if open := d.CloseLeft(t.Context()); open != 0 {
		t.Errorf("%d are still open", open)
	}
	for i, call := range servers.Calls() {
		id := []string{"agent_session_id", "resources_session_id"}[i]
		if seed := before[1-i]; field(t, call.Body, id) != field(t, seed.Body, id) {
			t.Errorf("closed %s, want what %s has seeded", call.Body, seed.Body)
		}
	}
	if len(servers.Calls()) != 2 {
		t.Errorf("there were %d calls, want two closes", len(servers.Calls()))
	}
}

// What could not be closed for a week is not tried for ever.
func TestASessionIsGivenUpAfterAWeek(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.CloseSession: {{Status: http.StatusNotFound}}})
	config := configFor(servers)
	var log strings.Builder
	config.Logger = zerolog.New(&log)
	config.Journal = t.TempDir()
	sessions := leftOn(episode.ResourcesServer, servers.ResourcesURL, 2)
	leave(t, config.Journal, time.Now().Add(-6*24*time.Hour), sessions[0])
	leave(t, config.Journal, time.Now().Add(-8*24*time.Hour), sessions[1])
	d := newDriver(t, config)
	if open := d.CloseLeft(t.Context()); open != 1 {
		t.Errorf("%d are still open, want 1", open)
	}
	for _, line := range strings.Split(log.String(), "\n") {
		if strings.Contains(line, `"level":"error"`) && !strings.Contains(line, sessions[1].ID) {
			t.Errorf("given up: %s, want %s", line, sessions[1].ID)
		}
	}
	if got := strings.Count(log.String(), `"level":"error"`); got != 1 {
		t.Errorf("%d lines tell that one was given up:\n%s", got, log.String())
	}
}

// A session that cannot be noted is not seeded: nobody could close it if this driver
// died.
func TestNothingIsSeededThatCannotBeNoted(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = filepath.Join(t.TempDir(), "journal")
	d := newDriver(t, config)
	if err := os.RemoveAll(config.Journal); err != nil {
		t.Fatal(err)
	}
	f := mustFail(t, d.Run(t.Context(), newRequest()))
	if f.Stage != failures.StageSeed || f.Kind != failures.PersistenceFailed || f.Terminal || !f.Unsent {
		t.Errorf("stage %s, kind %s, terminal %t, unsent %t; want a failure of the seed that may pass", f.Stage, f.Kind, f.Terminal, f.Unsent)
	}
	if !strings.Contains(f.Reason, config.Journal) || !strings.Contains(f.Reason, "taken away") {
		t.Errorf("the reason does not say what is wrong: %s", f.Reason)
	}
	if calls := callsOn(servers, scripted.Seed); len(calls) != 0 {
		t.Errorf("the session was seeded: %s", calls[0].Body)
	}
}

// An agent session that cannot be noted ends the episode as a failed seed does: what was
// seeded before is closed.
func TestAnAgentSessionThatCannotBeNoted(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = filepath.Join(t.TempDir(), "journal")
	servers.Play(scripted.Script{scripted.Seed: {{Default: true, Do: func(scripted.Call) { _ = os.RemoveAll(config.Journal) }}}})
	d := newDriver(t, config)
	f := mustFail(t, d.Run(t.Context(), newRequest()))
	if f.Stage != failures.StageAgent || f.Kind != failures.PersistenceFailed || f.Terminal {
		t.Errorf("stage %s, kind %s, terminal %t", f.Stage, f.Kind, f.Terminal)
	}
	want := []scripted.Route{scripted.Seed, scripted.AgentClose, scripted.CloseSession}
	if diff := cmp.Diff(want, servers.Routes()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// A driver's own sessions, too, are tried for a week: not given up at the first look.
func TestADriversOwnSessionsAreNotGivenUpAtOnce(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = t.TempDir()
	d := newDriver(t, config)
	conflict := scripted.Action{Status: http.StatusNotFound}
	servers.Play(scripted.Script{scripted.CloseSession: {conflict, conflict, conflict}})
	mustSucceed(t, d.Run(t.Context(), newRequest()))
	for look := range 2 {
		if open := d.CloseLeft(t.Context()); open != 1 {
			t.Errorf("look %d: %d are still open, want 1", look, open)
		}
	}
	d.Close()
	if ids := noted(t, config.Journal); len(ids) != 1 {
		t.Errorf("the next driver finds %v, want the session that could not be closed", ids)
	}
}

// A bug in a close costs no more than that: the session stays in the journal, and those
// on the other server are closed.
func TestABugInACloseOfWhatWasLeft(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	var log strings.Builder
	config.Logger = zerolog.New(&log)
	config.Journal = t.TempDir()
	config.Agent.Transport = buggy{}
	leave(t, config.Journal, time.Now(), slices.Concat(
		leftOn(episode.AgentServer, servers.AgentURL, 1),
		leftOn(episode.ResourcesServer, servers.ResourcesURL, 3))...)
	d := newDriver(t, config)
	if open := d.CloseLeft(t.Context()); open != 1 {
		t.Errorf("%d are still open, want 1", open)
	}
	if got := len(callsOn(servers, scripted.CloseSession)); got != 3 {
		t.Errorf("%d sessions were closed, want 3", got)
	}
	if !strings.Contains(log.String(), "panic: a bug") {
		t.Errorf("the log does not tell of it:\n%s", log.String())
	}
}

type buggy struct{}

func (buggy) RoundTrip(*http.Request) (*http.Response, error) { panic("a bug") }

// A seed that reached nobody has opened nothing: while a server is away, the journal does
// not grow with each attempt.
func TestASessionWhoseSeedWasNotSentIsNotLeft(t *testing.T) {
	for _, server := range []episode.Server{episode.ResourcesServer, episode.AgentServer} {
		servers := scripted.New(t)
		config := configFor(servers)
		config.Journal = t.TempDir()
		if server == episode.AgentServer {
			config.Agent.URL = "http://127.0.0.1:1" // nobody listens there
		} else {
			config.Resources.URL = "http://127.0.0.1:1"
		}
		d := newDriver(t, config)
		if f := mustFail(t, d.Run(t.Context(), newRequest())); !f.Unsent {
			t.Errorf("%s: the failure is %v", server, f)
		}
		if open := d.CloseLeft(t.Context()); open != 0 {
			t.Errorf("%s: %d sessions are left", server, open)
		}
		d.Close()
		if _, err := os.Stat(config.Journal); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the journal is still there: %v", server, err)
		}
	}
}

// A server that hangs keeps a driver no longer than the limit of one close, and sees no
// more than so many of them at once; one that the driver does not drive keeps it for 10 s.
func TestAServerThatHangsOnTheClosesOfWhatWasLeft(t *testing.T) {
	for _, server := range []episode.Server{episode.ResourcesServer, episode.AgentServer} {
		for url, want := range map[string]time.Duration{"http://own.test": 3 * time.Minute, "http://elsewhere.test": 10 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				hanging := &hanging{}
				config := episode.Config{Journal: t.TempDir(), Transport: hanging}
				config.Resources.URL, config.Agent.URL = "http://own.test", "http://own.test"
				leave(t, config.Journal, time.Now(), leftOn(server, url, 500)...)
				d := newDriver(t, config)
				began := time.Now()
				if open := d.CloseLeft(t.Context()); open != 500 {
					t.Errorf("%s %s: %d are still open, want 500", server, url, open)
				}
				if took := time.Since(began); took != want {
					t.Errorf("%s %s: it took %s, want %s", server, url, took, want)
				}
				if calls := hanging.calls.Load(); calls != 64 {
					t.Errorf("%s %s: it was called %d times, want 64", server, url, calls)
				}
			})
		}
	}
}

type hanging struct{ calls atomic.Int32 }

func (h *hanging) RoundTrip(request *http.Request) (*http.Response, error) {
	h.calls.Add(1)
	<-request.Context().Done()
	return nil, request.Context().Err()
}

// A dead driver's file that is damaged is told of.
func TestADamagedJournalIsToldOf(t *testing.T) {
	config := configFor(scripted.New(t))
	var log strings.Builder
	config.Logger = zerolog.New(&log)
	config.Journal = t.TempDir()
	if err := os.WriteFile(filepath.Join(config.Journal, "dead.journal"), []byte("not a journal"), 0o600); err != nil {
		t.Fatal(err)
	}
	newDriver(t, config).CloseLeft(t.Context())
	if text := log.String(); !strings.Contains(text, `"level":"warn"`) || !strings.Contains(text, "dead.journal.damaged") {
		t.Errorf("the log does not tell of it:\n%s", text)
	}
}

// An episode that ends while it waits for the disk ends as it would in its seed.
func TestAnEpisodeEndsWhileItIsNoted(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = t.TempDir()
	config.SeedTimeout = time.Nanosecond
	d := newDriver(t, config)
	f := mustFail(t, d.Run(t.Context(), newRequest()))
	if f.Stage != failures.StageSeed || f.Kind == failures.PersistenceFailed || !strings.Contains(f.Reason, "seed timeout") {
		t.Errorf("stage %s, kind %s: %s; want the seed timeout", f.Stage, f.Kind, f.Reason)
	}
	if calls := callsOn(servers, scripted.Seed); len(calls) != 0 {
		t.Errorf("the session was seeded: %s", calls[0].Body)
	}
}

// That what was left is lost at the end is told of too.
func TestAJournalThatIsGoneAtTheEnd(t *testing.T) {
	config := configFor(scripted.New(t))
	var log strings.Builder
	config.Logger = zerolog.New(&log)
	config.Journal = filepath.Join(t.TempDir(), "journal")
	d := newDriver(t, config)
	if err := os.RemoveAll(config.Journal); err != nil {
		t.Fatal(err)
	}
	d.Close()
	if text := log.String(); !strings.Contains(text, `"level":"warn"`) || !strings.Contains(text, "taken away") {
		t.Errorf("the log does not tell of it:\n%s", text)
	}
}

func TestAJournalThatCannotBeKept(t *testing.T) {
	config := configFor(scripted.New(t))
	config.Journal = filepath.Join(os.Args[0], "journal") // in a file
	_, err := episode.NewDriver(config)
	var journalError *episode.JournalError
	if !errors.As(err, &journalError) || !strings.Contains(err.Error(), config.Journal) || errors.Is(err, episode.ErrNoLocks) {
		t.Errorf("got %v, want a JournalError that names the folder", err)
	}
}

func TestWithoutAJournalNothingIsLeft(t *testing.T) {
	d := newDriver(t, configFor(scripted.New(t)))
	if open := d.CloseLeft(t.Context()); open != 0 {
		t.Errorf("%d are open", open)
	}
}

// The first look is over when its time is, whatever a server does, and a close that hung
// is made later on.
func TestTheFirstLookHasOneCleanupTimeout(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Journal = t.TempDir()
	config.CleanupTimeout = 50 * time.Millisecond
	servers.Play(scripted.Script{scripted.AgentClose: {{Hang: true}}, scripted.CloseSession: {{Hang: true}}})
	leave(t, config.Journal, time.Now(), slices.Concat(
		leftOn(episode.ResourcesServer, servers.ResourcesURL, 1),
		leftOn(episode.AgentServer, servers.AgentURL, 1))...)
	d := newDriver(t, config)
	looked, stop := d.KeepClosingLeft(t.Context())
	select {
	case <-looked:
	case <-soon(t).Done():
		t.Fatal("the first look has no end")
	}
	if open := len(noted(t, config.Journal)); open != 2 {
		t.Errorf("%d are noted, want both", open)
	}
	servers.Play(nil)
	stop()
	if calls := servers.Calls(); len(calls) != 2 {
		t.Errorf("the last look made %d calls, want both closes", len(calls))
	}
}
