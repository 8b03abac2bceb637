package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/internal/httpserve"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/environments"
)

// embedded is an embedded task environment that is being served.
type embedded struct {
	environment       *environments.Environment
	model             *agentserver.OpenAI // that its agent asks; nil: the environment's script
	resources, agent  *http.Server
	resourcesListener net.Listener
	agentListener     net.Listener
	serving           sync.WaitGroup
	broken            chan error // what ended a server that was not closed
}

// serveEmbedded serves an environment on the two addresses. Its agent asks the given
// model, which is closed with it, or when that is nil its script.
func serveEmbedded(name, resourcesAddress, agentAddress string, model *agentserver.OpenAI, logger zerolog.Logger) (*embedded, error) {
	config := environments.Config{Logger: logger}
	if model != nil {
		config.Model = model
	}
	environment, err := environments.Open(name, config)
	if err != nil {
		return nil, usage("", "%w", err)
	}
	e := &embedded{
		environment: environment,
		model:       model,
		resources:   httpserve.New(environment.Resources, logger),
		agent:       httpserve.New(environment.Agent, logger),
		broken:      make(chan error, 2),
	}
	if e.resourcesListener, err = net.Listen("tcp", resourcesAddress); err != nil {
		return nil, cannotListen("--resources-listen", err)
	}
	if e.agentListener, err = net.Listen("tcp", agentAddress); err != nil {
		_ = e.resourcesListener.Close()
		return nil, cannotListen("--agent-listen", err)
	}
	e.serving.Go(func() { e.serve(e.resources, e.resourcesListener) })
	e.serving.Go(func() { e.serve(e.agent, e.agentListener) })
	return e, nil
}

func (e *embedded) serve(server *http.Server, listener net.Listener) {
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		e.broken <- fmt.Errorf("an embedded server stopped: %w", err)
	}
}

func (e *embedded) resourcesURL() string {
	return "http://" + httpserve.Dialable(e.resourcesListener.Addr().String())
}
func (e *embedded) agentURL() string {
	return "http://" + httpserve.Dialable(e.agentListener.Addr().String())
}

// embeddedGrace is how long requests under way have when the servers stop, and then
// the release of what they hold.
const embeddedGrace = 5 * time.Second

// close ends the servers and what they hold. When it returns, their addresses are
// free.
func (e *embedded) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), embeddedGrace)
	defer cancel()
	var errs []error
	for _, server := range []*http.Server{e.agent, e.resources} {
		if server.Shutdown(ctx) != nil {
			errs = append(errs, server.Close())
		}
	}
	e.serving.Wait() // one that had not begun to serve yet closes its listener itself
	ctx, cancel = context.WithTimeout(context.Background(), embeddedGrace)
	defer cancel()
	errs = append(errs, e.environment.Close(ctx))
	if e.model != nil {
		e.model.Close()
	}
	return errors.Join(errs...)
}
