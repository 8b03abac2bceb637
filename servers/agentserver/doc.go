// Package agentserver is an agent server: it keeps agent sessions as the session
// contract has it, and its harness is a tool-calling loop around a [Model].
//
//	POST /v1/agent_sessions        opens a session with the tools that it may use
//	POST …/v1/responses            runs the loop: model, tools, model, …, answer
//	POST /v1/agent_sessions/close  ends it; the receipt holds what was observed
//	GET  /, /health                {"status": "ok"}
//
// The second also answers behind "/ng-rollout/<capture key>", with or without
// "/training-token-capture".
//
// A turn asks the model, calls the tools that the model asked for, gives it
// their outputs and asks again, until the model has said all it has to say or
// [Config.MaxRounds] is reached.
//
// The session's tool accesses (section 2 of the protocol) say where tools are. A
// call goes to the first of them, in the order of the seed, that has the tool. A
// direct HTTP access, of which there is at most one, has any: a tool is a POST to
// the resources server with the session's cookies. An MCP access has those that
// its server lists, which the model is offered beside those of the create params.
// Its session is opened in the first turn, and closed with the agent session.
//
// Whatever comes back is the tool's output, refusals included, since a model can
// learn from them. Only when no answer comes at all, when a required MCP access
// cannot be opened, or the model itself fails, does the turn fail. Nothing is sent
// twice.
//
// The reply is one Responses object with everything that the turn added to the
// conversation.
//
// [OpenAI] is a model behind any endpoint that speaks OpenAI's API, [Scripted] one
// that follows a policy written in Go; a program may bring any other.
package agentserver
