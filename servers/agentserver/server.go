package agentserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/internal/pool"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
)

// Defaults of a [Config].
const (
	DefaultName            = "turn_agent"
	DefaultMaxRounds       = 50
	DefaultMaxRequestBytes = 1 << 30
	DefaultMaxOutputBytes  = 64 << 20
	DefaultLifetime        = 24 * time.Hour
)

// cookieName is the cookie by which a turn finds its session.
const cookieName = "agent_session"

// Config says what an agent server is made of. Only Model is required.
type Config struct {
	// Name is what the server calls itself in logs and observations. "":
	// DefaultName.
	Name string
	// Model answers; it is called by any number of sessions at once.
	Model Model
	// MaxRounds is how often the model is asked in one turn. When the last answer
	// still calls tools, they are called and the turn ends incomplete. 0:
	// DefaultMaxRounds.
	MaxRounds int
	// MaxOutputBytes is the longest tool output that is passed on; the model is
	// told of a longer one instead. An MCP reply may be twice as long and a
	// mebibyte more, whatever is in it. 0: DefaultMaxOutputBytes.
	MaxOutputBytes int64
	// MaxRequestBytes is the longest request body that is read; a longer one is
	// refused with 413. 0: DefaultMaxRequestBytes.
	MaxRequestBytes int64
	// CloseRetryWindow is how long a closed id and its receipt are remembered. It
	// should cover the time that callers go on trying. 0: 300 s.
	CloseRetryWindow time.Duration
	// Lifetime is how long after its seed a session ends though nobody closes it:
	// its caller may have died. It cuts a turn that is under way. 0:
	// DefaultLifetime.
	Lifetime time.Duration
	// Transport carries the tool calls, those of MCP included. Nil: a pool of the
	// server's own, closed by Close.
	Transport http.RoundTripper
	// Logger gets the turns that failed and were answered with 500 or more, and
	// the optional MCP accesses that could not be opened. The zero value discards.
	Logger zerolog.Logger
	// Clock tells the time. Nil: time.Now.
	Clock func() time.Time
}

// Validate reports everything that is wrong with the config.
func (c Config) Validate() error {
	var errs []error
	if c.Model == nil {
		errs = append(errs, errors.New("there is no model"))
	}
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"MaxRounds", int64(c.MaxRounds)},
		{"MaxOutputBytes", c.MaxOutputBytes},
		{"MaxRequestBytes", c.MaxRequestBytes},
		{"CloseRetryWindow", int64(c.CloseRetryWindow)},
		{"Lifetime", int64(c.Lifetime)},
	} {
		if limit.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", limit.name))
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = DefaultName
	}
	if c.MaxRounds == 0 {
		c.MaxRounds = DefaultMaxRounds
	}
	if c.MaxOutputBytes == 0 {
		c.MaxOutputBytes = DefaultMaxOutputBytes
	}
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if c.Lifetime == 0 {
		c.Lifetime = DefaultLifetime
	}
	if c.Transport == nil {
		c.Transport = pool.General(nil)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	c.Logger = c.Logger.With().Str("server", c.Name).Logger()
	return c
}

// A Server serves agent sessions. It is safe for concurrent use.
type Server struct {
	config   Config
	client   *http.Client
	cookies  sessions.Cookies
	sessions *sessions.Table[*session, receipt]
	router   jsonapi.Router
}

// New makes an agent server. The error names everything that is wrong with the
// config.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("agent server: %w", err)
	}
	s := &Server{config: config.withDefaults(), cookies: sessions.NewCookies(cookieName)}
	s.client = newClient(s.config.Transport)
	s.sessions = sessions.NewTable(sessions.Config[*session, receipt]{
		Window:    s.config.CloseRetryWindow,
		Clock:     s.config.Clock,
		Lifetime:  s.config.Lifetime,
		Release:   s.release,
		Interrupt: (*session).interrupt,
	})
	s.router = jsonapi.Router{Logger: s.config.Logger, Routes: map[string]jsonapi.Handler{
		"GET /":                              jsonapi.Healthy,
		"GET /health":                        jsonapi.Healthy,
		"POST " + protocol.PathAgentSessions: s.seed,
		"POST " + protocol.PathResponses:     s.respond,
		"POST " + protocol.PathCloseAgent:    s.close,
	}}
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.router.ServeHTTP(w, r) }

// Open is the number of open sessions: seeded, and not closed yet.
func (s *Server) Open() int { return s.sessions.Len() }

// Close stops the turns that run, closes the open sessions and refuses further
// seeds. It returns when all are closed, or when ctx ends.
func (s *Server) Close(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	if err := s.sessions.Shutdown(ctx); err != nil {
		return fmt.Errorf("closing %s: %w", s.config.Name, err)
	}
	return nil
}
