// Package resourcesserver is a kit for resources servers: it keeps the sessions
// of a task environment as the session contract has it, and leaves to the
// environment what only it knows.
//
// An environment is a [TaskEnvironment]: how a task's state is built, the tools
// that work on it, and the verdict. [New] makes an http.Handler of it:
//
//	POST /seed_session       builds the state, binds it to the caller's id, sets the cookie
//	POST /<tool>             calls a tool with the session of the cookie
//	POST /mcp                the tools that have Parameters, over MCP, with the session of a token
//	POST /verify             scores an answer with the session of the cookie
//	POST /close_session      releases the session by its id, and fences the id
//	POST /aggregate_metrics  sums up verdicts
//	GET  /, /health          {"status": "ok"}
//
// Each path also answers behind "/ng-rollout/<capture key>".
//
// What the kit sees to, so that an environment does not have to:
//
//   - A repeated seed finds the session that there is; an id is never bound to two
//     tasks, nor again after its close; nothing is bound, and no cookie set, by a
//     seed that is refused.
//   - Calls of one session run one after another, those of two do not wait for each
//     other.
//   - A session is released once, however many ask for it, and kept when its
//     release fails.
//   - One that nobody closes ends by itself: see [Config.Lifetime] and
//     [Config.IdleTimeout].
//   - A tool call of a session that is gone is refused with 404; its answer is
//     masked and never scored 0. The same answer verified twice gets the same
//     verdict.
//
// # Close tokens
//
// A seed may carry a member close_token beside the four of the protocol. Its
// session is then closed by its cookie, or by a close with the same close_token,
// and not by its id alone, which is refused with 403. What is kept is a hash. Our
// driver sends none: its closes must work when the seed was never answered.
//
// # Agents that drive their own sessions
//
// A seed whose body names no resources_session_id, nor an episode_id and a task_id
// that are objects, comes from an agent that drives its own session, as NeMo Gym's
// did before there were episodes. Its body is the task's row. It is answered with
// {} and a cookie; with the cookie of such a session it gives that session the new
// row's state, with that of an episode's session it is refused with 409. The first
// verify ends the session. For as long as its id is remembered the same answer gets
// the same verdict, and another answer is scored where there was no Release.
//
// # Snapshots
//
// [Server.Snapshot] writes the open sessions of an environment with Save and
// Restore, and [Server.Restore] opens them in another process, where callers go on
// with the cookies and tokens that they have.
//
// To fail a server in a test, wrap it: it is an http.Handler like any other, as
// the example of [Server] shows.
package resourcesserver
