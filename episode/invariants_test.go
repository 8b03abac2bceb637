package episode_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"example.com/turn/episode"
	"example.com/turn/episode/episodetest"
	"example.com/turn/failures"
	"example.com/turn/protocol"
)

// invariants are what must hold of every program. The name is what the failing test says.
var invariants = []struct {
	name  string
	holds func(record) error
}{
	{"every session is released once, or was closed in vain", releasedOnce},
	{"what is left is closed by its journal, or expires", nothingStays},
	{"the agent close has ended before the resources close", closesInOrder},
	{"nothing is sent for a session that is closed", silentAfterClose},
	{"each request has one reply, with its ids", oneReplyEach},
	{"attempts do not overlap, and are not too many", attemptsInTurn},
	{"each attempt has its own ids and keys", freshIDs},
	{"calls carry the cookie of their session", cookiesKept},
	{"what is verified is what the agent answered", answersVerified},
	{"the reply is what the calls came to", repliesAsSaid},
	{"no reward is made up, and no verdict lost", verdictsKept},
	{"a broken call is sent again as its rule has it", resentByRule},
	{"the agent is asked once", askedOnce},
	{"admission is kept, and given back", admissionKept},
	{"a fault does what it says", faultsHappen},
	{"every body is closed", bodiesClosed},
}

// testFull has the test run 20,000 programs.
const testFull = "TURN_TEST_FULL"

// rounds of as many programs as -rapid.checks says, which is 100.
func rounds() int {
	switch {
	case os.Getenv(testFull) != "":
		return 200
	case testing.Short():
		return 1
	}
	return 3
}

// Random programs of faults against the driver, between servers that keep their
// contract. Limits run out in real time; what has happened is read from what the driver
// was given and what arrived at the servers, never from how long it should have taken.
func TestInvariantsHoldOfRandomPrograms(t *testing.T) {
	seen := coverage{}
	for range rounds() {
		rapid.Check(t, func(t *rapid.T) {
			p := drawProgram(t)
			before := inUse(t)
			r := run(t, p)
			for _, invariant := range invariants {
				if err := invariant.holds(r); err != nil {
					t.Fatalf("broken: %s: %v\n\n%s\n%s", invariant.name, err, p, r.history)
				}
			}
			before.await(t, r)
			seen.add(r)
		})
	}
	seen.log(t)
}

// releasedOnce: docs/session-contract.md, "Release runs once", and docs/protocol.md,
// section 1, "whatever ends the episode, both registered closes run".
func releasedOnce(r record) error {
	times := map[string]int{}
	for _, e := range r.events {
		if e.what == released {
			times[e.session]++
		}
		if times[e.session] > 1 {
			return fmt.Errorf("%s is released twice", e.session)
		}
	}
	for _, id := range r.left {
		if err := r.closedInVain(id); err != nil {
			return fmt.Errorf("%s is held: %w", id, err)
		}
	}
	return r.each(func(a attempt) error {
		if len(a.on[episodetest.Seed]) > 0 && len(a.on[episodetest.CloseSession]) == 0 {
			return errors.New("the resources session was seeded and not closed")
		}
		if len(a.on[episodetest.AgentSeed]) > 0 && len(a.on[episodetest.AgentClose]) == 0 {
			return errors.New("the agent session was seeded and not closed")
		}
		return nil
	})
}

// closedInVain reports why a session need not be held: a close of it came to the end of
// what it may try (section 5), or was answered by somebody else.
func (r record) closedInVain(session string) error {
	var closes []*send
	for _, s := range r.sends {
		if s.session == session && isClose(s.route) && s.sentAt <= r.settled {
			closes = append(closes, s)
		}
	}
	if len(closes) == 0 {
		return errors.New("it was not closed")
	}
	last := closes[len(closes)-1]
	switch {
	case last.err == nil && last.status <= 299:
		if len(last.answers) > 0 && !r.forgotten(session, last) {
			return fmt.Errorf("its server answered the close #%d, and it did", last.n)
		}
	case last.err == nil && !passing(last.status):
	case len(closes) < 4 && !r.outOfTime(last):
		return fmt.Errorf("its close was tried %d times", len(closes))
	}
	return nil
}

func isClose(route episodetest.Route) bool {
	return route == episodetest.CloseSession || route == episodetest.AgentClose
}

