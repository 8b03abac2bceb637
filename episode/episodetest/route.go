package episodetest

import (
	"net/http"
	"strings"

	"example.com/turn/protocol"
)

// A Route is a call of the protocol, under whatever prefix it came (docs/protocol.md,
// section 1).
type Route string

// The routes of the resources server, then those of the agent server and of the
// environment server.
const (
	Seed         Route = "seed"
	Verify       Route = "verify"
	CloseSession Route = "close_session"
	Metrics      Route = "resources_metrics"

	AgentSeed  Route = "agent_seed"
	Responses  Route = "responses" // also of a model endpoint
	AgentClose Route = "agent_close"

	Run Route = "run"

	// Other is everything else: a tool, a health check, a path by mistake.
	Other Route = "other"
)

var routes = []struct {
	path  string
	route Route
}{
	{protocol.PathSeedSession, Seed},
	{protocol.PathVerify, Verify},
	{protocol.PathCloseSession, CloseSession},
	{protocol.PathAggregateMetrics, Metrics},
	{protocol.PathAgentSessions, AgentSeed},
	{protocol.PathResponses, Responses},
	{protocol.PathCloseAgent, AgentClose},
	{protocol.PathRun, Run},
}

func routeOf(method, path string) Route {
	if method != http.MethodPost {
		return Other
	}
	for _, known := range routes {
		if strings.HasSuffix(path, known.path) {
			return known.route
		}
	}
	return Other
}

func isRoute(route Route) bool {
	for _, known := range routes {
		if known.route == route {
			return true
		}
	}
	return route == Other
}
