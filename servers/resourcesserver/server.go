package resourcesserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
)

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
	// MaxRequestBytes is the longest request body that is read; a longer one is
	// refused with 413. It does not count for /aggregate_metrics, which is read
	// piece by piece. 0: DefaultMaxRequestBytes.
	MaxRequestBytes int64
}

// A Server serves a task environment. It is safe for concurrent use.
type Server struct {
	environment environment
	logger      zerolog.Logger
	limit       int64
	cookies     sessions.Cookies
	sessions    *sessions.Table[*session, struct{}]
	router      jsonapi.Router
}

// A session is what the kit keeps of one.
type session struct {
	state   any
	verdict *verdict // the last one given, nil before the first
}

// New makes the server of an environment. The error names everything that is
// wrong with the environment.
func New[State any](environment TaskEnvironment[State], config Config) (*Server, error) {
	if err := environment.Validate(); err != nil {
		return nil, fmt.Errorf("resources server: %w", err)
	}
	s := &Server{
		environment: environment.forget(),
		logger:      config.Logger.With().Str("server", environment.Name).Logger(),
		limit:       config.MaxRequestBytes,
		cookies:     sessions.NewCookies(cookieName),
	}
	if s.limit == 0 {
		s.limit = DefaultMaxRequestBytes
	}
	s.sessions = sessions.NewTable(sessions.Config[*session, struct{}]{
		Window:  config.CloseRetryWindow,
		Clock:   config.Clock,
		Release: s.release,
	})
	s.router = jsonapi.Router{Logger: s.logger, Routes: s.routes()}
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
	for name, call := range s.environment.tools {
		routes["POST /"+name] = s.tool(name, call)
	}
	return routes
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.router.ServeHTTP(w, r) }

// Open is the number of open sessions: seeded, and not released yet.
func (s *Server) Open() int { return s.sessions.Len() }

// Close releases the open sessions and refuses further seeds. It returns when
// all are released, with the errors of those that could not be; when ctx ends
// first, the releases that still run are cancelled.
func (s *Server) Close(ctx context.Context) error {
	if err := s.sessions.Shutdown(ctx); err != nil {
		return fmt.Errorf("closing %s: %w", s.environment.name, err)
	}
	return nil
}

func (s *Server) release(ctx context.Context, id string, held *session) (struct{}, error) {
	err := s.environment.release(ctx, held.state)
	if err != nil {
		s.logger.Error().Str("session", id).Err(err).Msg("a session could not be released and is kept")
	}
	return struct{}{}, err
}

// tool is the route of a tool. The model reads whatever it answers.
func (s *Server) tool(name string, call toolCall) jsonapi.Handler {
	return func(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
		arguments, err := jsonapi.ReadObject(w, r, s.limit)
		if err != nil {
			return nil, err
		}
		var result any
		id, err := s.use(r, func(held *session) error {
			result, err = call(r.Context(), held.state, arguments)
			return err
		})
		if errors.Is(err, sessions.ErrGone) {
			return nil, gone(id).refusal()
		}
		if err != nil {
			return nil, err
		}
		body, err := jsonapi.Marshal(result)
		if err != nil {
			return nil, fmt.Errorf("the result of tool %s: %w", name, err)
		}
		return rawjson.Body{body}, nil
	}
}

// use runs a call with the session of the request's cookie; it returns the
// session's id, "" when there is no cookie that this server set.
func (s *Server) use(r *http.Request, call func(*session) error) (id string, err error) {
	id, ok := s.cookies.ID(r)
	if !ok {
		return "", sessions.ErrGone
	}
	return id, s.sessions.Use(r.Context(), id, call)
}
