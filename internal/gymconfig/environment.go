package gymconfig

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"example.com/turn/protocol"
)

// An Environment is what the configuration says of an environment server. Limits that
// are 0 are none.
type Environment struct {
	Name string
	// Legacy servers take flat rows too: single_agent_turn_legacy.
	Legacy bool
	// Address is where it listens, as host:port; "" when the configuration does not say.
	Address string

	Resources Server
	Agent     Server
	// ToolTransports are the ways in which the agent may reach the resources server's
	// tools.
	ToolTransports []protocol.ToolTransport

	Concurrency    int
	QueueTimeout   time.Duration
	EpisodeTimeout time.Duration
	CleanupTimeout time.Duration
	// Workers is how many processes a Python server would be; 0 when that is not said.
	Workers int

	// TokenCapture says that token ids of its agent's model calls are captured.
	TokenCapture bool
	// Observability says that the calls of a rollout can be told by their paths.
	Observability bool
}

// A Server is one of the two that an environment server drives.
type Server struct {
	Name string
	URL  string // "" when the configuration does not say
}

// takesRows are the implementations that this program can stand in for, and whether
// they take flat rows.
var takesRows = map[string]bool{"single_agent_turn": false, "single_agent_turn_legacy": true}

// Environment reads what the configuration says of an environment server. The error
// lists all that is wrong with it.
func (c *Config) Environment(name string) (*Environment, error) {
	in, there := c.instance(name)
	rows, known := takesRows[in.implementation]
	switch {
	case !there:
		return nil, fmt.Errorf("there is no server instance %q; %s", name, c.choice())
	case in.kind != environmentServers:
		return nil, fmt.Errorf("%q is one of the %s; %s", name, in.kind, c.choice())
	case !known:
		return nil, fmt.Errorf("%q is a %s: want a single_agent_turn or a single_agent_turn_legacy", name, in.implementation)
	}
	f := &faults{}
	b := c.of(name, in, f)
	e := &Environment{Name: name, Legacy: rows}
	b.ignore("name", "entrypoint", "domain")
	e.Address = b.address()
	e.Workers = b.whole("num_workers", 0, math.MaxInt32)
	e.Resources = b.server("resources_server", resourcesServers)
	e.Agent = b.server("agent_server", agentServers)
	e.ToolTransports = b.toolTransports("resources_tool_transports")
	e.Concurrency = b.whole("max_concurrent_episodes", 1, math.MaxInt32)
	e.QueueTimeout = b.seconds("queue_timeout_seconds")
	e.EpisodeTimeout = b.seconds("default_episode_timeout_seconds")
	e.CleanupTimeout = b.seconds("cleanup_timeout_seconds")
	if e.Concurrency > 0 && b.settings["queue_timeout_seconds"] == nil {
		b.fault("queue_timeout_seconds", errors.New("it is needed beside max_concurrent_episodes"))
	}
	b.refuseOthers()
	e.TokenCapture = c.captures(f, e.Agent.Name)
	e.Observability = c.top(f).truth("observability_enabled")
	return e, f.err()
}

// choice says which environment servers there are.
func (c *Config) choice() string {
	names := c.Environments()
	if len(names) == 0 {
		return "the configuration has no environment server"
	}
	return "the environment servers are: " + strings.Join(names, ", ")
}