// outOfTime reports whether a close had no time for another try.
func (r record) outOfTime(s *send) bool {
	_, limited := s.ctx.Deadline()
	return limited && (causeKind(s.cause) != "" || causeKind(context.Cause(s.ctx)) != "" || r.CleanupTimeout > 0)
}

// forgotten reports whether the session was built after its close, by a server that had
// been started again meanwhile and knew nothing of it.
func (r record) forgotten(session string, s *send) bool {
	for at, e := range r.events {
		if e.what == built && e.session == session && at+1 > s.gotAt {
			return r.has(restartsEmpty, restartsKept)
		}
	}
	return false
}

// nothingStays: docs/session-contract.md, "Lifetime"; episode.Driver.CloseLeft.
func nothingStays(r record) error {
	if r.unclosed > 0 {
		return fmt.Errorf("the journal has %d sessions that could not be closed", r.unclosed)
	}
	if r.expired > 0 {
		return fmt.Errorf("%d sessions are held past their lives", r.expired)
	}
	if !r.Journal {
		return nil
	}
	for _, id := range r.still {
		if !r.believedClosed(id) {
			return fmt.Errorf("%s is still held", id)
		}
	}
	return nil
}

// believedClosed reports whether the driver was told by somebody else that a session is
// closed: its journal has then let go of it.
func (r record) believedClosed(session string) bool {
	return slices.ContainsFunc(r.sends, func(s *send) bool {
		return s.session == session && isClose(s.route) && s.err == nil && s.status <= 299 &&
			(s.changed() || r.forgotten(session, s))
	})
}

// closesInOrder: docs/protocol.md, section 1, "agent close, then verify, then resources
// close", and "never before the call they follow has ended".
func closesInOrder(r record) error {
	order := []episodetest.Route{episodetest.Seed, episodetest.AgentSeed, episodetest.Responses, episodetest.AgentClose, episodetest.Verify, episodetest.CloseSession}
	return r.each(func(a attempt) error {
		reached, under := 0, (*send)(nil)
		for _, s := range a.sends {
			place := slices.Index(order, s.route)
			if place < reached {
				return fmt.Errorf("#%d %s comes after %s", s.n, s.route, order[reached])
			}
			if under != nil && (under.gotAt == 0 || under.gotAt > s.sentAt) {
				return fmt.Errorf("#%d %s is sent while #%d %s is under way", s.n, s.route, under.n, under.route)
			}
			reached, under = place, s
		}
		if under.gotAt == 0 {
			return fmt.Errorf("#%d %s does not end", under.n, under.route)
		}
		return nil
	})
}

// silentAfterClose: once a server has released a session there is nothing more to ask
// about it. What arrives late is the proxy's doing when it was sent before; so it is the
// sending that counts. A close may be repeated, since its answer may be lost.
func silentAfterClose(r record) error {
	closed := map[string]bool{}
	for _, e := range r.events {
		if e.send == nil || e.session == "" {
			continue
		}
		if e.what == answered && isClose(e.send.route) && e.status == http.StatusOK {
			closed[e.session] = true
		}
		if e.what == sent && closed[e.session] && !isClose(e.send.route) {
			return fmt.Errorf("#%d %s is sent for %s, which is closed", e.send.n, e.send.route, e.session)
		}
	}
	return nil
}

// oneReplyEach: docs/protocol.md, section 3, "exactly one of the two, ids echoed".
// Redispatch echoes what was asked for, All says which attempt it was.
func oneReplyEach(r record) error {
	for i, reply := range r.replies {
		want := protocol.EpisodeID{RolloutID: rolloutName(i), Attempt: r.Base}
		if attempts := r.attempts[want.RolloutID]; r.Caller == "all" && len(attempts) > 0 {
			want = attempts[len(attempts)-1].id
		}
		if reply.EpisodeID != want {
			return fmt.Errorf("the reply to %s is of %s", want, reply.EpisodeID)
		}
		if reply.TaskID != (protocol.TaskID{Taskset: "toys", TaskID: "t"}) {
			return fmt.Errorf("the reply to %s is of the task %s", want, reply.TaskID)
		}
		if (reply.Result == nil) == (reply.Failure == nil) {
			return fmt.Errorf("the reply to %s has the result %v and the failure %v", want, reply.Result, reply.Failure)
		}
	}
	return nil
}

