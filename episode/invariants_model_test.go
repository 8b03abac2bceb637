package episode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"example.com/turn/episode"
	"example.com/turn/episode/episodetest"
	"example.com/turn/failures"
	"example.com/turn/protocol"
)

// An attempt is what the driver sent for one attempt at a rollout, by route.
type attempt struct {
	program program
	id      protocol.EpisodeID
	sends   []*send
	on      map[episodetest.Route][]*send
}

// An outlook is what docs/protocol.md says must have become of an attempt, in view of
// what the driver got on its calls. It is made without a look at the driver's own code.
type outlook struct {
	// unsure says why nothing more can be said: "" when it can.
	unsure string

	result   bool
	reward   float64
	timedOut bool

	stage    failures.Stage
	kinds    []failures.Kind // any of these; nil: whatever it is
	terminal bool
	partial  []byte
	cleanup  bool // the agent close failed beside it
}

// outlook goes through the calls of section 1 in their order.
//
// What the faults and events of a program came to is read from the driver's sends, so
// that nothing is guessed about time. Left out are: replies that the proxy changed and
// that still are what the contract says, for what they then mean is another's business;
// cookies that were garbled, which may or may not be cookies; the kind that a garbled
// refusal names; and whether a limit counts that ran out as call 4 broke. Where one ran
// out, or the caller gave up, after another call had broken, the kind may be either's.
func (a attempt) outlook() outlook {
	seeded, failed := a.call(episodetest.Seed, failures.StageSeed)
	if failed != nil {
		return *failed
	}
	if a.garbledCookie(episodetest.Seed) {
		return outlook{unsure: "a cookie was garbled"}
	}
	if why := a.notSeeded(seeded); why != "" {
		return outlook{stage: failures.StageSeed, kinds: noKind, terminal: true}
	}
	if seeded.changed() {
		return outlook{unsure: "the seed's reply was changed"}
	}
	if slices.Contains(a.program.Transports, protocol.MCP) && !a.program.OffersMCP {
		return outlook{stage: failures.StageSeed, kinds: noKind, terminal: true}
	}
	return a.agentsPart()
}

var noKind = []failures.Kind{""}

func (a attempt) notSeeded(s *send) string {
	if why := notEchoed(s, "resources_session_id"); why != "" {
		return why
	}
	if !a.wasSetCookie(episodetest.Seed) {
		return "it sets no cookie"
	}
	return ""
}

// wasSetCookie reports whether a seed has brought a cookie. Those of broken replies count
// too.
func (a attempt) wasSetCookie(seed episodetest.Route) bool {
	return slices.ContainsFunc(a.on[seed], func(s *send) bool { return len(s.cookies) > 0 })
}

// garbledCookie reports whether a seed has brought a cookie that was garbled on its way, which turns the bits of ASCII: whether that still is one is not laid down.
func (a attempt) garbledCookie(seed episodetest.Route) bool {
	return slices.ContainsFunc(a.on[seed], func(s *send) bool {
		return strings.ContainsFunc(strings.Join(s.cookies, ""), func(r rune) bool { return r >= utf8.RuneSelf })
	})
}

// agentsPart is calls 3 to 5. Whatever fails before the close is what failed.
func (a attempt) agentsPart() outlook {
	response, timedOut, failed := a.answered()
	closed, closeFailed := a.call(episodetest.AgentClose, failures.StageCleanup)
	if closeFailed == nil && !isReceipt(closed) {
		closeFailed = &outlook{stage: failures.StageCleanup, kinds: noKind, terminal: true}
	}
	switch {
	case failed != nil && failed.unsure != "":
		return *failed
	case failed != nil:
		failed.cleanup = closeFailed != nil
		return *failed
	case closeFailed != nil:
		closeFailed.partial = response
		return *closeFailed
	case closed.changed():
		return outlook{unsure: "the receipt was changed"}
	}
	return a.verified(response, timedOut)
}

// answered is calls 3 and 4.
func (a attempt) answered() (response []byte, timedOut bool, failed *outlook) {
	opened, failed := a.call(episodetest.AgentSeed, failures.StageAgent)
	if failed != nil {
		return nil, false, failed
	}
	if notEchoed(opened, "agent_session_id") != "" {
		return nil, false, &outlook{stage: failures.StageAgent, kinds: noKind, terminal: true}
	}
	last := a.last(episodetest.Responses)
	if last != nil && last.err != nil {
		late := context.Cause(last.ctx)
		var agent *failures.Limit
		var whole *failures.EpisodeLimit
		switch {
		case last.cause == nil && causeKind(late) != "":
			return nil, false, &outlook{unsure: "a limit ran out as call 4 broke"}
		case errors.As(late, &agent):
			return nil, true, nil
		case errors.As(late, &whole):
			return nil, false, &outlook{stage: failures.StageAgent, kinds: []failures.Kind{failures.AgentTimeout}}
		}
	}
	answer, failed := a.call(episodetest.Responses, failures.StageAgent)
	if failed != nil {
		return nil, false, failed
	}
	if !isResponse(answer.body) {
		return nil, false, &outlook{stage: failures.StageAgent, kinds: noKind, terminal: true}
	}
	return answer.body, false, nil
}

