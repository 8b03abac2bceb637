// Package contract says how a server keeps the session contract: what a check of a
// live one has found out, rule by rule. The checks themselves are Check of package
// resourcesserver and Check of package agentserver; turn check is the command.
//
//	report, err := resourcesserver.Check(ctx, resourcesserver.CheckConfig{
//		URL:      "http://127.0.0.1:9001",
//		TaskID:   protocol.TaskID{Taskset: "weather", TaskID: "0"},
//		TaskData: json.RawMessage(`{"city": "Oslo"}`),
//	})
//	if err == nil {
//		err = report.Err()
//	}
//	if err != nil {
//		t.Fatal(err)
//	}
//
// The rules, whose names stay the same:
//
//	seed                             200, the id, a cookie
//	close                            with the cookie: 200
//	seed-repeated                    the same reply, and the session as it is
//	late-seed                        of a closed id: 409, for another episode too
//	refused-seed-sets-no-cookie      whatever it is refused for
//	close-by-id-alone                without the cookie: the session is gone
//	close-repeated                   200 and the same bytes
//	close-unknown                    of an id that was never seeded: 200
//	seed-after-unknown-close         409: such a close fences the id
//	close-of-another-episode         409, of an open session and of a closed one
//	concurrent-closes                200 and the same bytes for all
//	window-holds                     a closed id is fenced until shortly before the window's end
//	window-ends                      and free after it
//	repeated-close-does-not-renew    also when the close came again meanwhile
//
// Of resources servers only:
//
//	tool                             200 with the cookie
//	verify                           200, a finite reward, not masked
//	verify-repeated                  the same verdict before the close
//	seed-with-other-data             of a bound id: 409 (or 422)
//	seed-of-another-episode          of a bound id: 409
//	seed-of-another-task             of a bound id: 409 (or 422)
//	refused-seed-changes-nothing     of the session that the id is bound to
//	bad-task-data                    422, and nothing is bound
//	releases-once                    however many closes, where releases can be counted
//	closes-look-alike                the same bytes for a closed id and an unknown one
//	verify-after-close               200, reward 0, masked, failure_kind and failure_reason
//	tool-after-close                 404 with failure_kind
//	expiry                           after the lifetime: session_expired
//	idle                             after the idle timeout: session_expired
//	busy-session-survives-idle       but not while a call is under way
//	reserved-routes-are-no-tools     over MCP, where the seed offers it
//	agent-run-seed                   an object, and 409 in an episode's session
//	failed-release                   503 session_release_failed, and the session is kept
//
// Of agent servers only:
//
//	responses                        a turn: 200 and an output
//	seed-with-another-body           of an open session's id: 409, and the id stays bound
//	seed-with-two-tools-of-one-name  422
//	seed-with-unknown-required-tool  422
//	responses-without-session        409
//	responses-after-close            409
//
// A rule that cannot be judged is skipped and says why: what it needs was not
// given, or another rule has failed that it builds on.
package contract