// attemptsInTurn: docs/protocol.md, section 5, "attempt + 1 … after the failed attempt's
// closes have ended", and "at most max_attempts".
func attemptsInTurn(r record) error {
	for _, attempts := range r.attempts {
		if len(attempts) > r.Attempts {
			return fmt.Errorf("%s: %d attempts, of %d", attempts[0].id, len(attempts), r.Attempts)
		}
		ended := 0
		for i, a := range attempts {
			if a.id.Attempt != r.Base+int64(i) {
				return fmt.Errorf("attempt %d is called %s", i+1, a.id)
			}
			for _, s := range a.sends {
				if s.sentAt < ended {
					return fmt.Errorf("%s: #%d is sent before the attempt before it has ended", a.id, s.n)
				}
			}
			for _, s := range a.sends {
				ended = max(ended, s.gotAt)
			}
		}
	}
	return nil
}

// freshIDs: docs/protocol.md, section 1, "fresh for every attempt", and the capture key.
func freshIDs(r record) error {
	owner := map[string]protocol.EpisodeID{}
	return r.each(func(a attempt) error {
		ids := map[side]string{}
		for _, s := range a.sends {
			if want := r.path(s, captureKey(a.id)); s.path != want {
				return fmt.Errorf("#%d goes to %s, want %s", s.n, s.path, want)
			}
			if s.session == "" { // its cookie was garbled on the way
				continue
			}
			if of, known := owner[s.session]; known && of != a.id {
				return fmt.Errorf("#%d is for %s, which is %s's", s.n, s.session, of)
			}
			owner[s.session] = a.id
			if id := ids[s.at]; id != "" && id != s.session {
				return fmt.Errorf("#%d is for %s, and the attempt's is %s", s.n, s.session, id)
			}
			ids[s.at] = s.session
		}
		return nil
	})
}

func captureKey(id protocol.EpisodeID) string {
	if id.Attempt == 0 {
		return id.RolloutID
	}
	return fmt.Sprintf("%s-a%d", id.RolloutID, id.Attempt)
}

func (r record) path(s *send, key string) string {
	prefix := ""
	if r.Observability && s.at == resourcesSide || s.route == episodetest.Responses {
		prefix = "/ng-rollout/" + key
	}
	if r.TokenCapture && s.route == episodetest.Responses {
		prefix += "/training-token-capture"
	}
	return prefix + map[episodetest.Route]string{
		episodetest.Seed: "/seed_session", episodetest.Verify: "/verify", episodetest.CloseSession: "/close_session",
		episodetest.AgentSeed: "/v1/agent_sessions", episodetest.Responses: "/v1/responses", episodetest.AgentClose: "/v1/agent_sessions/close",
	}[s.route]
}

// cookiesKept: docs/protocol.md, section 1, "calls 4 and 5 carry the agent jar, calls 6
// and 7 the resources jar". A cookie that was garbled where it was set, or where the agent
// gave it back, is nobody's; a header that was garbled may have held the agent's.
func cookiesKept(r record) error {
	return r.each(func(a attempt) error {
		closed := a.last(episodetest.AgentClose)
		garbled := a.garbledCookie(episodetest.Seed) || a.garbledCookie(episodetest.AgentSeed)
		if garbled || closed != nil && closed.changed() {
			return nil
		}
		for _, s := range slices.Concat(a.on[episodetest.Responses], a.on[episodetest.Verify]) {
			if s.session == "" && (s.at == resourcesSide || a.wasSetCookie(episodetest.AgentSeed)) {
				return fmt.Errorf("#%d %s has the cookie %q, which no server has set", s.n, s.route, s.cookie)
			}
		}
		return nil
	})
}

// answersVerified: docs/protocol.md, section 3, "agent deadline passed". The agent of a
// program gives no partial response back.
func answersVerified(r record) error {
	return r.each(func(a attempt) error {
		for _, s := range a.on[episodetest.Verify] {
			answer := a.last(episodetest.Responses)
			if answer == nil {
				return fmt.Errorf("#%d verifies though the agent was not asked", s.n)
			}
			if answer.err == nil && string(s.answer) != string(answer.body) {
				return fmt.Errorf("#%d verifies %s, and the agent's answer was %s", s.n, s.answer, answer.body)
			}
			envelope := members(s.answer)
			stands := stringOf(envelope["id"]) == "agent-timeout-"+captureKey(a.id) && stringOf(envelope["status"]) == "incomplete"
			if answer.err != nil && !stands {
				return fmt.Errorf("#%d verifies %s, and the agent gave no answer", s.n, s.answer)
			}
		}
		return nil
	})
}

