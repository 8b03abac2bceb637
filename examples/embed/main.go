// Command embed shows a program that drives episodes itself: it has a few tasks of
// its own, runs them with package episode, and uses what comes out. The servers are
// an embedded environment's, so that it runs as it is; yours are elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/signal"
	"slices"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
	"example.com/turn/servers/environments"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer) error {
	weather, err := environments.Open("weather", environments.Config{})
	if err != nil {
		return err
	}
	resources, agent := httptest.NewServer(weather.Resources), httptest.NewServer(weather.Agent)
	defer resources.Close()
	defer agent.Close()

	driver, err := episode.NewDriver(episode.Config{
		Resources:      resourcesclient.Config{URL: resources.URL, Name: weather.ResourcesName},
		Agent:          agentclient.Config{URL: agent.URL, Name: weather.AgentName},
		ToolTransports: weather.ToolTransports,
	})
	if err != nil {
		return err
	}
	defer driver.Close()

	outcomes := map[string]string{}
	options := episode.Options{Concurrency: 2, Policy: retry.Policy{MaxAttempts: 2}}
	for outcome := range episode.All(ctx, driver, requests("Oslo", "Lima", "?"), options) {
		outcomes[outcome.Request.EpisodeID.RolloutID] = describe(outcome.Reply)
	}
	for _, rollout := range slices.Sorted(maps.Keys(outcomes)) {
		_, _ = fmt.Fprintln(w, rollout, outcomes[rollout])
	}
	return nil
}

// requests asks for one rollout for each city. The last task of the example lacks
// what the environment needs, and is refused.
func requests(cities ...string) func(func(*episode.Request) bool) {
	return func(yield func(*episode.Request) bool) {
		for i, city := range cities {
			data := fmt.Sprintf(`{"city":%q}`, city)
			if city == "?" {
				data = `{}`
			}
			request := &episode.Request{
				EpisodeID: protocol.EpisodeID{RolloutID: episode.RolloutID(int64(i), 0)},
				TaskID:    protocol.TaskID{Taskset: "cities", TaskID: city},
				Params:    []byte(fmt.Sprintf(`{"input":[{"role":"user","content":"How warm is it in %s?"}],"tools":[%s]}`, city, tool)),
				TaskData:  []byte(data),
			}
			if !yield(request) {
				return
			}
		}
	}
}

const tool = `{"type":"function","name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}`

func describe(reply episode.Reply) string {
	if reply.Result != nil {
		return fmt.Sprintf("reward %v", reply.Result.Reward)
	}
	switch f := reply.Failure; {
	case errors.Is(f, failures.TransportUnreachable):
		return "no server: " + f.Reason
	case f.Terminal:
		return "refused for good: " + f.Reason
	default:
		return "failed: " + f.Reason
	}
}
