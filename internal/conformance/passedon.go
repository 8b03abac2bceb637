package conformance

import (
	"bytes"
	"slices"
	"strings"
)

// passedOn looks at an episode for what must hold in every case: what is only
// passed on is neither decoded and encoded again nor doubled, and ids come back.
func (k *checker) passedOn(request Request) {
	asked := readValue(bytes.TrimPrefix(request.text(), []byte("\ufeff")))
	input := asked.get("task").get("task_input")
	if input.kind != kindObject {
		return
	}
	for _, call := range k.trace.Calls {
		if call.Unread {
			continue
		}
		switch call.step() {
		case stepSeed:
			k.seedCall(input, readValue(call.Body))
		case stepResponses:
			if params := input.get("responses_create_params").raw; string(call.Body) != params {
				k.complain("resp: body %s, want the bytes %s", short(call.Body), short(params))
			}
		case stepVerify:
			k.verifyCall(input, readValue(call.Body))
		}
	}
	k.echo(asked, readValue(k.trace.Replies[0].Body))
}

// sameBytes complains when a value is not the bytes that it must be, white space
// between tokens apart.
func (k *checker) sameBytes(what string, got, want value) {
	if got.compact() != want.compact() {
		k.complain("%s is %s, want the bytes %s", what, short(got.raw), short(want.raw))
	}
}

func (k *checker) notTwice(what string, v value) {
	if twice := v.repeated(); twice != nil {
		k.complain("%s: %s twice", what, strings.Join(twice, ", "))
	}
}

// taskMembers are the members of the task data: those of task_data and, of a flat
// task_input, its own.
func taskMembers(input value) []member {
	members := slices.Clone(input.get("task_data").members)
	for _, m := range input.members {
		switch m.name {
		case "responses_create_params", "task_data", "agent_timeout_seconds":
		default:
			members = append(members, m)
		}
	}
	return members
}

func (k *checker) seedCall(input, body value) {
	k.notTwice("seed", body)
	data, members := input.get("task_data"), taskMembers(input)
	if len(members) == len(data.members) {
		if data.kind == kindObject {
			k.sameBytes("seed: task_data", body.get("task_data"), data)
		}
		return
	}
	for _, m := range members {
		k.sameBytes("seed: "+m.name+" of task_data", body.get("task_data").get(m.name), value{members: members}.get(m.name))
	}
}

func (k *checker) verifyCall(input, body value) {
	k.notTwice("verify", body)
	members := taskMembers(input)
	for _, m := range members {
		if m.name != "response" && m.name != "responses_create_params" {
			k.sameBytes("verify: "+m.name, body.get(m.name), value{members: members}.get(m.name))
		}
	}
	k.sameBytes("verify: responses_create_params", body.get("responses_create_params"), input.get("responses_create_params"))
	if said, ok := k.lastAnswer(stepResponses); ok {
		k.sameBytes("verify: response", body.get("response"), said)
	}
}

// lastAnswer is the last success that a call was answered with.
func (k *checker) lastAnswer(s step) (value, bool) {
	for _, call := range slices.Backward(k.trace.Calls) {
		if call.step() == s && call.succeeded() {
			return readValue(call.Answer), true
		}
	}
	return value{}, false
}

// echo holds the reply against the request and what the servers behind said.
func (k *checker) echo(asked, reply value) {
	if !reply.has("result") {
		return
	}
	k.ids(asked, reply)
	if result := reply.get("result"); !result.null() {
		k.notTwice("result", result)
		k.verdict(result)
	}
	if partial := reply.get("failure").get("partial_response"); partial.kind == kindObject {
		k.partialResponse(partial)
	}
}

func (k *checker) ids(asked, reply value) {
	for _, id := range []struct {
		what      string
		got, want value
	}{
		{"episode_id.rollout_id", reply.get("episode_id").get("rollout_id"), asked.get("episode_id").get("rollout_id")},
		{"episode_id.attempt", reply.get("episode_id").get("attempt"), attempt(asked)},
		{"task_id", reply.get("task_id"), asked.get("task").get("task_id")},
	} {
		if !same(id.want, id.got) {
			k.complain("reply: %s is %s, want %s", id.what, short(id.got.raw), short(id.want.raw))
		}
	}
}

func attempt(asked value) value {
	if n := asked.get("episode_id").get("attempt"); n.there() {
		return n
	}
	return readValue([]byte("0"))
}

// verdict holds a result against the verify reply that it is made of.
func (k *checker) verdict(result value) {
	verified, ok := k.lastAnswer(stepVerify)
	if !ok {
		k.complain("result: without a verify reply")
		return
	}
	for _, m := range verified.members {
		switch {
		case m.name == "reward" || m.name == "mask_sample": // written anew
		case m.name == "ng_agent_observations": // the agent's
		case strings.HasPrefix(m.name, "_ng_") || slices.Contains(collectors, m.name): // left out
		default:
			k.sameBytes("result: "+m.name, result.get(m.name), verified.get(m.name))
		}
	}
}

// collectors are the names in a verify reply that belong to collectors, beside
// those that begin with _ng_.
var collectors = []string{"ng_trajectory", "ng_model_call_capture", "ng_perf"}

// partialResponse holds a partial response against the last that was verified,
// or that the agent gave.
func (k *checker) partialResponse(partial value) {
	for _, call := range slices.Backward(k.trace.Calls) {
		if call.step() == stepVerify && !call.Unread {
			k.sameBytes("failure: partial_response", partial, readValue(call.Body).get("response"))
			return
		}
	}
	if said, ok := k.lastAnswer(stepResponses); ok {
		k.sameBytes("failure: partial_response", partial, said)
	}
}
