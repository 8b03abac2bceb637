package agentserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
	"example.com/turn/servers/requests"
)

// A session is what an agent seed opens. Its fields are guarded by the session's
// lock.
type session struct {
	tools accesses
	turns int
	seen  observations

	stopped context.Context // ends when the session is to be closed
	stop    context.CancelCauseFunc
}

// interrupt stops the turn that runs: whoever closes a session has no use for
// the rest of it.
func (s *session) interrupt() { s.stop(errClosedMeanwhile) }

var errClosedMeanwhile = errors.New("the session was closed during its turn")

// seed is call 3. A session that could not do what it is seeded for is refused
// here, where trying again does not help, and not in the middle of a turn.
func (s *Server) seed(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	body, err := jsonapi.ReadObject(w, r, s.config.MaxRequestBytes)
	if err != nil {
		return nil, err
	}
	asked, err := readSeed(body)
	if err != nil {
		return nil, err
	}
	err = s.sessions.Seed(r.Context(), asked.id, asked.binding, func(context.Context) (sessions.Opening[*session], error) {
		fresh := &session{tools: asked.tools}
		fresh.stopped, fresh.stop = context.WithCancelCause(context.Background())
		return sessions.Opening[*session]{State: fresh}, nil
	})
	if err != nil {
		return nil, seedRefusal(asked.id, err)
	}
	s.cookies.Set(w, asked.id)
	var answer rawjson.ObjectWriter
	answer.Text("agent_session_id", asked.id)
	return answer.End(), nil
}

func seedRefusal(id string, err error) error {
	switch {
	case errors.Is(err, sessions.ErrClosed):
		return requests.Refuse(http.StatusConflict, "agent session %s is closed", id)
	case errors.Is(err, sessions.ErrEpisode), errors.Is(err, sessions.ErrSeed):
		return requests.Refuse(http.StatusConflict, "agent session %s is bound to another seed", id)
	case errors.Is(err, sessions.ErrShutdown):
		return requests.RefuseAs(http.StatusServiceUnavailable, failures.Shutdown, "%w", err)
	}
	return err
}

// An askedSession is what the body of an agent seed asks for.
type askedSession struct {
	id      string
	binding sessions.Binding
	tools   accesses
}

func readSeed(body []byte) (askedSession, error) {
	fields := requests.Read(body, "body")
	fields.Only("agent_session_id", "episode_id", "task_id", "tool_accesses", "sandbox_access")
	hash := sha256.Sum256(body)
	asked := askedSession{
		id:      jsonapi.SessionID(fields, "agent_session_id"),
		binding: sessions.Binding{Episode: jsonapi.EpisodeID(fields), Seed: string(hash[:])},
	}
	jsonapi.TaskID(fields) // checked, and else none of ours: the task is in the conversation
	asked.tools = readAccesses(fields)
	if fields.Has("sandbox_access") {
		fields.Fault("sandbox_access", "value_error", "this agent cannot use a sandbox")
	}
	return asked, fields.Err()
}

// readAccesses reads tool_accesses, without those that this agent cannot use.
func readAccesses(body *requests.Fields) accesses {
	var read accesses
	names := map[string]bool{}
	for _, fields := range body.List("tool_accesses") {
		name := fields.NonEmpty("name")
		if protocol.CheckName(name) != nil && name != "" {
			fields.Fault("name", "string_pattern_mismatch", "String should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'")
		}
		if names[name] && name != "" {
			fields.Fault("name", "value_error", "tool access names must be unique within an agent session")
		}
		names[name] = true
		read.add(fields, name)
	}
	return read
}

// add reads one entry of tool_accesses.
func (a *accesses) add(fields *requests.Fields, name string) {
	required := fields.Bool("required")
	switch kind := fields.Text("kind"); protocol.ToolTransport(kind) {
	case protocol.DirectHTTP:
		a.addDirect(fields, required)
	case protocol.MCP:
		a.addMCP(fields, name, required)
	default:
		if kind != "" {
			fields.Fault("kind", "union_tag_invalid", "this agent knows the tool access kinds direct_http and mcp")
		}
	}
}

func (a *accesses) addDirect(fields *requests.Fields, required bool) {
	fields.Only("kind", "name", "required", "base_url", "cookies", "headers")
	access := readDirectHTTP(fields)
	switch {
	case a.direct == nil:
		a.direct = access
		a.inOrder = append(a.inOrder, access)
	case required: // an optional one is done without
		fields.Fault("kind", "value_error", "this agent supports at most one direct HTTP tool access per session")
	}
}

