package episode_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
	"example.com/turn/servers/environments"
)

// weather serves the embedded weather environment; a program's own servers are
// somewhere else.
func weather() (config episode.Config, stop func()) {
	environment, err := environments.Open("weather", environments.Config{})
	if err != nil {
		panic(err)
	}
	resources, agent := httptest.NewServer(environment.Resources), httptest.NewServer(environment.Agent)
	return episode.Config{
			Resources:      resourcesclient.Config{URL: resources.URL, Name: environment.ResourcesName},
			Agent:          agentclient.Config{URL: agent.URL, Name: environment.AgentName},
			ToolTransports: environment.ToolTransports,
		}, func() {
			resources.Close()
			agent.Close()
		}
}

// asking is a request of the weather task: how warm is it in that city?
func asking(rollout, city string) *episode.Request {
	return &episode.Request{
		EpisodeID: protocol.EpisodeID{RolloutID: rollout},
		TaskID:    protocol.TaskID{Taskset: "weather", TaskID: city},
		Params:    []byte(`{"input":"How warm is it in ` + city + `?","tools":[{"type":"function","name":"get_weather"}]}`),
		TaskData:  []byte(`{"city":"` + city + `"}`),
	}
}

func ExampleDriver_Run() {
	config, stop := weather()
	defer stop()
	driver, err := episode.NewDriver(config)
	if err != nil {
		fmt.Println(err) // everything that is wrong with the configuration
		return
	}
	defer driver.Close()

	reply := driver.Run(context.Background(), asking("0-0", "Oslo"))
	if reply.Failure != nil {
		fmt.Println("failed:", reply.Failure.Reason)
		return
	}
	fmt.Println("reward", reply.Result.Reward)
	// Output: reward 1
}

// A failure says whether trying again can help; its kind can be asked for.
func ExampleDriver_Run_failure() {
	config, stop := weather()
	stop() // nobody listens any more
	config.Resources.Resend = retry.Resend{Max: -1}
	driver, err := episode.NewDriver(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer driver.Close()

	f := driver.Run(context.Background(), asking("0-0", "Oslo")).Failure
	fmt.Println("stage", f.Stage, "terminal", f.Terminal)
	if errors.Is(f, failures.TransportUnreachable) {
		fmt.Println("no server")
	}
	// Output:
	// stage seed terminal false
	// no server
}

// Attempts that fail, and not for good, are followed by others.
func ExampleRedispatch() {
	config, stop := weather()
	defer stop()
	driver, err := episode.NewDriver(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer driver.Close()

	reply := episode.Redispatch(context.Background(), driver, asking("0-0", "Lima"), retry.Policy{MaxAttempts: 5})
	fmt.Println(reply.EpisodeID, "reward", reply.Result.Reward)
	// Output: 0-0 reward 1
}

// One outcome comes for every request, in the order in which they end.
func ExampleAll() {
	config, stop := weather()
	defer stop()
	driver, err := episode.NewDriver(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer driver.Close()

	requests := func(yield func(*episode.Request) bool) {
		for i, city := range []string{"Oslo", "Lima", "Rome"} {
			if !yield(asking(episode.RolloutID(int64(i), 0), city)) {
				return
			}
		}
	}
	for outcome := range episode.All(context.Background(), driver, requests, episode.Options{Concurrency: 8}) {
		fmt.Println(outcome.Request.TaskID.TaskID, "reward", outcome.Result.Reward)
	}
	// Unordered output:
	// Oslo reward 1
	// Lima reward 1
	// Rome reward 1
}

// With a journal the next driver closes what one that died has left open, before its
// first attempt.
func ExampleDriver_KeepClosingLeft() {
	config, stop := weather()
	defer stop()
	config.Journal = filepath.Join(os.TempDir(), "my-collector-journal")
	driver, err := episode.NewDriver(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer driver.Close()
	looked, stopLooking := driver.KeepClosingLeft(context.Background())
	defer stopLooking()
	<-looked

	reply := driver.Run(context.Background(), asking("0-0", "Oslo"))
	fmt.Println("reward", reply.Result.Reward)
	// Output: reward 1
}
