package resourcesserver

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// An agent that drives its own sessions seeds with the task's row, knows its
// session by the cookie alone, and ends it by verifying. NeMo Gym's agents did so
// before there were episodes, and some still do.

// agentRunPrefix begins the ids of such sessions, which are the server's own.
const agentRunPrefix = "agent-run-"

// seedAgentRun resets the session of the request's cookie, or opens one.
func (s *Server) seedAgentRun(w http.ResponseWriter, r *http.Request, row []byte) (rawjson.Body, error) {
	id, err := s.resetAgentRun(r, Task{Data: row})
	if err != nil {
		return nil, err
	}
	if id == "" {
		id = agentRunPrefix + rand.Text()
		task := Task{SessionID: id, Data: row}
		if err := s.open(r.Context(), task, task.binding()); err != nil {
			return nil, err
		}
	}
	s.cookies.Set(w, id)
	return rawjson.Body{[]byte("{}")}, nil
}

// resetAgentRun gives the session of the request's cookie the state of another
// task and returns its id; "" when there is no such session. The new state is built
// before the old one is released, so that a seed that is refused changes nothing.
func (s *Server) resetAgentRun(r *http.Request, task Task) (id string, err error) {
	p := s.cookiePass(r)
	if p.Genuine && !strings.HasPrefix(p.ID, agentRunPrefix) {
		return "", episodesCookie(p.ID)
	}
	task.SessionID = p.ID
	err = s.use(r.Context(), p, func(ctx context.Context, held *session) error {
		if !held.agentRun { // it was restored: its cookie is of another seal
			return episodesCookie(p.ID)
		}
		fresh, err := s.build(ctx, task)
		if err != nil {
			return asRefusal(err, "", "the session could not be built")
		}
		fresh.restored = held.restored // its caller has no other cookie until this is answered
		if err := s.environment.release(context.WithoutCancel(ctx), held.state); err != nil {
			return errors.Join(
				requests.RefuseAs(http.StatusServiceUnavailable, failures.SessionReleaseFailed, "the session's state could not be released: %w", err),
				s.environment.release(context.WithoutCancel(ctx), fresh.state))
		}
		*held = *fresh
		if !s.sessions.Renew(p.ID, fresh.terms.Lifetime) {
			return unrecognised() // it ended while the state was built, which goes with it
		}
		return nil
	})
	if lost := new(gone); errors.As(err, &lost) {
		return "", nil
	}
	return p.ID, err
}

func episodesCookie(id string) error {
	return requests.Refuse(http.StatusConflict, "the request's cookie is that of resources session %s, which belongs to an episode", id)
}

// ended is what is kept, for as long as its id is fenced, of a session of an
// agent's own that a verify has ended and the pass opened; nil when there is
// nothing. It waits for the release: the verdict stands when that fails, and the
// session's lifetime ends it then.
func (s *Server) ended(ctx context.Context, p pass) *receipt {
	if !strings.HasPrefix(p.ID, agentRunPrefix) {
		return nil
	}
	kept, _ := s.sessions.Fenced(ctx, p.ID)
	if kept == nil || !kept.opened(p) {
		return nil
	}
	return kept
}

func (r *receipt) opened(p pass) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.opens(r.session)
}

// verdictAgain is the verdict on an answer whose session an earlier verify has
// ended: the one given before when it is the same answer. Another answer is scored
// where the state held nothing that the release took away; else it is lost.
func (s *Server) verdictAgain(ctx context.Context, ended *receipt, body []byte, answer Answer, lost *gone) (*verdict, error) {
	ended.mu.Lock()
	defer ended.mu.Unlock()
	return ended.session.judge(body, func() (Verdict, error) {
		if s.environment.holds {
			return Verdict{}, lost
		}
		return s.environment.verify(ctx, ended.session.state, answer)
	})
}