// verified is call 6, which is not sent when the episode's time is over.
func (a attempt) verified(response []byte, timedOut bool) outlook {
	if a.last(episodetest.Verify) == nil && (a.program.EpisodeTimeout > 0 || a.program.has(givesUp)) {
		return outlook{stage: failures.StageVerification, kinds: []failures.Kind{failures.TransportTimeout, failures.Cancelled}, partial: response}
	}
	verdict, failed := a.call(episodetest.Verify, failures.StageVerification)
	if failed == nil {
		if reward, ok := readReward(verdict.body); ok {
			return outlook{result: true, reward: reward, timedOut: timedOut}
		}
		failed = &outlook{stage: failures.StageVerification, kinds: noKind, terminal: true}
	}
	failed.partial = response
	return *failed
}

func (a attempt) last(route episodetest.Route) *send {
	if sends := a.on[route]; len(sends) > 0 {
		return sends[len(sends)-1]
	}
	return nil
}

// call is the reply to a call when it is a success, else what the failure must be: the
// table of section 4.
func (a attempt) call(route episodetest.Route, stage failures.Stage) (*send, *outlook) {
	s := a.last(route)
	switch {
	case s == nil:
		// That the episode is over before a call is no excuse: it is then begun, and
		// ends at once.
		return nil, &outlook{stage: "none, for " + failures.Stage(route) + " was not called"}
	case s.err != nil:
		return nil, &outlook{stage: stage, kinds: brokenKinds(s)}
	case s.status >= 200 && s.status <= 299:
		return s, nil
	}
	return nil, a.refused(s, stage)
}

// brokenKinds are the kinds that a call without a whole reply may have. What ran out
// or ended after the connection broke may be what is told, or not.
func brokenKinds(s *send) []failures.Kind {
	if kind := causeKind(s.cause); kind != "" {
		return []failures.Kind{kind}
	}
	kinds := []failures.Kind{failures.TransportPeerDrop}
	var op *net.OpError
	if errors.As(s.err, &op) && op.Op == "dial" {
		kinds[0] = failures.TransportUnreachable
	}
	if kind := causeKind(context.Cause(s.ctx)); kind != "" {
		kinds = append(kinds, kind)
	}
	return kinds
}

// causeKind is the kind of what ended a call from without, "" when nothing has: every
// call's context is released in the end.
func causeKind(cause error) failures.Kind {
	var limit *failures.Limit
	var whole *failures.EpisodeLimit
	switch {
	case errors.As(cause, &limit), errors.As(cause, &whole):
		return failures.TransportTimeout
	case errors.Is(cause, errGivenUp):
		return failures.Cancelled
	}
	return ""
}

func passing(status int) bool {
	return status == 408 || status == 425 || status == 429 || status >= 500
}

func (a attempt) refused(s *send, stage failures.Stage) *outlook {
	o := &outlook{stage: stage, terminal: !passing(s.status), kinds: []failures.Kind{namedKind(s.body)}}
	if o.kinds[0] == "" && !o.terminal {
		o.kinds[0] = stageKind(stage, s.status)
	}
	if !utf8.Valid(s.body) {
		o.kinds = nil // what of a garbled refusal is read is not laid down
		return o
	}
	if kind := causeKind(context.Cause(s.ctx)); kind != "" && stage == failures.StageCleanup && !o.terminal {
		o.kinds = append(o.kinds, kind) // it ran out before the next try
	}
	return o
}

func stageKind(stage failures.Stage, status int) failures.Kind {
	switch stage {
	case failures.StageAgent:
		if slices.Contains([]int{429, 502, 503, 504}, status) {
			return failures.AgentRequestFailed
		}
		return failures.AgentRunError
	case failures.StageVerification:
		return failures.VerifierError
	case failures.StageCleanup:
		return failures.SessionReleaseFailed
	}
	return ""
}

var kindForm = regexp.MustCompile(`^[a-z][a-z0-9_]*(:[a-z][a-z0-9_]*)?$`)

// namedKind is the kind that a refusal names in its body, its detail or its error.
func namedKind(body []byte) failures.Kind {
	object := members(body)
	for _, within := range []map[string]json.RawMessage{object, members(object["detail"]), members(object["error"])} {
		if kind := stringOf(within["failure_kind"]); kindForm.MatchString(kind) {
			return failures.Kind(kind)
		}
	}
	return ""
}

