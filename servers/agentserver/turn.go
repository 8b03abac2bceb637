package agentserver

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
	"example.com/turn/servers/requests"
)

// respond is call 4.
func (s *Server) respond(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	body, err := jsonapi.ReadObject(w, r, s.config.MaxRequestBytes)
	if err != nil {
		return nil, err
	}
	params, input, err := readParams(body)
	if err != nil {
		return nil, err
	}
	id, ok := s.cookies.ID(r)
	if !ok {
		return nil, requests.Refuse(http.StatusConflict, "the request carries no session cookie that this server set")
	}
	var answer rawjson.Body
	err = s.sessions.Use(r.Context(), id, func(ctx context.Context, held *session) error {
		answer, err = s.run(ctx, held, params, input)
		return err
	})
	switch {
	case errors.Is(err, sessions.ErrGone), errors.Is(err, sessions.ErrExpired):
		return nil, requests.Refuse(http.StatusConflict, "agent session %s is not open", id)
	case err != nil:
		return nil, turnRefusal(err)
	}
	return answer, nil
}

func turnRefusal(err error) error {
	var refusal *requests.Refusal
	var invalid requests.Invalid
	switch {
	case errors.As(err, &refusal), errors.As(err, &invalid):
		return err
	case errors.Is(err, errClosedMeanwhile):
		return requests.Refuse(http.StatusConflict, "%w", err)
	case errors.Is(err, sessions.ErrShutdown):
		return requests.RefuseAs(http.StatusServiceUnavailable, failures.Shutdown, "%w", err)
	}
	return requests.RefuseAs(http.StatusInternalServerError, failures.AgentRunError, "%w", err)
}

// readParams takes the create params apart. A text as input is the user's
// message.
func readParams(body []byte) (params rawjson.Object, input [][]byte, err error) {
	fields := requests.Read(body, "body")
	value := fields.Value("input")
	text, isText := rawjson.Text(value)
	switch {
	case isText:
		input = [][]byte{userMessage(text)}
	case rawjson.IsArray(value):
		input = rawjson.Elements(value)
	case value != nil:
		fields.Fault("input", "value_error", "Input should be a valid string or list")
	}
	if fields.Has("stream") && fields.Bool("stream") {
		fields.Fault("stream", "value_error", "this agent does not stream")
	}
	params, _ = rawjson.ParseObject(body) // it is an object: fields were read of it
	return params, input, fields.Err()
}

func userMessage(text string) []byte {
	var w rawjson.ObjectWriter
	w.Text("role", "user")
	w.Text("content", text)
	w.Text("type", "message")
	return w.End().Bytes()
}

// A turn is one run of the loop.
type turn struct {
	server  *Server
	session *session
	id      string // of the invocation, among those of the session
	params  rawjson.Object
	input   [][]byte
	added   [][]byte // items that the turn added to the conversation
	usage   usage
}

// run runs the loop until the model has nothing more to call, or ctx ends, or
// the session is closed. The session's lock is held.
func (s *Server) run(ctx context.Context, held *session, params rawjson.Object, input [][]byte) (rawjson.Body, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(held.stopped, func() { cancel(context.Cause(held.stopped)) })()

	held.turns++
	t := &turn{server: s, session: held, id: invocationID(held.turns), params: params, input: input}
	began := s.config.Clock()
	answer, status, err := t.loop(ctx)
	if err != nil && ctx.Err() != nil {
		status, err = "incomplete", context.Cause(ctx) // whatever broke first, that is why
	}
	held.seen.invocation(t.id, status, s.config.Clock().Sub(began), err)
	return answer, err
}

// loop is the harness. It returns the turn's Responses object, and how the
// invocation ended.
func (t *turn) loop(ctx context.Context) (answer rawjson.Body, status string, err error) {
	if err := t.session.tools.open(ctx, t.server); err != nil {
		return nil, "failed", err
	}
	t.params = t.session.tools.offered(t.params)
	for round := 1; ; round++ {
		reply, err := t.ask(ctx)
		if err != nil {
			return nil, "failed", err
		}
		if reply.unfinished() {
			return t.response(reply), "incomplete", nil
		}
		calls := reply.calls()
		if len(calls) == 0 {
			return t.response(reply), "completed", nil
		}
		for _, call := range calls {
			output, err := t.call(ctx, call)
			if err != nil {
				return nil, "failed", err
			}
			t.added = append(t.added, output)
		}
		if round == t.server.config.MaxRounds {
			return t.response(reply.cutOff("max_rounds")), "incomplete", nil
		}
	}
}

// ask asks the model once and adds its output to the conversation.
func (t *turn) ask(ctx context.Context) (reply, error) {
	params := with(t.params, "input", array(slices.Concat(t.input, t.added)))
	raw, err := t.server.config.Model.Respond(ctx, encode(params).Bytes())
	if err != nil {
		return reply{}, err
	}
	answer, err := readReply(raw)
	if refusal := new(requests.Refusal); errors.As(err, &refusal) {
		return reply{}, err
	}
	if err != nil {
		return reply{}, requests.RefuseAs(http.StatusInternalServerError, failures.AgentRunError, "the model's reply: %w", err)
	}
	t.added = append(t.added, answer.output()...)
	t.usage.add(answer)
	return answer, nil
}
