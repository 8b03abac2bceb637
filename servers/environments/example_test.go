package environments_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"example.com/turn/servers/environments"
)

// The weather environment's servers, on loopback ports of their own.
func ExampleOpen() {
	environment, err := environments.Open("weather", environments.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	resources, agent := httptest.NewServer(environment.Resources), httptest.NewServer(environment.Agent)
	defer resources.Close()
	defer agent.Close()

	fmt.Println(environment.ResourcesName, environment.AgentName, environment.ToolTransports)
	fmt.Println("open sessions:", environment.Resources.Open(), environment.Agent.Open())
	fmt.Println("close:", environment.Close(context.Background()))
	// Output:
	// weather weather_agent [direct_http]
	// open sessions: 0 0
	// close: <nil>
}
