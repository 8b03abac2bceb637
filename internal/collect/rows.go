package collect

import (
	"fmt"
	"time"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
)

// resultType is _ng_result_type of every line.
const resultType = "single_agent_turn"

// resultLine is a line of the rollouts file: the result as it is, and which
// rollout it is of.
func resultLine(k key, server string, reply episode.Reply) rawjson.Body {
	var w rawjson.ObjectWriter
	for _, field := range reply.Result.Fields() {
		w.Member(field)
	}
	writeIdentity(&w, k, server, reply)
	return w.End()
}

// failureLine is a line of the failures file.
func failureLine(k key, server string, reply episode.Reply, delivery Delivery, took time.Duration) rawjson.Body {
	f := reply.Failure
	var w rawjson.ObjectWriter
	writeIdentity(&w, k, server, reply)
	w.Text("_ng_failure_class", episode.CollectorFailureClass)
	w.Bool("_ng_failure_terminal", f.Terminal)
	w.Text("_ng_failure_message", f.Reason)
	if f.Stage != "" {
		w.Text("_ng_failure_stage", string(f.Stage))
	}
	if f.Kind != "" {
		w.Text("failure_kind", string(f.Kind))
	}
	w.Text("failure_reason", f.Reason)
	w.Text("_ng_failure_delivery", string(delivery))
	if f.PartialResponse != nil {
		w.Value("_ng_failure_partial_response", f.PartialResponse)
	}
	w.Value("elapsed_seconds", fmt.Appendf(nil, "%.3f", took.Seconds()))
	return w.End()
}

func writeIdentity(w *rawjson.ObjectWriter, k key, server string, reply episode.Reply) {
	w.Append("_ng_task_id", reply.TaskID.AppendJSON)
	w.Int("_ng_task_index", k.task)
	w.Int("_ng_rollout_index", k.rollout)
	if attempt := reply.EpisodeID.Attempt; attempt > 0 {
		w.Int("_ng_attempt_index", attempt)
	}
	w.Text("_ng_environment_server", server)
	w.Text("_ng_result_type", resultType)
}
