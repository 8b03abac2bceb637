package resourcesserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
)

// DefaultLifetime is how long a session may be open unless said otherwise.
const DefaultLifetime = 24 * time.Hour

// DefaultMaxRequestBytes is the longest request body that is read unless said
// otherwise. A verify body holds the whole of an agent's response.
const DefaultMaxRequestBytes = 1 << 30

// cookieName is the cookie by which tools and /verify find their session.
const cookieName = "resources_session"

// Config is what a server takes besides its environment. The zero value works.
type Config struct {
	// Logger gets a warning for every answer that finds its session gone, and the
	// errors of the environment. The zero value discards.
	Logger zerolog.Logger
	// Clock tells the time. Nil: time.Now.
	Clock func() time.Time
	// CloseRetryWindow is how long a closed id is remembered, so that neither a
	// late seed nor a repeated close finds it unknown. It should cover the time
	// that callers go on trying. 0: 300 s.
	CloseRetryWindow time.Duration
	// Lifetime is how long after its seed a session ends though nobody closes it,
	// unless its Terms say otherwise: its caller may have died. It is then released
	// and fenced, and its answers are masked as session_expired. It cuts a call
	// that is under way. 0: DefaultLifetime.
	Lifetime time.Duration
	// IdleTimeout is how long a session may be open without a call. A call that is
	// under way is use, however long it takes. A driver calls nothing while its
	// agent thinks, so that this must be longer than an agent may think. 0: no
	// limit.
	IdleTimeout time.Duration
	// SweepInterval is how often expired sessions are looked for that nobody asks
	// for any more. 0: 30 s.
	SweepInterval time.Duration
	// MaxRequestBytes is the longest request body that is read; a longer one is
	// refused with 413. It does not count for /aggregate_metrics, which is read
	// piece by piece. 0: DefaultMaxRequestBytes.
	MaxRequestBytes int64
}

// Validate reports everything that is wrong with the config.
func (c Config) Validate() error {
	var errs []error
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"CloseRetryWindow", int64(c.CloseRetryWindow)},
		{"Lifetime", int64(c.Lifetime)},
		{"IdleTimeout", int64(c.IdleTimeout)},
		{"SweepInterval", int64(c.SweepInterval)},
		{"MaxRequestBytes", c.MaxRequestBytes},
	} {
		if limit.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", limit.name))
		}
	}
	return errors.Join(errs...)
}

// A Server serves a task environment. It is safe for concurrent use.
type Server struct {
	environment environment
	logger      zerolog.Logger
	limit       int64
	cookies     sessions.Cookies
	tokens      sessions.Seal // of MCP
	sessions    *sessions.Table[*session, *receipt]
	router      jsonapi.Router
	mcp         http.Handler // nil: no tool is offered over MCP
}

// A session is what the kit keeps of one. Its fields are guarded by the session's
// lock.
type session struct {
	state    any
	terms    Terms
	verdict  *verdict // the last one given, nil before the first
	restored *keys    // nil: it was seeded here
	agentRun bool
}

// A receipt is what is kept of a released session; nil when it is nothing.
type receipt struct {
	mu      sync.Mutex // its session has no lock any more
	session *session
}

// New makes the server of an environment. The error names everything that is
// wrong with the environment and with the config.
func New[State any](environment TaskEnvironment[State], config Config) (*Server, error) {
	if err := errors.Join(environment.Validate(), config.Validate()); err != nil {
		return nil, fmt.Errorf("resources server: %w", err)
	}
	s := &Server{
		environment: environment.forget(),
		logger:      config.Logger.With().Str("server", environment.Name).Logger(),
		limit:       config.MaxRequestBytes,
		cookies:     sessions.NewCookies(cookieName),
		tokens:      sessions.NewSeal(),
	}
	if s.limit == 0 {
		s.limit = DefaultMaxRequestBytes
	}
	s.sessions = sessions.NewTable(sessions.Config[*session, *receipt]{
		Window:     config.CloseRetryWindow,
		Clock:      config.Clock,
		Lifetime:   cmp.Or(config.Lifetime, DefaultLifetime),
		Idle:       config.IdleTimeout,
		SweepEvery: config.SweepInterval,
		Release:    s.release,
	})
	s.router = jsonapi.Router{Logger: s.logger, Routes: s.routes()}
	s.mcp = s.newMCP()
	return s, nil
}

func (s *Server) routes() map[string]jsonapi.Handler {
	routes := map[string]jsonapi.Handler{
		"GET /":                                 jsonapi.Healthy,
		"GET /health":                           jsonapi.Healthy,
		"POST " + protocol.PathSeedSession:      s.seed,
		"POST " + protocol.PathVerify:           s.verify,
		"POST " + protocol.PathCloseSession:     s.close,
		"POST " + protocol.PathAggregateMetrics: s.aggregateMetrics,
	}
	for _, tool := range s.environment.tools {
		routes["POST /"+tool.name] = s.tool(tool)
	}
	return routes
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.mcp != nil && jsonapi.Path(r) == protocol.PathMCP {
		s.mcp.ServeHTTP(w, r)
		return
	}
	s.router.ServeHTTP(w, r)
}

// Open is the number of open sessions: seeded, and not released yet.
func (s *Server) Open() int { return s.sessions.Len() }

// Close cuts the calls under way, releases the open sessions and refuses further
// seeds. It returns when all are released, with the errors of those that could not
// be; when ctx ends first, the releases that still run are cancelled.
func (s *Server) Close(ctx context.Context) error {
	if err := s.sessions.Shutdown(ctx); err != nil {
		return fmt.Errorf("closing %s: %w", s.environment.name, err)
	}
	return nil
}

// Sweep releases the sessions that have expired, and returns when all are
// released, or could not be, or ctx has ended. The server does so by itself, and
// expired sessions are not served in any case: Sweep is for whoever wants to see
// them gone, such as a test with a Clock of its own.
func (s *Server) Sweep(ctx context.Context) { s.sessions.Sweep(ctx) }

func (s *Server) release(ctx context.Context, id string, held *session) (*receipt, error) {
	if err := s.environment.release(ctx, held.state); err != nil {
		s.logger.Error().Str("session", id).Err(err).Msg("a session could not be released and is kept")
		return nil, err
	}
	if !held.agentRun {
		return nil, nil
	}
	if s.environment.holds {
		held.state = nil // nobody asks for it any more, and it may be large
	}
	return &receipt{session: held}, nil
}
