// Package episode drives episodes of the single_agent_turn protocol, from a
// program's own code: it is what the environment server and the dataset run stand
// on.
//
// # The story of an episode
//
// An episode is one attempt at a rollout of a task. [Driver.Run] makes the
// resources session's id and registers its close, before a byte is sent: a seed
// whose reply is lost has still allocated what only that close can free. It seeds
// the session (call 1), which sets the cookies by which verify will find it.
// Then it makes the agent session's id and registers that close, opens the
// session with what the agent may know of the task's tools (call 3), and has the
// agent answer, once (call 4). The agent session closes (call 5) and brings back
// what the agent observed and the cookies that its tool calls changed. The
// answer, with the task's fields, is verified (call 6), and the resources session
// closes (call 7).
//
// Whatever ends an episode, both closes run, last registered first, each within
// a limit of its own and never before the call that they follow has ended: after
// a failure of any call, the episode's deadline, a panic, and a context that was
// cancelled.
//
// With [Config].Journal each id is on disk before its seed is sent, and until its close
// was confirmed: what a driver that was killed has left open, the next one closes
// ([Driver.KeepClosingLeft]).
//
// # What comes out
//
// A [Reply] holds a [Result] or a *[failures.Failure], exactly one. A result is
// the verify response, its bytes untouched save for reward and mask_sample, which
// are spelled as a strict reader wants them; fields that are collectors' are left
// out. A masked one ([Result].Masked) is to be kept and left out of scores. A
// failure says whether trying again can help.
//
// # Trying again
//
// [Redispatch] runs a failed episode again as the next attempt, with new session
// ids, when its failure is not terminal. [All] does so for any number of requests
// and yields one outcome for each.
//
// # Reading requests
//
// [ParseRequest] reads the body of POST /run, [ParseLegacyRequest] also a flat
// row. A program that has its tasks in another form fills a [Request] itself.
package episode