// repliesAsSaid: docs/protocol.md, section 4, by the outlook of each attempt; and section
// 5, "only a non-terminal failure is redispatched".
func repliesAsSaid(r record) error {
	for i, reply := range r.replies {
		attempts := r.attempts[rolloutName(i)]
		if len(attempts) == 0 {
			if err := r.notAdmitted(reply); err != nil {
				return fmt.Errorf("%s made no call: %w", rolloutName(i), err)
			}
			continue
		}
		for k, a := range attempts {
			o := a.outlook()
			last := k == len(attempts)-1
			switch {
			case last:
				if err := o.keeps(reply); err != nil {
					return fmt.Errorf("%s: %w", a.id, err)
				}
			case o.unsure == "" && (o.result || o.terminal):
				return fmt.Errorf("%s: it is followed by another attempt, and is %+v", a.id, o)
			}
			if again := reply.Failure != nil && !reply.Failure.Terminal; last && again && len(attempts) < r.Attempts && !r.excused() {
				return fmt.Errorf("%s: it is the last of %d attempts of %d", a.id, len(attempts), r.Attempts)
			}
		}
	}
	return nil
}

// excused reports whether attempts may stay away.
func (r record) excused() bool { return r.has(givesUp, drains) || r.Concurrency > 0 }

// notAdmitted checks the reply to a request for which nothing was sent.
func (r record) notAdmitted(reply episode.Reply) error {
	f := reply.Failure
	switch {
	case f == nil:
		return errors.New("it is a result")
	case f.Stage != failures.StageAdmission || f.Terminal:
		return fmt.Errorf("the stage is %q, terminal is %t", f.Stage, f.Terminal)
	case f.Kind == "" && r.Concurrency > 0, f.Kind == failures.Cancelled && r.has(givesUp), f.Kind == failures.Shutdown && r.has(drains):
		return nil
	}
	return fmt.Errorf("the kind is %q", f.Kind)
}

// verdictsKept: docs/protocol.md, section 3, "a verdict already reached is never lost",
// and section 4, "a failed call 7 never changes an answer". A masked verdict on a
// session that is gone has the reward 0 and was given by no verifier.
func verdictsKept(r record) error {
	for i, reply := range r.replies {
		attempts := r.attempts[rolloutName(i)]
		if len(attempts) == 0 {
			continue
		}
		last := attempts[len(attempts)-1].last(episodetest.Verify)
		reached := false
		if last != nil && last.err == nil && last.status <= 299 {
			_, reached = readReward(last.body)
		}
		if reached && reply.Result == nil {
			return fmt.Errorf("%s: the verdict of #%d is lost: %w", rolloutName(i), last.n, reply.Failure)
		}
		if reply.Result == nil || reply.Result.Masked {
			continue
		}
		if last == nil || !slices.Contains(r.rewards[last.session], reply.Result.Reward) {
			return fmt.Errorf("%s: no verifier gave it %v", rolloutName(i), reply.Result.Reward)
		}
	}
	return nil
}

// resentByRule: docs/protocol.md, section 5, "a refused call is never re-sent (closes
// apart)", "3 re-sends, so 4 sends", "up to 4 times in all".
func resentByRule(r record) error {
	return r.each(func(a attempt) error {
		for route, sends := range a.on {
			if len(sends) > 4 {
				return fmt.Errorf("%s is sent %d times", route, len(sends))
			}
			for i, s := range sends {
				again := s.err != nil && route != episodetest.Responses || s.err == nil && isClose(route) && passing(s.status)
				switch last := i == len(sends)-1; {
				case !last && s.err == nil && !again:
					return fmt.Errorf("#%d %s is sent again after the answer %d", s.n, route, s.status)
				case last && again && len(sends) < 4 && s.inTime():
					return fmt.Errorf("#%d %s is not sent again", s.n, route)
				}
			}
		}
		return nil
	})
}

// inTime reports whether there was nothing to end a call but its own outcome.
func (s *send) inTime() bool {
	deadline, limited := s.ctx.Deadline()
	return causeKind(context.Cause(s.ctx)) == "" && (!limited || time.Until(deadline) > time.Second)
}

