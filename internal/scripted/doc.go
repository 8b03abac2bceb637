// Package scripted is a resources server and an agent server for tests, whose
// replies follow a script.
//
// [New] starts both on loopback sockets. Without a script each route answers as
// a well-behaved server would, so that a test says only what goes wrong:
//
//	servers := scripted.New(t)
//	servers.Play(scripted.Script{
//		scripted.Seed: {{Drop: scripted.AfterRead}, {Default: true}}, // the first seed reply is lost
//	})
//	… run an episode against servers.ResourcesURL and servers.AgentURL …
//	calls := servers.Calls() // what was asked, in order of arrival
//
// A reply can be refused, malformed, late, cut off at any point, or held until
// the test lets it go. Tests wait for what happened instead of sleeping:
// [Servers.Wait] until a call has come, an action's Do when it has, its AtDrop when
// a part of the reply has been sent, its Gate until the test says so, [Servers.Idle]
// until nothing is in flight.
//
// With [Servers.Front] the same faults are put around a server that keeps the
// contract: its handler does the work and its true reply is what gets lost.
package scripted
