package resourcesserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/internal/jsonapi"
)

// tool is the route of a tool. The model reads whatever it answers.
func (s *Server) tool(t tool) jsonapi.Handler {
	return func(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
		arguments, err := jsonapi.ReadObject(w, r, s.limit)
		if err != nil {
			return nil, err
		}
		return s.call(r.Context(), t, s.cookiePass(r), arguments)
	}
}

// call calls a tool, with its session unless it needs none.
func (s *Server) call(ctx context.Context, t tool, p pass, arguments json.RawMessage) (body rawjson.Body, err error) {
	if t.stateless != nil {
		result, err := t.stateless(ctx, arguments)
		if err != nil {
			return nil, err
		}
		return t.encode(result)
	}
	err = s.use(ctx, p, func(ctx context.Context, held *session) error {
		result, err := t.call(ctx, held.state, arguments)
		if err != nil {
			return err
		}
		body, err = t.encode(result) // it may be a part of the state, which the next call changes
		return err
	})
	if lost := new(gone); errors.As(err, &lost) {
		return nil, lost.refusal()
	}
	return body, err
}

func (t tool) encode(result any) (rawjson.Body, error) {
	body, err := jsonapi.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("the result of tool %s: %w", t.name, err)
	}
	return rawjson.Body{body}, nil
}
