//go:build unix

package docs_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/episode/episodetest"
	"example.com/turn/failures"
	"example.com/turn/observe"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/servers/environments"
)

// What embedding.md prints in Go stands in the example or in this file, where it is
// compiled and run.
func TestTheGoThatIsPrintedIsCode(t *testing.T) {
	var code strings.Builder
	for _, name := range []string{"../examples/embed/main.go", "embedding_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.WriteString(flushLeft(string(text)))
	}
	page, err := os.ReadFile("embedding.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	if len(blocks) == 0 {
		t.Fatal("it prints no Go")
	}
	for _, block := range blocks {
		if !strings.Contains(code.String(), flushLeft(block[1])) {
			t.Errorf("this is nowhere in the code:\n%s", block[1])
		}
	}
}

// flushLeft is code without its indentation, which the page has less of.
func flushLeft(code string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")
}

// worthAnother reports whether a rollout that ended with err should be queued again,
// and whether its servers should be looked at first.
func worthAnother(err error) (again, look bool) {
	var failure *failures.Failure
	if !errors.As(err, &failure) {
		return false, false // not an episode's
	}
	return !failure.Terminal, errors.Is(err, failures.TransportUnreachable)
}

func TestWorthAnother(t *testing.T) {
	away := failures.New(failures.StageSeed, failures.TransportUnreachable, "nobody is there")
	refused := failures.New(failures.StageSeed, "", "no such task")
	refused.Terminal = true
	for _, test := range []struct {
		name        string
		err         error
		again, look bool
	}{
		{"a server that is away", fmt.Errorf("task 7: %w", away), true, true},
		{"a refusal for good", fmt.Errorf("task 7: %w", refused), false, false},
		{"another error", errors.New("no dataset"), false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if again, look := worthAnother(test.err); again != test.again || look != test.look {
				t.Errorf("again %v, look %v", again, look)
			}
		})
	}
}

// A tally counts calls that brought nothing, and sessions that may still be open.
type tally struct {
	episode.Unobserved
	broken, left atomic.Int64
}

func (t *tally) Call(ctx context.Context, _ observe.Call) (context.Context, func(observe.Called)) {
	return ctx, func(ended observe.Called) {
		if ended.Failed() {
			t.broken.Add(1)
		}
	}
}

func (t *tally) CloseFailed(episode.Server) { t.left.Add(1) }

// drive runs requests with a journal.
func drive(ctx context.Context, config episode.Config, requests iter.Seq[*episode.Request], use func(episode.Outcome)) error {
	config.Journal = "journal"
	driver, err := episode.NewDriver(config)
	if err != nil {
		return err // a *episode.JournalError where all but the journal is in order
	}
	defer driver.Close()
	looked, stop := driver.KeepClosingLeft(ctx)
	defer stop() // before Close: it looks a last time
	<-looked     // what was left is closed, or has had its time

	for outcome := range episode.All(ctx, driver, requests, episode.Options{Concurrency: 64}) {
		use(outcome)
	}
	return nil
}

func TestDrivingWithAJournalAndATally(t *testing.T) {
	t.Chdir(t.TempDir()) // for the journal
	weather, err := environments.Open("weather", environments.Config{})
	if err != nil {
		t.Fatal(err)
	}
	resources, agent := httptest.NewServer(weather.Resources), httptest.NewServer(weather.Agent)
	t.Cleanup(resources.Close)
	t.Cleanup(agent.Close)
	requests := []*episode.Request{weatherRequest("0-0", `{"city":"Oslo"}`), weatherRequest("1-0", `{}`)}
	counted := &tally{}
	got := map[string]bool{}
	err = drive(t.Context(), episode.Config{
		Resources:      resourcesclient.Config{URL: resources.URL},
		Agent:          agentclient.Config{URL: agent.URL},
		ToolTransports: weather.ToolTransports,
		Observer:       counted,
	}, slices.Values(requests), func(o episode.Outcome) {
		got[o.Request.EpisodeID.RolloutID] = o.Result != nil
		if o.Result != nil {
			return
		}
		if _, err := os.Stat("journal"); err != nil {
			t.Errorf("there is no journal: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !got["0-0"] || got["1-0"] {
		t.Errorf("results: %v, want one of 0-0 alone", got)
	}
	if counted.broken.Load() != 1 || counted.left.Load() != 0 {
		t.Errorf("%d calls brought nothing and %d sessions are left, want the refused seed alone", counted.broken.Load(), counted.left.Load())
	}
}

func weatherRequest(rollout, data string) *episode.Request {
	return &episode.Request{
		EpisodeID: protocol.EpisodeID{RolloutID: rollout},
		TaskID:    protocol.TaskID{Taskset: "cities", TaskID: rollout},
		Params:    []byte(`{"input":"How warm is it in Oslo?","tools":[{"type":"function","name":"get_weather"}]}`),
		TaskData:  []byte(data),
	}
}

// A verdict whose reply is lost on the way is asked for again, and is the result.
func TestALostVerdictIsNoLostSample(t *testing.T) {
	weather, err := environments.Open("weather", environments.Config{})
	if err != nil {
		t.Fatal(err)
	}
	behind, agent := httptest.NewServer(weather.Resources), httptest.NewServer(weather.Agent)
	t.Cleanup(behind.Close)
	t.Cleanup(agent.Close)
	resources := episodetest.Start(t, behind.URL, episodetest.Script{
		episodetest.Verify: {{Kind: episodetest.DropBeforeReply}},
	})

	driver, err := episode.NewDriver(episode.Config{
		Resources:      resourcesclient.Config{URL: resources.URL()},
		Agent:          agentclient.Config{URL: agent.URL},
		ToolTransports: weather.ToolTransports,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	reply := driver.Run(t.Context(), &episode.Request{
		EpisodeID: protocol.EpisodeID{RolloutID: "0-0"},
		TaskID:    protocol.TaskID{Taskset: "cities", TaskID: "Oslo"},
		Params:    []byte(`{"input":"How warm is it in Oslo?","tools":[{"type":"function","name":"get_weather"}]}`),
		TaskData:  []byte(`{"city":"Oslo"}`),
	})
	if reply.Failure != nil {
		t.Fatal(reply.Failure)
	}
	verifies := 0
	for _, call := range resources.Calls() {
		if call.Route == episodetest.Verify {
			verifies++
		}
	}
	if verifies != 2 {
		t.Errorf("verify was called %d times, want 2", verifies)
	}
}
