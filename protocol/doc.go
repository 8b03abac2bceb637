// Package protocol holds the words of the wire: the ids of an episode and the
// rules for them, the paths and bodies of the calls, and what an agent is told
// about the tools of a session.
//
// Three servers take part. The environment server drives an episode; the
// resources server owns the task's state, tools and verifier; the agent server
// owns the harness that calls the model. An episode is these calls:
//
//	1  POST /seed_session             resources seed: a session with the task's state
//	3  POST /v1/agent_sessions        agent seed: a session that may use its tools
//	4  POST /ng-rollout/<key>/v1/responses   the agent answers, once
//	5  POST /v1/agent_sessions/close  the agent session ends
//	6  POST /verify                   the resources server scores the answer
//	7  POST /close_session            the resources session ends
//
// (Steps 0 and 2 are no calls: the closes are registered before the seeds that
// they undo.) Package episode has the story of how they are driven. Sections that
// doc comments refer to are those of docs/protocol.md in this repository.
package protocol
