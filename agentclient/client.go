package agentclient

import (
	"context"
	"errors"
	"net/http"

	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/rawjson"
	"example.com/turn/observe"
	"example.com/turn/protocol"
	"example.com/turn/retry"
)

// A Config says which agent server is called, and how.
type Config struct {
	// URL is the server's base URL, such as http://127.0.0.1:9002.
	URL string
	// Name names the server in failures. "": "agent".
	Name string
	// TokenCapture asks for token ids to be captured, by the path of call 4.
	TokenCapture bool
	// Transport makes the connections. Nil: a pool of its own.
	Transport http.RoundTripper
	// Token is shown to the server with every call (Authorization: Bearer), and to
	// nobody else. It is secret. "": none is.
	Token protocol.Token
	// Resend bounds the re-sends of a call whose connection failed.
	Resend retry.Resend
	// MaxReplyBytes bounds the body of a reply. 0: a gibibyte.
	MaxReplyBytes int64
	// Observe is told of the calls. Nil: nobody is.
	Observe observe.Calls
	// Logger gets a warning when connections begin to fail, and when the token
	// goes there in the open; the zero value discards.
	Logger zerolog.Logger
}

// DefaultName is the server's name when none is given.
const DefaultName = "agent"

func (c Config) call() httpcall.Config {
	return httpcall.Config{
		URL:           c.URL,
		Server:        c.title(),
		Transport:     c.Transport,
		Token:         c.Token,
		Resend:        c.Resend,
		MaxReplyBytes: c.MaxReplyBytes,
		Observe:       c.Observe,
		Logger:        c.Logger,
	}
}

// title is how reasons call the server.
func (c Config) title() string {
	if c.ServerName() == DefaultName {
		return "agent server"
	}
	return "agent server " + c.ServerName()
}

// ServerName is the server's name: Name, or the default.
func (c Config) ServerName() string {
	if c.Name == "" {
		return DefaultName
	}
	return c.Name
}

// Validate reports what is wrong with the configuration.
func (c Config) Validate() error { return c.call().Validate() }

// A Client calls one agent server. It is safe for concurrent use.
type Client struct {
	config Config
	http   *httpcall.Client
}

// New makes a client. The configuration must be valid.
func New(config Config) *Client {
	return &Client{config: config, http: httpcall.New(config.call())}
}

// Name is the server's name.
func (c *Client) Name() string { return c.config.ServerName() }

// URL is the server's base URL, without a slash at its end.
func (c *Client) URL() string { return c.http.URL() }

// A Session is one session on an agent server. It is not safe for concurrent
// use.
type Session struct {
	client  *Client
	id      string
	episode protocol.EpisodeID
	jar     *cookies.Jar
	unsent  bool // its server knows nothing of it
}

// Session makes the session of that id. Nothing is sent. The values of its
// cookies and the token become secrets.
func (c *Client) Session(id string, episode protocol.EpisodeID, secrets *failures.Secrets) *Session {
	return &Session{client: c, id: id, episode: episode, jar: c.http.NewJar(secrets)}
}

// ID is the session's id.
func (s *Session) ID() string { return s.id }

// Open seeds the session (call 3). sandbox is sent as it is, nil as null.
func (s *Session) Open(ctx context.Context, task protocol.TaskID, tools []protocol.ToolAccess, sandbox []byte) error {
	call := s.call(failures.StageAgent, protocol.PathAgentSessions, s.openBody(task, tools, sandbox))
	call.Fresh = true
	body, err := s.client.http.Post(ctx, call)
	var failure *failures.Failure
	s.unsent = errors.As(err, &failure) && failure.Unsent
	if err != nil {
		return err
	}
	_, err = s.parse(call, body)
	return err
}

func (s *Session) openBody(task protocol.TaskID, tools []protocol.ToolAccess, sandbox []byte) rawjson.Body {
	var w rawjson.ObjectWriter
	w.Text("agent_session_id", s.id)
	w.Append("episode_id", s.episode.AppendJSON)
	w.Append("task_id", task.AppendJSON)
	w.Append("tool_accesses", func(dst []byte) []byte { return protocol.AppendToolAccesses(dst, tools) })
	w.Value("sandbox_access", rawjson.OrNull(sandbox))
	return w.End()
}

