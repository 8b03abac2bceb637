// Package probe asks a live server what a rule of the session contract wants to
// know, and keeps what was sent and what came back. Both checks are made of it:
// those of packages resourcesserver and agentserver.
//
// A [Run] is one check of one server. It judges rules one after another, each in
// a [Trial] of its own with sessions of its own, so that a server which breaks one
// rule does not fail on the others as well. A session is noted before its seed is
// sent, and what may be open at the end of its trial is closed, however the trial
// ended: under a limit of its own, with the session's cookie, and when that is
// refused in every other way there is.
package probe
