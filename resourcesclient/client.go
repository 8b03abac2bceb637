package resourcesclient

import (
	"context"
	"errors"
	"io"
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

// A Config says which resources server is called, and how.
type Config struct {
	// URL is the server's base URL, such as http://127.0.0.1:9001.
	URL string
	// Name names the server in failures and in the names of tool accesses.
	// "": "resources".
	Name string
	// Observability puts /ng-rollout/<capture key> before the paths of calls 1,
	// 6 and 7.
	Observability bool
	// Transport makes the connections. Nil: a pool of its own.
	Transport http.RoundTripper
	// Token is shown to the server with every call (Authorization: Bearer), and to
	// nobody else: not to the agent's tools. It is secret. "": none is.
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
const DefaultName = "resources"

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
		return "resources server"
	}
	return "resources server " + c.ServerName()
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

// A Client calls one resources server. It is safe for concurrent use.
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

// ForwardMetrics forwards a body to POST /aggregate_metrics and returns the
// reply as it came when it is a success or a 4xx. Every other end is a
// *[failures.Failure].
func (c *Client) ForwardMetrics(ctx context.Context, body []byte) (httpcall.Reply, error) {
	return c.http.Forward(ctx, &httpcall.Call{
		What: "POST " + protocol.PathAggregateMetrics,
		Path: protocol.PathAggregateMetrics,
		Rule: retry.Once, // nothing says that it is safe to repeat
		Body: rawjson.Body{body},
	})
}

// AggregateMetrics has the server compute the metrics of verify responses (POST
// /aggregate_metrics). body is opened for each try; nothing holds it whole. It
// returns the body of the reply; the error is a *[failures.Failure].
func (c *Client) AggregateMetrics(ctx context.Context, body func() (io.ReadCloser, error)) ([]byte, error) {
	return c.http.Post(ctx, &httpcall.Call{
		What: "POST " + protocol.PathAggregateMetrics,
		Path: protocol.PathAggregateMetrics,
		Rule: retry.Once, // nothing says that it is safe to repeat
		Open: body,
	})
}

// A Session is one session on a resources server. It is not safe for concurrent
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

// Cookies are the session's cookies, plain as in a tool access.
func (s *Session) Cookies() []protocol.Pair { return s.jar.Plain() }

// MergeCookies takes over the cookies that the agent brought back from its tool
// calls.
func (s *Session) MergeCookies(cookies []protocol.Pair) { s.jar.MergePlain(cookies) }

// A Seeded is what a seed reply says of the session.
type Seeded struct {
	Tools   []byte // resources_tools as it came; nil when absent or null
	Sandbox []byte // sandbox_access as it came; nil when absent or null
}

// Seed opens the session (call 1). taskData is sent as it is.
func (s *Session) Seed(ctx context.Context, task protocol.TaskID, taskData []byte) (Seeded, error) {
	call := s.call(failures.StageSeed, protocol.PathSeedSession, s.seedBody(task, taskData))
	call.Fresh = true
	body, err := s.client.http.Post(ctx, call)
	var failure *failures.Failure
	s.unsent = errors.As(err, &failure) && failure.Unsent
	if err != nil {
		return Seeded{}, err
	}
	return s.seeded(call, body)
}

func (s *Session) seedBody(task protocol.TaskID, taskData []byte) rawjson.Body {
	var w rawjson.ObjectWriter
	w.Text("resources_session_id", s.id)
	w.Append("episode_id", s.episode.AppendJSON)
	w.Append("task_id", task.AppendJSON)
	w.Value("task_data", taskData)
	return w.End()
}

func (s *Session) seeded(call *httpcall.Call, body []byte) (Seeded, error) {
	reply, err := rawjson.ParseObject(body)
	if err != nil {
		return Seeded{}, s.notContract(call, err.Error())
	}
	if problem := protocol.CheckEcho(reply, "resources_session_id", s.id); problem != "" {
		return Seeded{}, s.notContract(call, problem)
	}
	if s.jar.Empty() {
		return Seeded{}, s.notContract(call, "it sets no cookie, so verify could not find the session")
	}
	return Seeded{Tools: reply.Present("resources_tools"), Sandbox: reply.Present("sandbox_access")}, nil
}

// Verify has the answer scored (call 6) and returns the verify response, which
// is not looked into. body is the flat verify body.
func (s *Session) Verify(ctx context.Context, body rawjson.Body) ([]byte, error) {
	return s.client.http.Post(ctx, s.call(failures.StageVerification, protocol.PathVerify, body))
}

// NotVerdict is the failure of a verify response that is not what the contract
// says.
func (s *Session) NotVerdict(problem string) *failures.Failure {
	return s.notContract(s.call(failures.StageVerification, protocol.PathVerify, nil), problem)
}

// ToolsUnusable is the failure of a seed reply whose tools the agent cannot be
// given.
func (s *Session) ToolsUnusable(problem string) *failures.Failure {
	return s.notContract(s.call(failures.StageSeed, protocol.PathSeedSession, nil), problem)
}

// Unverified is the failure of an episode that ended, for that cause, before
// verify could be sent.
func (s *Session) Unverified(cause error) *failures.Failure {
	call := s.call(failures.StageVerification, protocol.PathVerify, nil)
	return failures.Broken(s.client.http.Failed(call), cause, false, nil)
}

// Close ends the session (call 7). It may be called whatever became of the seed.
func (s *Session) Close(ctx context.Context) error {
	var w rawjson.ObjectWriter
	w.Text("resources_session_id", s.id)
	w.Append("episode_id", s.episode.AppendJSON)
	call := s.call(failures.StageCleanup, protocol.PathCloseSession, w.End())
	call.Rule, call.Patient, call.NoReply = retry.Release, !s.unsent, true
	_, err := s.client.http.Post(ctx, call)
	return err
}

func (s *Session) call(stage failures.Stage, path string, body rawjson.Body) *httpcall.Call {
	call := &httpcall.Call{Stage: stage, What: "POST " + path, Path: path, Body: body, Jar: s.jar}
	if s.client.config.Observability {
		call.Path = protocol.RolloutPath(s.episode.CaptureKey(), path)
	}
	return call
}

func (s *Session) notContract(call *httpcall.Call, problem string) *failures.Failure {
	return failures.NotContract(s.client.http.Failed(call), problem)
}
