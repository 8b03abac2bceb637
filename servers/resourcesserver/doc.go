// Package resourcesserver is a kit for resources servers: it keeps the sessions
// of a task environment as the session contract has it, and leaves to the
// environment what only it knows.
//
// An environment is a [TaskEnvironment]: how a task's state is built, the tools
// that work on it, and the verdict. [New] makes an http.Handler of it:
//
//	POST /seed_session       builds the state, binds it to the caller's id, sets the cookie
//	POST /<tool>             calls a tool with the session of the cookie
//	POST /verify             scores an answer with the session of the cookie
//	POST /close_session      releases the session by its id, and fences the id
//	POST /aggregate_metrics  sums up verdicts
//	GET  /, /health          {"status": "ok"}
//
// Each path also answers behind "/ng-rollout/<capture key>".
//
// What the kit sees to, so that an environment does not have to: a repeated seed
// finds the session that there is; an id is never bound to two tasks, nor again
// after its close; nothing is bound, and no cookie set, by a seed that is
// refused; calls of one session run one after another; a session is released
// once, however many ask for it, and kept when its release fails; the answer of a
// session that is gone is masked and never scored 0; the same answer verified
// twice gets the same verdict.
//
// To fail a server in a test, wrap it: it is an http.Handler like any other, as
// the example of [Server] shows.
package resourcesserver
