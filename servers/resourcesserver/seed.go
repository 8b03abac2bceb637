package resourcesserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
	"example.com/turn/servers/requests"
)

// seed is call 1. The order is the contract's: the request is checked, the state
// is built, the id is bound, and only then does the caller get a cookie.
func (s *Server) seed(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	body, err := jsonapi.ReadObject(w, r, s.limit)
	if err != nil {
		return nil, err
	}
	task, err := readSeed(body)
	if err != nil {
		return nil, err
	}
	err = s.sessions.Seed(r.Context(), task.SessionID, task.binding(), func(ctx context.Context) (*session, error) {
		state, err := s.environment.seed(ctx, task)
		if err != nil {
			return nil, err
		}
		return &session{state: state}, nil
	})
	if err != nil {
		return nil, seedRefusal(task.SessionID, err)
	}
	s.cookies.Set(w, task.SessionID)
	return sessionAnswer(task.SessionID), nil
}

func readSeed(body []byte) (Task, error) {
	fields := requests.Read(body, "body")
	fields.Only("resources_session_id", "episode_id", "task_id", "task_data")
	task := Task{
		SessionID: fields.NonEmpty("resources_session_id"),
		Episode:   jsonapi.EpisodeID(fields),
		ID:        jsonapi.TaskID(fields),
		Data:      fields.Raw("task_data"),
	}
	return task, fields.Err()
}

// binding is what a repeated seed must repeat. The task's data is part of it: an
// id that came back with other data and got the old state would be scored for
// another task than it was asked.
func (t Task) binding() sessions.Binding {
	data := sha256.Sum256(t.Data)
	return sessions.Binding{Episode: t.Episode, Seed: string(t.ID.AppendJSON(nil)) + string(data[:])}
}

func seedRefusal(id string, err error) error {
	switch {
	case errors.Is(err, sessions.ErrClosed):
		return requests.Refuse(http.StatusConflict, "resources session %s is closed", id)
	case errors.Is(err, sessions.ErrEpisode):
		return requests.Refuse(http.StatusConflict, "resources session %s is bound to another episode", id)
	case errors.Is(err, sessions.ErrSeed):
		return requests.Refuse(http.StatusConflict, "resources session %s is bound to another task", id)
	case errors.Is(err, sessions.ErrShutdown):
		return requests.RefuseAs(http.StatusServiceUnavailable, failures.Shutdown, "%w", err)
	}
	return asRefusal(err, "", "the session could not be built")
}

// close is call 7. It takes the id alone: a caller whose seed was never answered
// has no cookie. What it answers does not tell a session that was open from one
// that never was.
func (s *Server) close(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	body, err := jsonapi.ReadObject(w, r, s.limit)
	if err != nil {
		return nil, err
	}
	fields := requests.Read(body, "body")
	fields.Only("resources_session_id", "episode_id")
	id, episode := fields.NonEmpty("resources_session_id"), jsonapi.EpisodeID(fields)
	if err := fields.Err(); err != nil {
		return nil, err
	}
	if _, err := s.sessions.Close(r.Context(), id, episode); err != nil {
		return nil, closeRefusal(id, episode, err)
	}
	return sessionAnswer(id), nil
}

func closeRefusal(id string, episode protocol.EpisodeID, err error) error {
	if errors.Is(err, sessions.ErrEpisode) {
		return requests.Refuse(http.StatusConflict, "resources session %s does not belong to episode %s", id, episode)
	}
	return requests.RefuseAs(http.StatusServiceUnavailable, failures.SessionReleaseFailed, "resources session %s could not be released: %w", id, err)
}

func sessionAnswer(id string) rawjson.Body {
	var w rawjson.ObjectWriter
	w.Text("resources_session_id", id)
	return w.End()
}