func readDirectHTTP(fields *requests.Fields) *directAccess {
	access := &directAccess{baseURL: fields.Text("base_url")}
	if access.baseURL != "" && !isHTTP(access.baseURL) {
		fields.Fault("base_url", "url_parsing", "Input should be a valid http or https URL")
	}
	access.jar = cookies.NewJar(nil)
	access.jar.MergePlain(readPairs(fields, "cookies", cookies.Parse))
	access.headers = readPairs(fields, "headers", protocol.ParsePairs)
	return access
}

func (a *accesses) addMCP(fields *requests.Fields, name string, required bool) {
	fields.Only("kind", "name", "required", "connection")
	connection := fields.Object("connection")
	transport := connection.Text("transport")
	if transport != "" && transport != streamableHTTP {
		if required {
			connection.Fault("transport", "literal_error", "this agent knows the MCP transport streamable_http")
		}
		return // another transport has fields of its own
	}
	access := readMCP(connection, name, required)
	a.mcp = append(a.mcp, access)
	a.inOrder = append(a.inOrder, access)
}

// streamableHTTP is the MCP transport that this agent knows.
const streamableHTTP = "streamable_http"

func readMCP(connection *requests.Fields, name string, required bool) *mcpAccess {
	connection.Only("transport", "url", "headers")
	access := &mcpAccess{name: name, required: required, url: connection.Text("url")}
	if access.url != "" && !isHTTP(access.url) {
		connection.Fault("url", "url_parsing", "Input should be a valid http or https URL")
	}
	access.headers = readPairs(connection, "headers", protocol.ParsePairs)
	return access
}

func isHTTP(text string) bool {
	parsed, err := url.Parse(text)
	return err == nil && parsed.Host != "" && (parsed.Scheme == "http" || parsed.Scheme == "https")
}

// readPairs reads an optional object of strings. The fault does not repeat the
// values: they are cookies and headers.
func readPairs(fields *requests.Fields, name string, parse func([]byte) ([]protocol.Pair, error)) []protocol.Pair {
	if !fields.Has(name) {
		return nil
	}
	pairs, err := parse(fields.Value(name))
	if err != nil {
		fields.Fault(name, "dict_type", "Input should be a valid dictionary of strings: "+err.Error())
	}
	return pairs
}

// A receipt is what the close of a session is answered with, and every repeated
// one; nil for an id that was never seeded.
type receipt json.RawMessage

// close is call 5.
func (s *Server) close(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	body, err := jsonapi.ReadObject(w, r, s.config.MaxRequestBytes)
	if err != nil {
		return nil, err
	}
	fields := requests.Read(body, "body")
	fields.Only("agent_session_id", "episode_id")
	id, episode := jsonapi.SessionID(fields, "agent_session_id"), jsonapi.EpisodeID(fields)
	if err := fields.Err(); err != nil {
		return nil, err
	}
	answer, err := s.sessions.Close(r.Context(), id, sessions.Closer{Episode: episode})
	if errors.Is(err, sessions.ErrEpisode) {
		return nil, requests.Refuse(http.StatusConflict, "agent session %s does not belong to episode %s", id, episode)
	}
	if err != nil {
		return nil, requests.RefuseAs(http.StatusServiceUnavailable, failures.SessionReleaseFailed, "agent session %s could not be closed: %w", id, err)
	}
	if answer == nil {
		answer = (&session{}).receipt(id, s.config.Name)
	}
	return rawjson.Body{answer}, nil
}

// release ends a session. Its turn, if there was one, has ended.
func (s *Server) release(ctx context.Context, id string, held *session) (receipt, error) {
	held.interrupt() // a session that closed without a turn has its context still
	held.tools.close(ctx)
	return held.receipt(id, s.config.Name), nil
}

func (s *session) receipt(id, source string) receipt {
	var w rawjson.ObjectWriter
	w.Text("agent_session_id", id)
	w.Append("agent_observations", func(dst []byte) []byte { return s.seen.appendJSON(dst, source) })
	w.Append("resources_cookies", s.appendCookies)
	return receipt(w.End().Bytes())
}

// appendCookies appends the resources cookies as the tools left them. A session
// without direct access to the resources server has nothing to say about them,
// which is null: an empty object would tell some drivers to forget theirs.
func (s *session) appendCookies(dst []byte) []byte {
	if s.tools.direct == nil {
		return append(dst, "null"...)
	}
	return protocol.AppendPairs(dst, s.tools.direct.jar.Plain())
}
