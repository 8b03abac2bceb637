package resourcesserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
	"example.com/turn/servers/requests"
)

// seed is call 1, or an agent-run seed. The order is the contract's: the request
// is checked, the state is built, the id is bound, and only then does the caller
// get a cookie.
func (s *Server) seed(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	body, err := jsonapi.ReadObject(w, r, s.limit)
	if err != nil {
		return nil, err
	}
	if !isEpisodeSeed(body) {
		return s.seedAgentRun(w, r, body)
	}
	task, binding, err := readSeed(body)
	if err != nil {
		return nil, err
	}
	if err := s.open(r.Context(), task, binding); err != nil {
		return nil, err
	}
	return s.seeded(w, r, task.SessionID)
}

// isEpisodeSeed tells call 1 from the seed of an agent that drives its own
// sessions, whose body is the task's row: a row may have an episode_id of its own.
func isEpisodeSeed(body []byte) bool {
	object, _ := rawjson.ParseObject(body) // it is one: it was read as such
	_, named := object.Get("resources_session_id")
	return named || rawjson.IsObject(object.Present("episode_id")) && rawjson.IsObject(object.Present("task_id"))
}

func readSeed(body []byte) (Task, sessions.Binding, error) {
	fields := requests.Read(body, "body")
	fields.Only("resources_session_id", "episode_id", "task_id", "task_data", "close_token")
	task := Task{
		SessionID: jsonapi.SessionID(fields, "resources_session_id"),
		Episode:   jsonapi.EpisodeID(fields),
		ID:        jsonapi.TaskID(fields),
		Data:      fields.Raw("task_data"),
	}
	if strings.HasPrefix(task.SessionID, agentRunPrefix) {
		fields.Fault("resources_session_id", "value_error", "ids that begin with "+agentRunPrefix+" are the server's own")
	}
	binding := task.binding()
	binding.Token = sessions.NewCloseToken(closeToken(fields))
	return task, binding, fields.Err()
}

// binding is what a repeated seed must repeat. The task's data is part of it: an
// id that came back with other data and got the old state would be scored for
// another task than it was asked.
func (t Task) binding() sessions.Binding {
	data := sha256.Sum256(t.Data)
	return sessions.Binding{Episode: t.Episode, Seed: string(t.ID.AppendJSON(nil)) + string(data[:])}
}

// open opens the session of a task, unless it is open already.
func (s *Server) open(ctx context.Context, task Task, binding sessions.Binding) error {
	err := s.sessions.Seed(ctx, task.SessionID, binding, func(ctx context.Context) (sessions.Opening[*session], error) {
		fresh, err := s.build(ctx, task)
		if err != nil {
			return sessions.Opening[*session]{}, err
		}
		return sessions.Opening[*session]{State: fresh, Lifetime: fresh.terms.Lifetime}, nil
	})
	if err != nil {
		return seedRefusal(task.SessionID, err)
	}
	return nil
}

func (s *Server) build(ctx context.Context, task Task) (*session, error) {
	state, err := s.environment.seed(ctx, task)
	if err != nil {
		return nil, err
	}
	terms, err := s.environment.terms(state)
	if err != nil {
		return nil, errors.Join(err, s.environment.release(context.WithoutCancel(ctx), state))
	}
	return &session{state: state, terms: terms, agentRun: task.AgentRun()}, nil
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

// seeded gives the caller of an open session its cookie, and the answer that every
// repetition of the seed gets.
func (s *Server) seeded(w http.ResponseWriter, r *http.Request, id string) (rawjson.Body, error) {
	var terms Terms
	err := s.sessions.Use(r.Context(), id, func(_ context.Context, held *session) error {
		terms = held.terms
		return nil
	})
	switch {
	case errors.Is(err, sessions.ErrGone), errors.Is(err, sessions.ErrExpired):
		return nil, seedRefusal(id, sessions.ErrClosed) // it has been closed meanwhile
	case err != nil:
		return nil, err
	}
	var answer rawjson.ObjectWriter
	answer.Text("resources_session_id", id)
	if s.mcp != nil {
		answer.Append("resources_tools", s.appendMCPTools(id))
	}
	if terms.Sandbox != nil {
		answer.Value("sandbox_access", terms.Sandbox)
	}
	s.cookies.Set(w, id)
	return answer.End(), nil
}
