package episode

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

// RunBody is the body of POST /run that asks for the request (section 3).
func (r *Request) RunBody() Body {
	var w rawjson.ObjectWriter
	w.Append("episode_id", r.EpisodeID.AppendJSON)
	w.Object("task", func(task *rawjson.ObjectWriter) {
		task.Append("task_id", r.TaskID.AppendJSON)
		r.WriteInput(task)
	})
	return w.End()
}

// ParseReply reads the reply of POST /run to the request, as any environment
// server writes it (section 3). It refers to body, which must not change as long as
// the reply is used. The error says what is not as the contract has it.
func ParseReply(body []byte, r *Request) (Reply, error) {
	reply := Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID}
	object, err := rawjson.ParseObject(body)
	if err != nil {
		return reply, err
	}
	if err := checkReplyIDs(object, r); err != nil {
		return reply, err
	}
	result, failure := object.Present("result"), object.Present("failure")
	switch {
	case result == nil && failure == nil:
		return reply, errors.New("it has neither a result nor a failure")
	case result != nil && failure != nil:
		return reply, errors.New("it has both a result and a failure")
	case failure != nil:
		reply.Failure, err = parseFailure(failure)
	default:
		reply.Result, err = parseResult(result)
	}
	return reply, err
}

func checkReplyIDs(object rawjson.Object, r *Request) error {
	f := &faults{}
	var episodeID protocol.EpisodeID
	if value := f.member(object, nil, "episode_id"); value != nil {
		episodeID = readEpisodeID(f, at(nil, "episode_id"), value)
	}
	var taskID protocol.TaskID
	if value := f.member(object, nil, "task_id"); value != nil {
		taskID = readTaskID(f, at(nil, "task_id"), value)
	}
	if err := f.err(); err != nil {
		return err
	}
	if episodeID != r.EpisodeID {
		return fmt.Errorf("it is of another episode: rollout %q, attempt %d", clip([]byte(episodeID.RolloutID)), episodeID.Attempt)
	}
	if taskID != r.TaskID {
		return errors.New("it is of another task")
	}
	return nil
}

// parseResult reads a result: a verdict with what the environment server adds.
// Fields that begin with _ng_ are left out, for they are the collector's to write.
func parseResult(value []byte) (*Result, error) {
	fields, err := rawjson.ParseObject(value)
	if err != nil {
		return nil, fmt.Errorf("its result: %w", err)
	}
	result, err := newResult(fields, func(name string) bool { return strings.HasPrefix(name, "_ng_") })
	if err != nil {
		return nil, fmt.Errorf("its result: %w", err)
	}
	timedOut, _ := fields.Get("agent_timed_out")
	result.AgentTimedOut = string(timedOut) == "true"
	return result, nil
}

// parseFailure reads the failure of a reply. Its kind is taken over when it is well
// formed, its reason is cut to length.
func parseFailure(value []byte) (*failures.Failure, error) {
	fields, err := rawjson.ParseObject(value)
	if err != nil {
		return nil, fmt.Errorf("its failure: %w", err)
	}
	terminal, there := fields.Get("terminal")
	if !there || string(terminal) != "true" && string(terminal) != "false" {
		return nil, errors.New("its failure does not say whether it is terminal")
	}
	f := failures.New(failures.Stage(fields.Text("stage")).OrUnknown(), "", fields.Text("failure_reason"))
	f.Terminal = string(terminal) == "true"
	if kind := failures.Kind(fields.Text("failure_kind")); kind.WellFormed() {
		f.Kind = kind
	}
	f.PartialResponse = fields.Present("partial_response")
	f.Observations = fields.Present(observationsField)
	f.Trajectory = json.RawMessage(fields.Present("ng_trajectory"))
	f.CleanupError = fields.Text("cleanup_error")
	return f, nil
}
