package resourcesserver

import (
	"errors"
	"net/http"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
	"example.com/turn/servers/requests"
)

// close is call 7. It takes the id alone: a caller whose seed was never answered
// has no cookie. (Where the seed carried a close token, it takes that or the
// cookie.) What it answers does not tell a session that was open from one that
// never was.
func (s *Server) close(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	body, err := jsonapi.ReadObject(w, r, s.limit)
	if err != nil {
		return nil, err
	}
	fields := requests.Read(body, "body")
	fields.Only("resources_session_id", "episode_id", "close_token")
	id, episode := jsonapi.SessionID(fields, "resources_session_id"), jsonapi.EpisodeID(fields)
	token := closeToken(fields)
	if err := fields.Err(); err != nil {
		return nil, err
	}
	cookie, _ := s.cookies.Find(r)
	closer := sessions.Closer{Episode: episode, Cookie: cookie.Genuine && cookie.ID == id, Proof: cookie.Proof, Token: token}
	if _, err := s.sessions.Close(r.Context(), id, closer); err != nil {
		return nil, closeRefusal(id, episode, err)
	}
	var answer rawjson.ObjectWriter
	answer.Text("resources_session_id", id)
	return answer.End(), nil
}

// closeToken reads the close token of a seed or a close, "" when it has none.
func closeToken(fields *requests.Fields) string {
	if !fields.Has("close_token") {
		return ""
	}
	return fields.Secret("close_token")
}

func closeRefusal(id string, episode protocol.EpisodeID, err error) error {
	switch {
	case errors.Is(err, sessions.ErrEpisode):
		return requests.Refuse(http.StatusConflict, "resources session %s does not belong to episode %s", id, episode)
	case errors.Is(err, sessions.ErrToken):
		return requests.Refuse(http.StatusForbidden, "resources session %s is closed by its cookie or its close token, not by its id alone", id)
	}
	return requests.RefuseAs(http.StatusServiceUnavailable, failures.SessionReleaseFailed, "resources session %s could not be released: %w", id, err)
}
