package main

import (
	"context"
	"errors"
)

type demoCommand struct {
	Environment     string `arg:"" help:"Name of the embedded environment: ${environments}."`
	ResourcesListen string `help:"Address of the resources server." default:"127.0.0.1:9001" placeholder:"ADDR"`
	AgentListen     string `help:"Address of the agent server." default:"127.0.0.1:9002" placeholder:"ADDR"`
	modelFlags
	caFlags
}

const demoHint = "turn demo --help"

func (demoCommand) Help() string {
	return `Example, with an environment server for them in another terminal:

    turn demo weather
    turn serve --resources http://127.0.0.1:9001 --agent http://127.0.0.1:9002 --tool-transport direct_http`
}

func (c *demoCommand) run(ctx context.Context, p program) error {
	logger := p.newLogger(p.Stderr, p.Stderr)
	if err := c.modelFlags.check(demoHint); err != nil {
		return err
	}
	if c.CAFile != "" && c.ModelURL == "" {
		return usage(demoHint, "--ca-file has no effect without --model-url")
	}
	roots, err := c.roots()
	if err != nil {
		return usage(demoHint, "%w", err)
	}
	model, err := c.modelFlags.open(demoHint, roots, logger)
	if err != nil {
		return err
	}
	e, err := serveEmbedded(c.Environment, c.ResourcesListen, c.AgentListen, model, logger)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	c.modelFlags.log(logger.Info().Str("environment", e.environment.Name)).
		Str("resources", e.resourcesURL()).Str("resources_name", e.environment.ResourcesName).
		Str("agent", e.agentURL()).Str("agent_name", e.environment.AgentName).
		Any("tool_transports", e.environment.ToolTransports).
		Msg("serving")
	select {
	case <-ctx.Done():
		return e.close()
	case err := <-e.broken:
		return errors.Join(err, e.close())
	}
}
