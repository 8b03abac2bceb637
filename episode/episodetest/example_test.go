package episodetest_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/episode/episodetest"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
	"example.com/turn/servers/environments"
)

// An episode whose seed reply is lost is closed all the same: the server has opened a
// session.
func Example() {
	weather, err := environments.Open("weather", environments.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	resources, agent := httptest.NewServer(weather.Resources), httptest.NewServer(weather.Agent)
	defer resources.Close()
	defer agent.Close()

	proxy, err := episodetest.NewProxy(episodetest.Config{
		Target: resources.URL,
		Plan:   episodetest.Script{episodetest.Seed: {{Kind: episodetest.DropBeforeReply}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer proxy.Close()

	driver, err := episode.NewDriver(episode.Config{
		Resources: resourcesclient.Config{URL: proxy.URL(), Name: weather.ResourcesName, Resend: retry.Resend{Max: -1}},
		Agent:     agentclient.Config{URL: agent.URL, Name: weather.AgentName},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer driver.Close()
	reply := driver.Run(context.Background(), &episode.Request{
		EpisodeID: protocol.EpisodeID{RolloutID: "0-0"},
		TaskID:    protocol.TaskID{Taskset: "weather", TaskID: "oslo"},
		Params:    []byte(`{"input":"How warm is it in Oslo?"}`),
		TaskData:  []byte(`{"city":"Oslo"}`),
	})

	fmt.Println("failed in", reply.Failure.Stage, "by", reply.Failure.Kind)
	for _, call := range proxy.Calls() {
		fmt.Printf("%s %d: %s, the server said %d\n", call.Route, call.Nth, call.Fault, call.Status)
	}
	// Output:
	// failed in seed by transport_peer_drop
	// seed 1: drop_before_reply, the server said 200
	// close_session 1: none, the server said 200
}
