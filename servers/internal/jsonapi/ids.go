package jsonapi

import (
	"fmt"

	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
)

// maxID is how long the id of a session or a rollout may be, in bytes. Those of closed
// sessions are remembered for minutes, and cookies hold them.
const maxID = 512

// SessionID reads the id of a session, which its caller has chosen.
func SessionID(body *requests.Fields, name string) string { return idOf(body, name) }

func idOf(fields *requests.Fields, name string) string {
	id := fields.NonEmpty(name)
	if len(id) > maxID {
		fields.Fault(name, "string_too_long", fmt.Sprintf("String should have at most %d bytes", maxID))
	}
	return id
}

// EpisodeID reads the episode_id of a seed or a close.
func EpisodeID(body *requests.Fields) protocol.EpisodeID {
	fields := body.Object("episode_id")
	fields.Only("rollout_id", "attempt")
	return protocol.EpisodeID{
		RolloutID: idOf(fields, "rollout_id"),
		Attempt:   fields.Whole("attempt"),
	}
}

// TaskID reads the task_id of a seed.
func TaskID(body *requests.Fields) protocol.TaskID {
	fields := body.Object("task_id")
	fields.Only("taskset", "task_id")
	return protocol.TaskID{
		Taskset: fields.NonEmpty("taskset"),
		TaskID:  fields.NonEmpty("task_id"),
	}
}
