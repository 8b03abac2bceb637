package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.com/turn/episode"
	"example.com/turn/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func small() Config {
	return Config{
		For:         4 * time.Second,
		Faults:      0.1,
		InFlight:    16,
		Seed:        uint64(time.Now().UnixNano()),
		Environment: "workplace",
		Dataset:     "../../testdata/workplace.jsonl",
	}
}

// Ten times the faults of a long soak, for a short time.
func TestNothingIsLeft(t *testing.T) {
	config := small()
	report, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if report.Leaks() > 0 || report.Unanswered > 0 || report.Results == 0 || len(report.Faults) == 0 {
		t.Errorf("with seed %d:\n%s", config.Seed, report)
	}
	if text := report.String(); !strings.Contains(text, "leaks      0: 0 resources sessions") || !strings.Contains(text, "memory     at start") {
		t.Errorf("the report does not say so:\n%s", text)
	}
}

// A soak that could not find a leak would show nothing.
func TestALeakIsFound(t *testing.T) {
	config := small()
	config.Faults = 0
	s, err := newSoak(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	s.episodes(t.Context(), 100*time.Millisecond)
	seed := `{"agent_session_id":"agent-session-1","episode_id":{"rollout_id":"a","attempt":0},"task_id":{"taskset":"t","task_id":"1"},"tool_accesses":[],"sandbox_access":null}`
	response, err := http.Post(s.servers[1].URL+protocol.PathAgentSessions, "application/json", strings.NewReader(seed))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	if s.report.Left.Agent != 1 || s.report.Leaks() != 1 {
		t.Errorf("found %+v, want an agent session", s.report.Left)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

func TestGoroutinesAndDescriptorsAreCounted(t *testing.T) {
	fewer := takeStock()
	fewer.Goroutines, fewer.Descriptors = fewer.Goroutines-2, fewer.Descriptors-3
	var left Left
	left.goroutinesAndDescriptors(fewer, 0)
	if left.Goroutines < 2 || left.Descriptors < 3 {
		t.Errorf("found %+v, want 2 goroutines and 3 descriptors", left)
	}
}

func TestAnEpisodeWithoutAnAnswerIsCounted(t *testing.T) {
	r := newReport()
	request := &episode.Request{EpisodeID: protocol.EpisodeID{RolloutID: "a"}}
	r.count(request, episode.Reply{EpisodeID: request.EpisodeID})
	r.count(request, episode.Reply{EpisodeID: protocol.EpisodeID{RolloutID: "b"}, Result: &episode.Result{}})
	if r.Unanswered != 2 || r.Episodes != 2 {
		t.Errorf("%d of %d episodes without an answer, want 2 of 2", r.Unanswered, r.Episodes)
	}
}

// A dataset that is none is an error, and no panic among the episodes.
func TestADatasetThatIsNone(t *testing.T) {
	config := small()
	config.Dataset = "soak.go"
	if _, err := Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), "soak.go: task 0") {
		t.Errorf("got %v, want an error that names the file and the task", err)
	}
}