// Respond has the agent answer, once (call 4). params is sent byte for byte. The
// reply is a JSON object whose output is an array; more is not looked at.
func (s *Session) Respond(ctx context.Context, params []byte) ([]byte, error) {
	call := s.call(failures.StageAgent, protocol.PathResponses, rawjson.Body{params})
	call.Path = protocol.ResponsesPath(s.episode.CaptureKey(), s.client.config.TokenCapture)
	call.Rule = retry.Once
	body, err := s.client.http.Post(ctx, call)
	if err != nil {
		return nil, err
	}
	if problem := checkResponse(body); problem != "" {
		return nil, s.notContract(call, problem)
	}
	return body, nil
}

func checkResponse(body []byte) string {
	response, err := rawjson.ParseObject(body)
	if err != nil {
		return err.Error()
	}
	output, there := response.Get("output")
	if !there {
		return "it lacks output"
	}
	if !rawjson.IsArray(output) {
		return "output: want an array, got " + rawjson.Describe(output)
	}
	return ""
}

// A Receipt is what the close reply brings back. Bodies are as they came, nil
// when absent or null.
type Receipt struct {
	Observations    []byte // agent_observations
	Trajectory      []byte // agent_trajectory (later main); nil also when it is empty
	PartialResponse []byte // partial_response (later main)
	Cookies         []protocol.Pair
}

// Close ends the session (call 5). It may be called whatever became of the
// seed.
func (s *Session) Close(ctx context.Context) (Receipt, error) {
	call := s.call(failures.StageCleanup, protocol.PathCloseAgent, s.closeBody())
	call.Rule, call.Patient = retry.Release, !s.unsent
	body, err := s.client.http.Post(ctx, call)
	if err != nil {
		return Receipt{}, err
	}
	return s.receipt(call, body)
}

func (s *Session) closeBody() rawjson.Body {
	var w rawjson.ObjectWriter
	w.Text("agent_session_id", s.id)
	w.Append("episode_id", s.episode.AppendJSON)
	return w.End()
}

func (s *Session) receipt(call *httpcall.Call, body []byte) (Receipt, error) {
	reply, err := s.parse(call, body)
	if err != nil {
		return Receipt{}, err
	}
	receipt := Receipt{
		Observations:    reply.Present("agent_observations"),
		Trajectory:      reply.Present("agent_trajectory"),
		PartialResponse: reply.Present("partial_response"),
	}
	if rawjson.IsEmpty(receipt.Trajectory) {
		receipt.Trajectory = nil // a 0.7.0 collector refuses a result that carries one
	}
	if receipt.PartialResponse != nil && checkResponse(receipt.PartialResponse) != "" {
		receipt.PartialResponse = nil // it is for verifying, and no verifier could
	}
	if brought := reply.Present("resources_cookies"); brought != nil {
		if receipt.Cookies, err = cookies.Parse(brought); err != nil {
			return Receipt{}, s.notContract(call, "resources_cookies: "+err.Error())
		}
	}
	return receipt, nil
}

func (s *Session) call(stage failures.Stage, path string, body rawjson.Body) *httpcall.Call {
	return &httpcall.Call{Stage: stage, What: "POST " + path, Path: path, Body: body, Jar: s.jar}
}

func (s *Session) notContract(call *httpcall.Call, problem string) *failures.Failure {
	return failures.NotContract(s.client.http.Failed(call), problem)
}

// parse takes a reply that gives the session's id back.
func (s *Session) parse(call *httpcall.Call, body []byte) (rawjson.Object, error) {
	reply, err := rawjson.ParseObject(body)
	if err != nil {
		return nil, s.notContract(call, err.Error())
	}
	if problem := protocol.CheckEcho(reply, "agent_session_id", s.id); problem != "" {
		return nil, s.notContract(call, problem)
	}
	return reply, nil
}
