package environments

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/protocol"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/resourcesserver"
)

// Config is what the servers of an environment have in common. The zero value
// works.
type Config struct {
	Logger zerolog.Logger   // the zero value discards
	Clock  func() time.Time // nil: time.Now
	// Model answers for the agent. Nil: the environment's own script.
	Model agentserver.Model
}

// environment puts the resources server of a name together with an agent server that
// the policy plays.
func (c Config) environment(name string, resources *resourcesserver.Server, play func(agentserver.Conversation) agentserver.Move) (*Environment, error) {
	agentName, model := name+"_agent", c.Model
	if model == nil {
		model = &agentserver.Scripted{Name: name + "-script", Play: play, Clock: c.Clock}
	}
	agent, err := agentserver.New(agentserver.Config{Name: agentName, Model: model, Logger: c.Logger, Clock: c.Clock})
	if err != nil {
		return nil, err
	}
	return &Environment{
		Name:           name,
		ResourcesName:  name,
		AgentName:      agentName,
		ToolTransports: []protocol.ToolTransport{protocol.DirectHTTP},
		Resources:      resources,
		Agent:          agent,
	}, nil
}

// An Environment is a task environment's two servers. Both are http.Handlers,
// to be served on any address.
type Environment struct {
	Name           string
	ResourcesName  string                   // of the resources server: it names the tool access
	AgentName      string                   // of the agent server
	ToolTransports []protocol.ToolTransport // what a driver tells its agent of the tools, unless it is told another
	Resources      *resourcesserver.Server
	Agent          *agentserver.Server
}

var makers = map[string]func(Config) (*Environment, error){
	"filings":   openFilings,
	"weather":   openWeather,
	"workplace": openWorkplace,
}

// Names are the environments that there are, sorted.
func Names() []string { return slices.Sorted(maps.Keys(makers)) }

// Open makes the two servers of a named environment. The error of an unknown
// name names those that there are.
func Open(name string, config Config) (*Environment, error) {
	open, ok := makers[name]
	if !ok {
		return nil, fmt.Errorf("there is no environment %q; there are: %s", name, strings.Join(Names(), ", "))
	}
	return open(config)
}

// Close ends the sessions of both servers, the agent's first: its tools are the
// other's.
func (e *Environment) Close(ctx context.Context) error {
	return errors.Join(e.Agent.Close(ctx), e.Resources.Close(ctx))
}