// members are those of a JSON object, nil when it is none.
func members(body []byte) map[string]json.RawMessage {
	var object map[string]json.RawMessage
	if !utf8.Valid(body) || json.Unmarshal(body, &object) != nil {
		return nil
	}
	return object
}

func stringOf(value json.RawMessage) (s string) {
	_ = json.Unmarshal(value, &s) // what is no text is ""
	return s
}

// changed reports whether a reply is not what the server behind has answered.
func (s *send) changed() bool {
	return !slices.ContainsFunc(s.answers, func(r reaction) bool { return r.status == s.status && string(r.body) == string(s.body) })
}

func notEchoed(s *send, name string) string {
	if members(s.body) == nil {
		return "it is no object"
	}
	if stringOf(members(s.body)[name]) != s.session {
		return "it names another session"
	}
	return ""
}

// isReceipt reports whether a reply is what the contract says of call 5.
func isReceipt(s *send) bool {
	cookies := members(s.body)["resources_cookies"]
	var pairs map[string]*string
	return notEchoed(s, "agent_session_id") == "" && (cookies == nil || json.Unmarshal(cookies, &pairs) == nil)
}

func isResponse(body []byte) bool {
	output := members(body)["output"]
	return len(output) > 0 && output[0] == '['
}

// readReward is the reward of a verdict, if it is one.
func readReward(body []byte) (reward float64, ok bool) {
	verdict := members(body)
	for _, name := range []string{"responses_create_params", "response"} {
		if members(verdict[name]) == nil {
			return 0, false
		}
	}
	var mask bool
	for name, into := range map[string]any{"reward": &reward, "mask_sample": &mask} {
		if verdict[name] == nil || json.Unmarshal(verdict[name], into) != nil {
			return 0, false
		}
	}
	return reward, true
}

// keeps reports how a reply is not what the outlook says.
func (o outlook) keeps(reply episode.Reply) error {
	f := reply.Failure
	switch {
	case o.unsure != "":
		return nil
	case o.result && f != nil:
		return fmt.Errorf("it is the failure %q, want the result with the reward %v", f.Reason, o.reward)
	case o.result:
		return o.keepsResult(reply.Result)
	case f == nil:
		return fmt.Errorf("it is a result with the reward %v, want a failure of stage %q", reply.Result.Reward, o.stage)
	case f.Stage != o.stage:
		return fmt.Errorf("the stage is %q, want %q; %s", f.Stage, o.stage, f.Reason)
	case f.Terminal != o.terminal:
		return fmt.Errorf("terminal is %t, want %t; %s", f.Terminal, o.terminal, f.Reason)
	case o.kinds != nil && !slices.Contains(o.kinds, f.Kind):
		return fmt.Errorf("the kind is %q, want one of %q; %s", f.Kind, o.kinds, f.Reason)
	case string(f.PartialResponse) != string(o.partial):
		return fmt.Errorf("the partial response is %q, want %q", f.PartialResponse, o.partial)
	case (f.CleanupError != "") != o.cleanup:
		return fmt.Errorf("the cleanup error is %q; that the agent close failed beside it is %t", f.CleanupError, o.cleanup)
	case f.Reason == "" || utf8.RuneCountInString(f.Reason) > failures.MaxReason:
		return fmt.Errorf("the reason is %q", f.Reason)
	}
	return nil
}

func (o outlook) keepsResult(result *episode.Result) error {
	if result.Reward != o.reward {
		return fmt.Errorf("the reward is %v, want %v", result.Reward, o.reward)
	}
	if result.AgentTimedOut != o.timedOut {
		return fmt.Errorf("that the agent timed out is %t, want %t", result.AgentTimedOut, o.timedOut)
	}
	return nil
}

// keepsFault reports how a call that came to its proxy did not come out as its fault has
// it. Calls whose context had ended are left out: the driver did not wait for what came.
func keepsFault(call episodetest.Call, s *send) error {
	whole := s.err == nil
	switch call.Fault.Kind {
	case episodetest.ShortenReply, episodetest.GarbleReply:
		if call.Injected {
			return nil // whether a garbled reply is one is net/http's to say
		}
	case episodetest.Answer:
		if call.Injected && (!whole || s.status != call.Fault.Status || s.status != http.StatusNoContent && string(s.body) != string(call.Fault.Body)) {
			return fmt.Errorf("%s, and the driver got %d %q, %v", call.Fault, s.status, s.body, s.err)
		}
	case "", episodetest.Duplicate, episodetest.DelayBeforeForward, episodetest.DelayBeforeReply, episodetest.DelayInReply:
		if call.Err == nil && (!whole || s.status != call.Status) {
			return fmt.Errorf("%s, and the driver got %d, %v; the server said %d", call.Fault, s.status, s.err, call.Status)
		}
	default:
		if call.Injected && whole {
			return fmt.Errorf("%s, and the driver got a whole reply of %d", call.Fault, s.status)
		}
	}
	return nil
}
