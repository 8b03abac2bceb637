package protocol

// The paths of the calls. Those of the resources server and of call 4 may come
// behind a prefix: see [RolloutPath] and [ResponsesPath].
const (
	PathSeedSession      = "/seed_session"
	PathAgentSessions    = "/v1/agent_sessions"
	PathResponses        = "/v1/responses"
	PathCloseAgent       = "/v1/agent_sessions/close"
	PathVerify           = "/verify"
	PathCloseSession     = "/close_session"
	PathAggregateMetrics = "/aggregate_metrics"
	PathRun              = "/run"
	PathMCP              = "/mcp" // of the tools, unless a seed's reply says another
)

// IsReserved reports whether a name is that of a route of the resources server, which
// is no tool: a model that could call it would score or close its own session.
func IsReserved(name string) bool {
	switch "/" + name {
	case PathSeedSession, PathVerify, PathCloseSession, PathAggregateMetrics, PathMCP:
		return true
	}
	return false
}

// RolloutPath is path under the prefix by which captured calls are told apart,
// as observability has it for calls 1, 6 and 7.
func RolloutPath(captureKey, path string) string {
	return "/ng-rollout/" + captureKey + path
}

// ResponsesPath is the path of call 4, with the marker that asks for token ids
// to be captured when tokens is true.
func ResponsesPath(captureKey string, tokens bool) string {
	if tokens {
		return RolloutPath(captureKey, "/training-token-capture"+PathResponses)
	}
	return RolloutPath(captureKey, PathResponses)
}
