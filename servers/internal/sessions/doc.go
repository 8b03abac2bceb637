// Package sessions keeps sessions by the ids that their callers chose, as the
// session contract has it for resources and agent servers alike.
//
// Each rule is one small type. [Locks] serialise the calls of one session and
// no others. [Fences] remember closed ids for a while, so that a late seed finds
// them closed and a repeated close finds its receipt. A [Lifetime] says when a
// session ends though nobody closes it, and [Deadlines] find those whose end has
// come. A [CloseToken] is what is kept of the secret that a close must show. A
// [Seal] makes values that name a session and that only this server can make,
// [Cookies] carry them; by a [Proof] the value of another is known again. A [Table]
// is built from these: it seeds, uses, closes, sweeps, saves and restores sessions,
// and says with [ErrGone], [ErrExpired], [ErrClosed], [ErrSeed], [ErrEpisode],
// [ErrToken] and [ErrShutdown] why it does not.
//
// A session's states, and what moves it on:
//
//	(unknown) ──seed──▶ being built ──built──▶ open ──close──▶ closing ──released──▶ fenced ──window──▶ (unknown)
//	    │                    │  └──failed──▶ (unknown)             └──release failed──▶ open
//	    └──close──▶ fenced   └──close, noted──▶ closing as soon as it is built
//
// A session whose time is over goes from open to closing by itself.
//
// A close takes effect when it is asked for and not when its caller gets to
// wait for it: it is noted before it waits for anything, and the release is no
// part of the request, so that a caller that goes away does not leave a session
// half closed.
package sessions