// askedOnce: docs/protocol.md, section 5, "call 4 is not: the agent could run twice".
// Twice is right only where the proxy did it.
func askedOnce(r record) error {
	arrivals := map[protocol.EpisodeID]map[*send]bool{}
	for _, e := range r.events {
		if e.what != arrived || e.send == nil || e.send.route != episodetest.Responses {
			continue
		}
		id := e.send.episode
		if arrivals[id] == nil {
			arrivals[id] = map[*send]bool{}
		}
		if arrivals[id][e.send] = true; len(arrivals[id]) > 1 {
			return fmt.Errorf("%s: call 4 arrives from %d sends", id, len(arrivals[id]))
		}
	}
	return r.each(func(a attempt) error {
		for i, s := range a.on[episodetest.Responses] {
			if i > 0 && a.on[episodetest.Responses][i-1].status != 0 {
				return fmt.Errorf("#%d is a second call 4, after an answer", s.n)
			}
		}
		return nil
	})
}

// admissionKept: docs/protocol.md, section 3, "at most max_concurrent_episodes run". An
// episode runs from its seed until its close has ended.
func admissionKept(r record) error {
	if !r.full {
		return fmt.Errorf("%d episodes do not run at once any more", r.Concurrency)
	}
	if r.Concurrency == 0 {
		return nil
	}
	if err := r.admittedAtServer(); err != nil {
		return err
	}
	running := map[protocol.EpisodeID]bool{}
	for _, e := range r.events[:r.played] {
		if e.send == nil {
			continue
		}
		id := e.send.episode
		switch e.what {
		case sent:
			running[id] = true
		case got:
			if e.send.route == episodetest.CloseSession && r.lastOf(e.send) {
				delete(running, id)
			}
		}
		if len(running) > r.Concurrency {
			return fmt.Errorf("%d run at once with %s, of %d", len(running), id, r.Concurrency)
		}
	}
	return nil
}

func (r record) lastOf(s *send) bool {
	for _, a := range r.attempts[s.episode.RolloutID] {
		if a.id == s.episode {
			return a.last(s.route) == s
		}
	}
	return false
}

// admittedAtServer counts as the resources server can: a session runs from its seed
// until its close has arrived. That is so where nothing keeps closes from arriving.
func (r record) admittedAtServer() error {
	kept := slices.ContainsFunc(r.Mishaps, func(m mishap) bool { return m.Route == episodetest.CloseSession })
	if kept || len(r.Events) > 0 || r.CleanupTimeout > 0 {
		return nil
	}
	running, closed := map[string]bool{}, map[string]bool{}
	for _, e := range r.events[:r.played] {
		switch {
		case e.what == built && !closed[e.session]: // a close may overtake its seed
			running[e.session] = true
		case e.what == arrived && e.send != nil && e.send.route == episodetest.CloseSession:
			delete(running, e.session)
			closed[e.session] = true
		}
		if len(running) > r.Concurrency {
			return fmt.Errorf("the server has %d sessions open that nobody closes, of %d", len(running), r.Concurrency)
		}
	}
	return nil
}

// faultsHappen holds what the driver got against the faults. Which send a call at the
// proxy came from can be said where the one came after the other and none was lost
// before it reached the proxy.
func faultsHappen(r record) error {
	if r.Episodes > 1 || r.has(goesAway, restartsKept, restartsEmpty) {
		return nil
	}
	for _, place := range placesOf {
		var calls []episodetest.Call
		for _, call := range r.calls[place.At] {
			if call.Route == place.Route {
				calls = append(calls, call)
			}
		}
		var sends []*send
		for _, s := range r.sends {
			if s.route == place.Route && s.at == place.At {
				sends = append(sends, s)
			}
		}
		if len(calls) != len(sends) {
			continue
		}
		for i, s := range sends {
			if causeKind(s.cause) != "" || s.sentAt > r.played {
				continue
			}
			if err := keepsFault(calls[i], s); err != nil {
				return fmt.Errorf("#%d %s: %w", s.n, s.route, err)
			}
		}
	}
	return nil
}

// bodiesClosed: CONTRIBUTING.md. A body that is not closed keeps its connection.
func bodiesClosed(r record) error {
	for _, s := range r.sends {
		if s.opened && !s.closed {
			return fmt.Errorf("the body of the reply to #%d is not closed", s.n)
		}
	}
	return nil
}
