package episode

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/agentclient"
	"example.com/turn/failures"
	"example.com/turn/internal/journal"
	"example.com/turn/internal/pool"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
)

// DefaultCleanupTimeout is how long each close may take.
const DefaultCleanupTimeout = 180 * time.Second

// A Config says what a [Driver] drives. Limits that are 0 are none, save
// CleanupTimeout; there is no other limit on time.
type Config struct {
	Resources resourcesclient.Config
	Agent     agentclient.Config

	// ToolTransports are the ways in which the agent may reach the resources
	// server's tools, in the order in which it is told of them. Empty: none.
	ToolTransports []protocol.ToolTransport

	// Concurrency bounds how many episodes run at once; others wait in order. A
	// wait longer than QueueTimeout, which is required with it, is a failure of
	// stage admission. 0: no limit.
	Concurrency  int
	QueueTimeout time.Duration

	// EpisodeTimeout covers calls 1 to 6 of one attempt. It cuts no close.
	EpisodeTimeout time.Duration
	// SeedTimeout covers each of the two seeds, VerifyTimeout verify.
	SeedTimeout   time.Duration
	VerifyTimeout time.Duration
	// AgentTimeout is how long the agent has for its answer when the request
	// does not say. When it has passed, what there is of the answer is verified.
	AgentTimeout time.Duration
	// CleanupTimeout covers each close by itself, its repetitions included. 0:
	// DefaultCleanupTimeout.
	CleanupTimeout time.Duration

	// Journal is the folder in which open sessions are noted, each before its seed is
	// sent, so that another driver closes them when this one dies: see
	// [Driver.CloseLeft]. Any number of drivers, also of other processes, may share
	// one. Its file system must have locks. "": nothing is noted.
	Journal string

	// Transport makes the connections to both servers, unless their own
	// configuration has one. Nil: a pool of the driver's own, which trusts the
	// authorities of Roots.
	Transport http.RoundTripper
	// Roots are those whose signature makes a server's certificate good. Nil: the
	// system's, or those of SSL_CERT_FILE.
	Roots *x509.CertPool
	// Observer is told of attempts, calls and closes that fail. Nil: nobody is.
	Observer Observer
	// Logger gets one line per failed attempt and per close that failed, and what
	// else a person should know: an agent that ran out of time, odd names in a
	// verdict (once each), a panic. The two clients have loggers of their own in
	// their configurations, which tell of connections that break. The zero value
	// discards: nothing of this project's own is printed anywhere else.
	// net/http alone has a word that no setting takes from it: when a server
	// sends something on a connection that is idle, it tells the standard
	// library's default logger of an "Unsolicited response received on idle HTTP
	// channel", with the bytes. Who wants that elsewhere has log.SetOutput.
	Logger zerolog.Logger
}

// A Server is one of the two that a driver drives.
type Server string

const (
	ResourcesServer Server = "resources"
	AgentServer     Server = "agent"
)

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	errs := []error{c.Resources.Validate(), c.Agent.Validate(), protocol.CheckToolTransports(c.ToolTransports)}
	if slices.Contains(c.ToolTransports, protocol.DirectHTTP) {
		access := protocol.NewDirectHTTPAccess(c.Resources.ServerName(), c.Resources.URL, nil)
		if err := protocol.CheckName(access.Name); err != nil {
			errs = append(errs, fmt.Errorf("the name of the resources server, which names its tool access %q: it %w", access.Name, err))
		}
	}
	if c.Concurrency < 0 {
		errs = append(errs, errors.New("the number of concurrent episodes must not be negative"))
	}
	if c.Concurrency > 0 && c.QueueTimeout <= 0 {
		errs = append(errs, errors.New("a limit on concurrent episodes needs a queue timeout"))
	}
	for _, limit := range []struct {
		name  string
		value time.Duration
	}{
		{"episode", c.EpisodeTimeout}, {"seed", c.SeedTimeout}, {"verify", c.VerifyTimeout},
		{"agent", c.AgentTimeout}, {"cleanup", c.CleanupTimeout},
	} {
		if limit.value < 0 {
			errs = append(errs, fmt.Errorf("the %s timeout must not be negative", limit.name))
		}
	}
	return errors.Join(errs...)
}

// A Driver runs episodes against one resources server and one agent server. It
// is safe for concurrent use.
type Driver struct {
	config    Config
	resources *resourcesclient.Client
	agent     *agentclient.Client
	admission admission
	journal   *journal.Journal // nil: sessions are not noted
	idle      func()           // closes idle connections

	leftMu sync.Mutex // held while what was left is being closed

	draining context.Context // ended when no attempt may begin any more
	drain    context.CancelCauseFunc

	warnedMu sync.Mutex
	warned   map[string]bool // what a person has been warned of once
}

// NewDriver makes a driver. It opens no connection. [Driver.Close] releases it. The
// error is a *[JournalError] when all but the journal is in order.
func NewDriver(config Config) (*Driver, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	noted, err := openJournal(config.Journal)
	if err != nil {
		return nil, err
	}
	idle := func() {}
	if config.Transport == nil {
		pool := pool.Trusting(config.Roots)
		config.Transport, idle = pool, pool.CloseIdleConnections
	}
	if config.Resources.Transport == nil {
		config.Resources.Transport = config.Transport
	}
	if config.Agent.Transport == nil {
		config.Agent.Transport = config.Transport
	}
	if config.Observer != nil && config.Resources.Observe == nil {
		config.Resources.Observe = config.Observer.Call
	}
	if config.Observer != nil && config.Agent.Observe == nil {
		config.Agent.Observe = config.Observer.Call
	}
	if config.Observer == nil {
		config.Observer = Unobserved{}
	}
	if config.CleanupTimeout == 0 {
		config.CleanupTimeout = DefaultCleanupTimeout
	}
	draining, drain := context.WithCancelCause(context.Background())
	return &Driver{
		config:    config,
		resources: resourcesclient.New(config.Resources),
		agent:     agentclient.New(config.Agent),
		admission: newAdmission(config.Concurrency, config.QueueTimeout),
		journal:   noted,
		idle:      idle,
		draining:  draining,
		drain:     drain,
	}, nil
}

// Config is the configuration in force: what was given, with its defaults.
func (d *Driver) Config() Config { return d.config }

// Resources is the driver's client of the resources server.
func (d *Driver) Resources() *resourcesclient.Client { return d.resources }

// Drain lets no further attempt begin: [Driver.Run] then answers with a failure
// of kind shutdown and makes no call. Attempts under way go on.
func (d *Driver) Drain() {
	d.drain(&failures.Stop{Kind: failures.Shutdown, Reason: "the driver is shutting down"})
}

// Draining is closed when the driver drains.
func (d *Driver) Draining() <-chan struct{} { return d.draining.Done() }

// Close drains the driver and releases its idle connections and its journal. Attempts
// must have ended.
func (d *Driver) Close() {
	d.Drain()
	d.idle()
	if err := d.journal.Close(); err != nil {
		d.config.Logger.Warn().Str("reason", err.Error()).Msg("the journal of sessions could not be written to its end")
	}
}
