package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/envclient"
	"example.com/turn/internal/pool"
	"example.com/turn/resourcesclient"
)

// environmentFlags name the environment servers that a run posts its episodes to.
type environmentFlags struct {
	Environment []route `help:"An environment server, ours or NeMo Gym's: a run posts each episode to it instead of driving --resources and --agent, and it computes the metrics. TASKSET=URL, repeated, is that of one taskset, and names it." placeholder:"[TASKSET=]URL" sep:"none"`

	EnvironmentTokenFile string `help:"File with the token that the servers of --environment are shown (Authorization: Bearer TOKEN)." placeholder:"FILE"`
}

// A route is where the episodes of a taskset go; of those without a route when the
// taskset is "".
type route struct{ taskset, url string }

// UnmarshalText reads URL or TASKSET=URL.
func (r *route) UnmarshalText(text []byte) error {
	r.url = string(text)
	if taskset, url, ok := strings.Cut(r.url, "="); ok && !strings.Contains(taskset, "://") {
		if taskset == "" {
			return fmt.Errorf("%q names no taskset before the =", text)
		}
		r.taskset, r.url = taskset, url
	}
	return nil
}

// checkToken reports a token for environment servers that are not named.
func (f environmentFlags) checkToken(hint string) error {
	if f.EnvironmentTokenFile != "" && len(f.Environment) == 0 {
		return usage(hint, "--environment-token-file is for the servers of --environment: it needs that")
	}
	return nil
}

// environments makes the target of the routes. name is that of the server without
// a taskset.
func (f environmentFlags) environments(name string, ca caFlags, maxReplyBytes int64, logger zerolog.Logger) (collect.Environments, error) {
	target := collect.Environments{Routes: map[string]collect.Environment{}}
	token, err := readToken("--environment-token-file", f.EnvironmentTokenFile)
	if err != nil {
		return target, err
	}
	roots, err := ca.roots()
	if err != nil {
		return target, err
	}
	names := map[string]bool{}
	transport := pool.Trusting(roots)
	for _, route := range f.Environment {
		environment := collect.Environment{Name: name}
		if route.taskset != "" {
			environment.Name = route.taskset
		}
		config := envclient.Config{
			URL:           route.url,
			Name:          environment.Name,
			Transport:     transport,
			Token:         token,
			MaxReplyBytes: maxReplyBytes,
			Logger:        logger,
		}
		if err := config.Validate(); err != nil {
			return target, fmt.Errorf("--environment: %w", err)
		}
		environment.Client = envclient.New(config)
		if names[environment.Name] {
			return target, fmt.Errorf("--environment: two servers of the name %s: a server for a taskset is named after it, the one for all others by --name", environment.Name)
		}
		names[environment.Name] = true
		if route.taskset == "" {
			target.Default = &environment
		} else {
			target.Routes[route.taskset] = environment
		}
	}
	return target, nil
}

// A runTarget is what a run drives, and how it is released.
type runTarget struct {
	collect.Target
	agent   string          // name of the agent server
	limits  *episode.Driver // whose limits are in force; nil: another program's
	release func()
}

// target makes what the flags name: an embedded environment, environment servers,
// or a resources and an agent server.
func (c *runCommand) target(tracing *tracing, logger zerolog.Logger) (*runTarget, error) {
	if len(c.Environment) > 0 {
		environments, err := c.environments(c.Name, c.caFlags, int64(c.MaxReplyBytes), logger)
		if err != nil {
			return nil, usage(runHint, "%w", err)
		}
		environments.Timeout = c.episodeTimeout(0)
		return &runTarget{Target: environments, agent: c.AgentName, release: func() {}}, nil
	}
	access, err := c.access()
	if err != nil {
		return nil, usage(runHint, "%w", err)
	}
	release := func() {}
	if c.Embedded != "" {
		model, err := c.modelFlags.open(runHint, access.roots, logger)
		if err != nil {
			return nil, err
		}
		e, err := serveEmbedded(c.Embedded, "127.0.0.1:0", "127.0.0.1:0", model, logger)
		if err != nil {
			return nil, err
		}
		release = func() { _ = e.close() } // its sessions end with this process
		c.drive(e)
	}
	config := access.of(driverConfig(c.serverFlags, c.protocolFlags, logger))
	config.Journal = c.journal()
	config.Observer = tracing.observer(c.Name, nil)
	driver, err := c.newDriver(config, logger)
	if err != nil {
		release()
		return nil, err
	}
	return &runTarget{
		Target:  collect.Servers{Driver: driver, Name: c.Name},
		agent:   c.AgentName,
		limits:  driver,
		release: func() { driver.Close(); release() },
	}, nil
}

