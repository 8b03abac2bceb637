package jsonapi

import (
	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
)

// EpisodeID reads the episode_id of a seed or a close.
func EpisodeID(body *requests.Fields) protocol.EpisodeID {
	fields := body.Object("episode_id")
	fields.Only("rollout_id", "attempt")
	return protocol.EpisodeID{
		RolloutID: fields.NonEmpty("rollout_id"),
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