// newDriver makes the driver, without a journal where nobody has asked for one and it
// cannot be kept.
func (c *runCommand) newDriver(config episode.Config, logger zerolog.Logger) (*episode.Driver, error) {
	driver, err := newDriver(config, runHint)
	if c.Journal != "" || !errors.Is(err, episode.ErrNoLocks) {
		return driver, err
	}
	logger.Warn().Str("reason", err.Error()).Msg("sessions are not noted: should this run die, those that it has open stay open (--journal with a folder on another file system)")
	config.Journal = ""
	return newDriver(config, runHint)
}

// journal is the folder of the journal; "": there is none. Sessions of an embedded
// environment end with this process.
func (c *runCommand) journal() string {
	switch {
	case c.Embedded != "":
		return ""
	case c.Journal == "":
		return collect.FilesOf(c.Output).Journal
	}
	return journalFolder(c.Journal)
}

// drive points the flags at an embedded environment.
func (c *runCommand) drive(e *embedded) {
	c.Resources, c.Agent = e.resourcesURL(), e.agentURL()
	c.ResourcesName, c.AgentName = e.environment.ResourcesName, e.environment.AgentName
	if len(c.ToolTransport) == 0 {
		c.ToolTransport = e.environment.ToolTransports
	}
}

// checkTarget reports flags that name no target, or more than one.
func (c *runCommand) checkTarget() error {
	if err := c.modelFlags.check(runHint); err != nil {
		return err
	}
	if err := c.checkToken(runHint); err != nil {
		return err
	}
	servers := c.Resources != "" || c.Agent != ""
	switch {
	case c.Embedded != "" && (servers || len(c.Environment) > 0):
		return usage(runHint, "--embedded brings servers of its own: leave out --resources, --agent and --environment")
	case len(c.Environment) > 0 && servers:
		return usage(runHint, "--environment has servers of its own: leave out --resources and --agent")
	case journalFolder(c.Journal) != "" && (c.Embedded != "" || len(c.Environment) > 0):
		return usage(runHint, "--journal is for sessions that this run opens on servers which outlive it: it has no effect with --embedded or --environment")
	case c.ModelURL != "" && c.Embedded == "":
		return usage(runHint, "--model-url is for the agent of an embedded environment: it needs --embedded")
	case c.Embedded != "" && c.ServerTokenFile != "":
		return usage(runHint, "--server-token-file has no effect with --embedded: its servers ask for no token")
	case c.Embedded != "" && c.CAFile != "" && c.ModelURL == "":
		return usage(runHint, "--ca-file has no effect with --embedded, unless --model-url names an endpoint")
	case len(c.Environment) > 0:
		return c.checkOthersLimits()
	case c.Embedded == "" && (c.Resources == "" || c.Agent == ""):
		return usage(runHint, "run needs --resources URL and --agent URL, --environment URL, or --embedded NAME")
	}
	return nil
}

// checkOthersLimits refuses flags that an environment server would have to know of.
func (c *runCommand) checkOthersLimits() error {
	if c.episodeTimeout(0) < 0 {
		return usage(runHint, "--episode-timeout must not be negative")
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"--seed-timeout", c.SeedTimeout != 0},
		{"--cleanup-timeout", c.CleanupTimeout != episode.DefaultCleanupTimeout},
		{"--resources-name", c.ResourcesName != resourcesclient.DefaultName},
		{"--agent-timeout", c.AgentTimeout != 0},
		{"--verify-timeout", c.VerifyTimeout != 0},
		{"--tool-transport", len(c.ToolTransport) > 0},
		{"--token-capture", c.TokenCapture},
		{"--observability", c.Observability},
		{"--server-token-file", c.ServerTokenFile != ""},
	} {
		if flag.set {
			return usage(runHint, "%s is the environment server's own to set: it has no effect with --environment", flag.name)
		}
	}
	return nil
}
